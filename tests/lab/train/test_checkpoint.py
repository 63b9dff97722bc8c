"""Checkpoints: whole or not at all, the older kept, damage and other settings named."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.records import seal_document
from doublecv.lab.train import checkpoint

IDENTITY = {"data": "tiny", "samples": 2, "kl": "sampled"}


def state(value=1.0):
    return {"model": [jnp.full((3, 2), float(value)), jnp.zeros(2)], "key": jnp.array([1, 2], jnp.uint32)}


def like():
    return jax.eval_shape(state)


def load(folder, identity=IDENTITY):
    notices = []
    return checkpoint.load_newest(folder, like(), identity, notices.append), notices


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_comes_back(tmp_path):
    checkpoint.save(tmp_path, state(0.1), 7, 123, IDENTITY)
    loaded, notices = load(tmp_path)
    assert (loaded.step, loaded.metrics_bytes, notices) == (7, 123, [])
    for a, b in zip(jax.tree.leaves(loaded.state), jax.tree.leaves(state(0.1)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_the_same_state_makes_the_same_bytes(tmp_path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        checkpoint.save(folder, state(), 5, 0, IDENTITY)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*") if path.is_file()]
    assert len(files) == 2
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_the_last_two_stay(tmp_path):
    for step in (5, 10, 100):
        checkpoint.save(tmp_path, state(step), step, 0, IDENTITY)
    assert names(tmp_path) == ["checkpoint-000000010", "checkpoint-000000100"]
    assert load(tmp_path)[0].step == 100


def test_a_renamed_checkpoint_is_not_taken_for_one_of_another_step(tmp_path):
    checkpoint.save(tmp_path, state(1), 5, 0, IDENTITY)
    checkpoint.save(tmp_path, state(2), 10, 0, IDENTITY)
    (tmp_path / "checkpoint-000000010").rename(tmp_path / "checkpoint-000000020")
    loaded, notices = load(tmp_path)
    assert loaded.step == 5
    assert len(notices) == 1
    assert "it was renamed: checkpoint.json says step 10" in notices[0]


def test_nothing_there(tmp_path):
    assert load(tmp_path) == (None, [])


def damage_bytes(path):
    content = bytearray((path / "state.safetensors").read_bytes())
    content[-3] ^= 1
    (path / "state.safetensors").write_bytes(content)


def cut_tensors(path):
    content = (path / "state.safetensors").read_bytes()
    (path / "state.safetensors").write_bytes(content[:-10])


def change(path, old, new):
    text = (path / "checkpoint.json").read_text()
    assert old in text
    (path / "checkpoint.json").write_text(text.replace(old, new))


def without_checksum(path):
    content = json.loads((path / "checkpoint.json").read_text())
    del content["checksum"]
    (path / "checkpoint.json").write_text(json.dumps(content | {"step": 5}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_bytes, "state.safetensors has sha256"),
        (cut_tensors, "state.safetensors has sha256"),
        (lambda path: (path / "state.safetensors").unlink(), "state.safetensors is missing"),
        (lambda path: (path / "checkpoint.json").unlink(), "checkpoint.json is missing"),
        (
            lambda path: (path / "checkpoint.json").write_text('{"step": 1'),
            "wanted a JSON object: Input data was truncated",
        ),
        (lambda path: (path / "checkpoint.json").write_text("[]"), "wanted a JSON object"),
        (lambda path: change(path, '"step": 10', '"step": 11'), "checkpoint.json, field checksum"),
        (lambda path: change(path, '"metrics_bytes": 100', '"metrics_bytes": 50'), "checkpoint.json, field checksum"),
        (lambda path: change(path, '"checksum"', '"checksun"'), "checkpoint.json, field checksum: found nothing"),
        (
            lambda path: (path / "checkpoint.json").write_bytes(seal_document({"step": 10})),
            "checkpoint.json has the fields",
        ),
        (without_checksum, "checkpoint.json, field checksum: found nothing"),
        (lambda path: change(path, '"samples": 2', '"samples": 3'), "checkpoint.json, field checksum"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(tmp_path, damage, message):
    checkpoint.save(tmp_path, state(1), 5, 50, IDENTITY)
    newest = checkpoint.save(tmp_path, state(2), 10, 100, IDENTITY)
    damage(newest)
    loaded, notices = load(tmp_path)
    assert (loaded.step, loaded.metrics_bytes) == (5, 50)
    assert float(loaded.state["model"][0][0, 0]) == 1
    assert len(notices) == 1
    assert str(newest) in notices[0]
    assert message in notices[0]
    checkpoint.save(tmp_path, state(3), 10, 100, IDENTITY)
    assert float(load(tmp_path)[0].state["model"][0][0, 0]) == 3


def test_all_damaged(tmp_path):
    damage_bytes(checkpoint.save(tmp_path, state(), 5, 50, IDENTITY))
    with pytest.raises(InputError, match=r"no checkpoint in .* is intact: checkpoint-000000005; remove them to start"):
        load(tmp_path)


def test_arrays_of_another_shape_are_damage(tmp_path):
    wrong = {**state(), "key": jnp.zeros(3, jnp.uint32)}
    checkpoint.save(tmp_path, wrong, 5, 50, IDENTITY)
    with pytest.raises(InputError, match="no checkpoint"):
        load(tmp_path)


def test_another_run(tmp_path):
    checkpoint.save(tmp_path, state(), 5, 50, IDENTITY)
    with pytest.raises(InputError, match="belongs to a different run: samples is 2 in the checkpoint, 4 here"):
        load(tmp_path, {**IDENTITY, "samples": 4})


def test_a_write_that_fails_leaves_the_older_one_and_nothing_half_written(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, state(1), 5, 50, IDENTITY)
    written = checkpoint.write_new

    def full(path, content):
        if path.name == "checkpoint.json":
            raise OSError(28, "No space left on device")
        written(path, content)

    monkeypatch.setattr(checkpoint, "write_new", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, state(2), 10, 100, IDENTITY)
    assert names(tmp_path) == ["checkpoint-000000005"]
    assert json.loads((tmp_path / "checkpoint-000000005" / "checkpoint.json").read_text())["step"] == 5
