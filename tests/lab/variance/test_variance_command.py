"""Variances at the parameters of a trained model, as functions and as the command `doublecv variance`."""

import json
from dataclasses import replace

import pytest

from doublecv import estimators
from doublecv.lab import cli
from doublecv.lab.common.files import locked
from doublecv.lab.common.records import seal_document
from doublecv.lab.train import settings as train_settings
from doublecv.lab.train.loop import run
from doublecv.lab.train.settings import TrainSettings, trainable
from doublecv.lab.variance import measure as frozen
from doublecv.lab.variance.command import Measurement, VarianceSettings, tables

SETTINGS = TrainSettings(latents=12, batch=20, steps=40, evaluate_every=40, bound_samples=2)


def measure(folder, *names, samples=(2,), draws, fit_steps=1):
    settings = VarianceSettings((folder,), folder, names, samples, draws, fit_steps)
    return list(frozen.measure(folder, settings))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen") / "run"
    run(SETTINGS, folder)
    return folder


def test_variances_at_a_trained_model(run_folder):
    names = ("double-cv", "quadratic-double-cv", "disarm", "rodeo", "surrogate-quadratic-double-cv", "relax")
    found = measure(run_folder, *names, samples=(2, 3), draws=60, fit_steps=20)
    by_place = {(one.estimator, one.samples): one for one in found}
    assert [one.estimator for one in found if one.samples == 2] == ["rloo", *names]
    assert ("disarm", 3) not in by_place
    for samples in (2, 3):
        rloo = by_place["rloo", samples]
        assert (rloo.relative, rloo.steps, rloo.trained_with) == (1, 40, "double-cv")
        assert by_place["double-cv", samples].relative < 1
        assert by_place["quadratic-double-cv", samples].variance < by_place["double-cv", samples].variance
    assert by_place["rloo", 3].variance < by_place["rloo", 2].variance
    assert all(0 < one.standard_error < one.variance for one in found)
    assert by_place["relax", 2].evaluations == 6


def test_one_program_serves_two_models(run_folder, tmp_path):
    run(replace(SETTINGS, steps=20, evaluate_every=20), tmp_path / "other")
    frozen._program.clear_cache()
    for folder in (run_folder, tmp_path / "other"):
        measure(folder, "rloo", draws=4)
    assert frozen._program._cache_size() == 1


def test_all_but_r_star_can_be_measured():
    assert set(estimators.names()) - set(trainable()) == {"r-star", "carms", "disarm-tree"}, (
        "they need more than a binary f"
    )


def test_the_command_writes_numbers_and_tables(run_folder, tmp_path, capsys):
    out = tmp_path / "variance"
    arguments = ["--estimators", "double-cv", "--samples", "2", "--draws", "8", "--out", str(out)]
    cli.main(["variance", str(run_folder), *arguments])
    assert "x RLOO" in capsys.readouterr().out
    numbers = json.loads((out / "variance.json").read_text())
    assert numbers["checksum"]
    assert [one["estimator"] for one in numbers["measured"]] == ["rloo", "double-cv"]
    assert "### digits, bernoulli likelihood, 40 steps" in (out / "variance.md").read_text()


def test_a_command_that_was_cut_goes_on(run_folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "variance"
    common = ["--samples", "2", "--draws", "8", "--out", str(out)]
    cli.main(["variance", str(run_folder), "--estimators", "double-cv", *common])
    before = json.loads((out / "variance.json").read_text())["measured"]
    measured_now = []
    program = frozen._program
    monkeypatch.setattr(frozen, "_program", lambda s, *rest: (measured_now.append(s.estimator), program(s, *rest))[1])
    cli.main(["variance", str(run_folder), "--estimators", "double-cv", "disarm", *common])
    after = json.loads((out / "variance.json").read_text())["measured"]
    assert measured_now == ["disarm"]
    assert after[:2] == before
    assert [one["estimator"] for one in after] == ["rloo", "double-cv", "disarm"]
    with pytest.raises(SystemExit, match="2"):
        cli.main(["variance", str(run_folder), "--estimators", "disarm", *common, "--draws", "9"])
    assert "was measured with --draws 8, got 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"draws": 8', "wanted a JSON object"),
        ("[]", "wanted a JSON object"),
        (
            '{"draws": 8, "fit_steps": 2000, "measured": [{"data": "mnist"}]}',
            "variance.json, field measured[0]: Object missing required field `run`",
        ),
        (
            seal_document({"draws": 8, "fit_steps": 2000, "measured": []}).decode().replace("2000", "2001"),
            "variance.json, field checksum: found a content with checksum",
        ),
    ],
)
def test_numbers_that_cannot_be_read_are_named(run_folder, tmp_path, capsys, content, said):
    (tmp_path / "variance.json").write_text(content)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["variance", str(run_folder), "--draws", "8", "--out", str(tmp_path)])
    assert said in capsys.readouterr().err
    assert (tmp_path / "variance.json").read_text() == content


def test_a_cell_that_was_not_measured_is_empty():
    def one(estimator, samples, relative):
        return Measurement("run", "digits", "gaussian", 10, "rloo", estimator, samples, samples, 2.0, 0.1, relative)

    table = tables([one("rloo", 2, 1.0), one("disarm", 2, 0.5), one("rloo", 3, 1.0)])
    assert "### digits, gaussian likelihood, 10 steps" in table
    columns = [f"K = {samples}{what}" for samples in (2, 3) for what in ("", ", / RLOO", ", times evaluations")]
    assert f"| estimator | {' | '.join(columns)} |" in table
    assert "| disarm | 2 ± 0.1 | 0.500 | 4 |  |  |  |" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimators", "r-star"], "unknown estimator 'r-star'"),
        (["--draws", "1"], "--draws must be at least 2, got 1"),
        (["--samples", "1"], "--samples must be at least 2, got 1"),
    ],
)
def test_what_cannot_be_is_one_line(run_folder, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["variance", str(run_folder), "--out", str(tmp_path / "out"), *arguments])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_folder_without_a_run(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["variance", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "holds no training run" in capsys.readouterr().err


def test_a_run_with_parallel_seeds_is_measured_at_its_first_seed(tmp_path):
    settings = replace(SETTINGS, network="linear", latents=3, steps=4, evaluate_every=4, seeds=2, parallel_seeds=True)
    run(settings, tmp_path / "run")
    run(replace(settings, seed=1, seeds=1, parallel_seeds=False), tmp_path / "alone")
    (together,), (alone,) = (measure(tmp_path / name, "rloo", draws=8) for name in ("run", "alone"))
    assert together.variance == pytest.approx(alone.variance, rel=1e-3)


def test_runs_one_after_the_other_are_named(tmp_path, capsys):
    settings = replace(SETTINGS, network="linear", latents=3, seeds=2)
    train_settings.write(tmp_path / "run", settings)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["variance", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
    assert f"holds several runs; name one of them, such as {tmp_path / 'run'}/seed-1" in capsys.readouterr().err


def test_two_commands_cannot_write_one_folder(tmp_path, capsys):
    with locked(tmp_path), pytest.raises(SystemExit, match="2"):
        cli.main(["variance", "run", "--out", str(tmp_path)])
    assert f"another process works in {tmp_path}" in capsys.readouterr().err


def test_two_layers_are_measured(tmp_path):
    settings = replace(SETTINGS, network="two-layer", latents=6, estimator="rloo", steps=4, evaluate_every=4)
    run(settings, tmp_path / "run")
    names = ("vimco", "double-cv", "disarm", "quadratic-double-cv")
    found = {one.estimator: one for one in measure(tmp_path / "run", *names, draws=100)}
    assert list(found) == ["rloo", "double-cv", "quadratic-double-cv"]
    assert found["quadratic-double-cv"].relative < found["double-cv"].relative < 0.9
    assert found["rloo"].network == "two-layer"


def test_a_bound_is_measured(tmp_path, capsys):
    settings = replace(
        SETTINGS, objective="iwae", bound_samples_train=4, estimator="vimco", samples=1, steps=4, evaluate_every=4
    )
    run(settings, tmp_path / "run")
    names = ["--estimators", "vimco-double-cv", "rloo", "double-cv"]
    cli.main(["variance", str(tmp_path / "run"), *names, "--samples", "2", "--draws", "100", "--out", str(tmp_path)])
    assert "x VIMCO" in capsys.readouterr().out
    measured = json.loads((tmp_path / "variance.json").read_text())["measured"]
    found = {one["estimator"]: one for one in measured}
    assert list(found) == ["vimco", "vimco-double-cv", "rloo", "double-cv"]
    assert {one["evaluations"] for one in measured} == {8}
    assert found["vimco-double-cv"]["relative"] < 0.9 < 2 < found["rloo"]["relative"]
    assert "### digits, bernoulli likelihood, 4 steps, bound with 4 samples" in (tmp_path / "variance.md").read_text()
    assert "/ VIMCO |" in (tmp_path / "variance.md").read_text()
