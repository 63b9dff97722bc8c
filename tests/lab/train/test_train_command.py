"""Runs as functions and as a command, in one process: folders, seeds, errors in one line."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from doublecv.lab.cli import main
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.records import LineReader
from doublecv.lab.train import settings as train_settings
from doublecv.lab.train.loop import run
from doublecv.lab.train.results import Metrics, NotFinite, table
from tiny_images import tiny_dataset, tiny_settings

SMALL = [
    "train",
    "--network",
    "linear",
    "--latents",
    "3",
    "--steps",
    "4",
    "--record-every",
    "2",
    "--bound-samples",
    "2",
]


def error_of(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several") / "run"
    settings = tiny_settings(seeds=2)
    results = run(settings, folder, dataset=tiny_dataset())
    return folder, settings, results


def test_seeds_have_folders_of_their_own(several):
    folder, _, results = several
    assert [result.seed for result in results] == [1, 2]
    for result in results:
        of_seed = folder / f"seed-{result.seed}"
        records = list(LineReader(of_seed / "metrics.jsonl"))
        assert list(result.records) == records
        assert train_settings.is_finished(of_seed)
        assert (of_seed / "pictures.png").exists()
    assert results[0].final["test_elbo"] != results[1].final["test_elbo"]
    assert train_settings.is_finished(folder)


def test_results_hold_curves_and_last_values(several):
    result = several[2][0]
    steps, variances = result.curve("encoder_variance")
    assert steps == [4, 6, 8, 12]
    assert all(value > 0 for value in variances)
    assert result.final["step"] == 12
    assert result.final.keys() >= {"train_elbo", "validation_elbo", "test_elbo", "test_bound_2", "test_bound_5"}


def test_results_are_a_table_and_a_figure(several, tmp_path):
    results = several[2]
    console = Console(width=80, file=io.StringIO())
    console.print(table(results))
    printed = console.file.getvalue()
    assert "digits, bernoulli likelihood, linear, K = 2, 12 steps" in printed
    assert "…" not in printed
    assert all(f"{result.final['test_elbo']:.2f}" in printed for result in results)


def test_without_a_folder_nothing_is_written_and_the_numbers_are_the_same(several, tmp_path, monkeypatch):
    _, settings, results = several
    monkeypatch.chdir(tmp_path)
    (alone,) = run(replace(settings, seed=1, seeds=1, parallel_seeds=False), dataset=tiny_dataset())
    assert alone.records == results[0].records
    assert list(tmp_path.iterdir()) == []


def test_parallel_seeds_share_a_folder(several, tmp_path):
    _, settings, results = several
    settings = replace(settings, parallel_seeds=True)
    together = run(settings, tmp_path / "run", dataset=tiny_dataset())
    for result, alone in zip(together, results, strict=True):
        assert result.seed == alone.seed
        assert result.curve("elbo")[0] == alone.curve("elbo")[0]
        np.testing.assert_allclose(result.curve("elbo")[1], alone.curve("elbo")[1], rtol=1e-4)
        assert (tmp_path / "run" / f"pictures-seed-{result.seed}.png").exists()
    again = run(settings, tmp_path / "run", dataset=tiny_dataset())
    assert [result.records for result in again] == [result.records for result in together]


def content(folder):
    """The bytes of the metrics and of the last checkpoint."""
    files = [folder / "metrics.jsonl", *sorted(max(folder.glob("checkpoint-*")).iterdir())]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize("short", [3, 6, 8, 11], ids=["before-a-checkpoint", "evaluated", "at-a-checkpoint", "between"])
def test_an_extended_run_is_a_longer_run(short, tmp_path):
    """Metrics and checkpoint have the same bytes, whether or not the longer run records anything at the old end."""
    settings = tiny_settings(steps=14)
    run(settings, tmp_path / "long", dataset=tiny_dataset())
    run(replace(settings, steps=short), tmp_path / "run", dataset=tiny_dataset())
    assert train_settings.is_finished(tmp_path / "run")
    (result,) = run(settings, tmp_path / "run", dataset=tiny_dataset())
    assert content(tmp_path / "run") == content(tmp_path / "long")
    assert train_settings.read(tmp_path / "run").steps == 14
    assert result.final["step"] == 14


def test_seeds_are_extended_one_by_one(tmp_path):
    settings = tiny_settings(steps=5, seeds=2)
    run(settings, tmp_path / "run", dataset=tiny_dataset())
    results = run(replace(settings, steps=9), tmp_path / "run", dataset=tiny_dataset())
    (alone,) = run(replace(settings, steps=9, seed=2, seeds=1, parallel_seeds=False), dataset=tiny_dataset())
    assert results[1].records == alone.records
    with pytest.raises(InputError, match="was started with --steps 9, got 5"):
        run(settings, tmp_path / "run", dataset=tiny_dataset())


def test_the_command_extends_a_run(tmp_path):
    folder = tmp_path / "run"
    main([*SMALL, "--out", str(folder)])
    main(["train", "--resume", str(folder), "--steps", "6"])
    main([*SMALL, "--steps", "6", "--out", str(tmp_path / "long")])
    assert content(folder) == content(tmp_path / "long")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", str(2**31)], "--seed must be at most 2,147,483,647, got 2147483648"),
        (["--seed", str(2**31 - 1), "--seeds", "2"], "--seed plus --seeds must be at most 2147483648"),
        (["--steps", "9" * 23], "--steps must be at most 2,147,483,647, got 99999999999999999999999"),
        (["--samples", "1000000"], "--samples 1000000 needs about"),
        (["--latents", "2000000000"], "--latents 2000000000 needs about"),
        (["--bound-samples", "2000000000"], "--bound-samples 2000000000 needs about"),
        (["--seeds", "1000000000", "--parallel-seeds"], "and 1000000000 parallel seeds"),
        (["--devices", "100000", "--batch", "100000"], "--devices must be at most 256, got 100000"),
        (["--coordinator", "nowhere"], "--coordinator must be HOST:PORT, the address of process 0, got 'nowhere'"),
        (["--processes", "2"], "--processes 2 needs --coordinator HOST:PORT"),
        (["--process", "1"], "--process must be less than --processes 1, got 1"),
    ],
)
def test_absurd_numbers_are_answered_before_anything_is_allocated(arguments, message, capsys, tmp_path):
    assert message in error_of(["train", *arguments, "--out", tmp_path / "run"], capsys)


def test_other_settings_in_the_same_folder(several):
    folder, settings, _ = several
    with pytest.raises(InputError, match="was started with --samples 2, got 3; leave it out, or start a new run"):
        run(replace(settings, samples=3), folder, dataset=tiny_dataset())


def test_other_data_under_the_same_name(tmp_path):
    settings = tiny_settings(steps=4)
    run(settings, tmp_path / "run", dataset=tiny_dataset())
    (tmp_path / "run" / "config.json").unlink()
    other = replace(tiny_dataset(), train=tiny_dataset().train + 1)
    with pytest.raises(InputError, match="belongs to a different run: training images crc32 is"):
        run(settings, tmp_path / "run", dataset=other)


def test_a_run_that_blows_up_names_the_step_and_what_is_kept(tmp_path):
    settings = tiny_settings(learning_rate=1e30, likelihood="gaussian", record_every=1, checkpoint_every=1)
    with pytest.raises(NotFinite) as error:
        run(settings, tmp_path / "run", dataset=tiny_dataset())
    kept = sorted((tmp_path / "run").glob("checkpoint-*"))
    if kept:
        assert f"the last good checkpoint is {kept[-1]}" in str(error.value)
    else:
        assert "there is no checkpoint yet" in str(error.value)
    assert "was not finite at step" in str(error.value)
    assert "a smaller --learning-rate than 1e+30 may help" in str(error.value)


def test_the_metrics_are_locked_while_a_run_goes_on(tmp_path):
    pytest.importorskip("fcntl")
    first = Metrics(tmp_path)
    with pytest.raises(InputError, match="another process works in"):
        Metrics(tmp_path)
    first.close()
    Metrics(tmp_path).close()


def test_metrics_that_were_cut_off(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(InputError, match="has 12 bytes, the checkpoint says 20: it was cut off"):
        Metrics(tmp_path, 20)


def test_a_complete_run_that_lost_its_last_lines_is_resumed(tmp_path):
    """What is missing after the last checkpoint is made again; what is missing before it is named."""
    folder, path = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    run(tiny_settings(), folder, dataset=tiny_dataset())
    complete = path.read_bytes()
    lines = complete.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    (result,) = run(tiny_settings(), folder, dataset=tiny_dataset())
    assert path.read_bytes() == complete
    assert "test_elbo" in result.final
    path.write_bytes(b"".join(lines[:-2]))
    with pytest.raises(InputError, match=r"bytes, the checkpoint says [0-9]+: it was cut off"):
        run(tiny_settings(), folder, dataset=tiny_dataset())
    path.unlink()
    with pytest.raises(InputError, match="has 0 bytes, the checkpoint says"):
        run(tiny_settings(), folder, dataset=tiny_dataset())


def test_a_folder_whose_name_looks_like_markup(capsys, tmp_path, monkeypatch):
    """`--out 'a[/b]'` writes, resumes and extends the run in that folder."""
    monkeypatch.chdir(tmp_path)
    main([*SMALL, "--out", "a[/b]"])
    assert train_settings.is_finished(tmp_path / "a[" / "b]")
    main(["train", "--resume", "a[/b]", "--steps", "6"])
    assert train_settings.read(tmp_path / "a[" / "b]").steps == 6
    assert "a[/b]" in capsys.readouterr().out


def test_a_changed_digit_in_the_metrics_is_noticed(tmp_path):
    metrics = Metrics(tmp_path)
    metrics.append([{"kind": "train", "step": 1, "seed": 1, "elbo": -12.5}])
    length = metrics.sync()
    metrics.close()
    Metrics(tmp_path, length).close()
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace("12.5", "13.5"))
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1, field checksum: found another"):
        Metrics(tmp_path, length)


def test_unwritable_folders(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert f"--out {tmp_path / 'file' / 'run'} cannot be written to (Not a directory)" in error_of(
        [*SMALL, "--out", tmp_path / "file" / "run"], capsys
    )
    assert f"--out {tmp_path / 'file'} cannot be written to (File exists)" in error_of(
        [*SMALL, "--out", tmp_path / "file"], capsys
    )


def test_what_cannot_be_gone_on_with(capsys, several, tmp_path):
    folder = several[0]
    assert f"{tmp_path} holds no training run: there is no" in error_of(["train", "--resume", tmp_path], capsys)
    assert "was started with --samples 2, got 4; leave it out" in error_of(
        ["train", "--resume", folder, "--samples", "4"], capsys
    )
    # A value that is the default of a new run contradicts the run's own just as well.
    assert "was started with --steps 12, got 10; only more steps can be made" in error_of(
        ["train", "--resume", folder, "--steps", "10"], capsys
    )
    assert "was started with --latents 3, got 200; leave it out" in error_of(
        ["train", "--resume", folder, "--latents", "200"], capsys
    )
    assert "--out and --resume exclude each other" in error_of(
        ["train", "--resume", folder, "--out", tmp_path / "new"], capsys
    )
    assert "holds a run that is finished; to continue it: doublecv train --resume" in error_of(
        [*SMALL, "--out", folder / "seed-1"], capsys
    )
    (tmp_path / "settings.json").write_text("{")
    assert "settings.json cannot be read" in error_of(["train", "--resume", tmp_path], capsys)


def test_a_run_that_is_not_finished_is_not_begun_again(capsys, tmp_path):
    train_settings.write(tmp_path / "run", tiny_settings())
    assert "holds a run that is not finished; to continue it: doublecv train --resume" in error_of(
        [*SMALL, "--out", tmp_path / "run"], capsys
    )


def test_help_comes_without_jax():
    import subprocess
    import sys

    code = (
        "import sys\nfrom doublecv.lab.cli import main\n"
        "try:\n    main(['train', '--help'])\n"
        "finally:\n    print(sorted({'jax', 'matplotlib', 'optax', 'sklearn'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
    assert "--decoder-samples" in result.stdout


def test_the_importance_weighted_bound_is_trained_and_resumed(tmp_path, capsys):
    """The command takes VIMCO's double control variate, one group of S samples; a resumed run has the same bytes."""
    bound = ["--objective", "iwae", "--bound-samples-train", "3", "--batch", "20", "--checkpoint-every", "2"]
    main([*SMALL, *bound, "--out", str(tmp_path / "whole")])
    assert "bound" in capsys.readouterr().out
    held = train_settings.read(tmp_path / "whole")
    assert (held.objective, held.bound_samples_train, held.estimator) == ("iwae", 3, "vimco-double-cv")
    records = list(LineReader(tmp_path / "whole" / "metrics.jsonl"))
    assert records[0].keys() >= {"bound", "encoder_variance", "current", "crossed", "own", "weight"}
    last = {name: value for record in records for name, value in record.items()}
    assert last["train_bound_3"] >= last["train_elbo"]
    assert last.keys() >= {"validation_bound_3", "test_bound_3", "test_bound_2", "test_elbo"}
    main([*SMALL, *bound, "--steps", "2", "--out", str(tmp_path / "part")])
    main(["train", "--resume", str(tmp_path / "part"), "--steps", "4"])
    resumed = list(LineReader(tmp_path / "part" / "metrics.jsonl"))
    assert [one for one in resumed if one["kind"] == "train"] == [one for one in records if one["kind"] == "train"]


def test_the_bound_without_options_takes_its_own_estimator(tmp_path):
    main([*SMALL, "--objective", "iwae", "--batch", "20", "--out", str(tmp_path / "run")])
    held = train_settings.read(tmp_path / "run")
    assert (held.estimator, held.samples, held.bound_samples_train) == ("vimco-double-cv", 1, 8)
