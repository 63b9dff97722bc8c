"""The command line: help without JAX, one-line errors, and the files of a run."""

import csv
import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest

from doublecv import __version__
from doublecv.lab.cli import COMMANDS, main, settings_class
from doublecv.lab.common.options import parse

SMALL = ["toy", "--dimension", "2", "--iterations", "4", "--every", "2", "--seeds", "1", "--draws", "10"]


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def error_of(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    main([*SMALL, "--estimators", "rloo", "double-cv", "--out", str(folder)])
    return folder


def test_help_lists_the_commands_and_imports_nothing_heavy():
    result = python(
        "import sys; from doublecv.lab.cli import main; main(['--help'])\n"
        "print(sorted({'jax', 'torch', 'matplotlib', 'optax', 'rich'} & sys.modules.keys()))"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
    assert all(f"  {name} " in result.stdout for name in COMMANDS)


def test_help_of_toy_comes_without_jax():
    result = python(
        "import sys\nfrom doublecv.lab.cli import main\n"
        "try:\n    main(['toy', '--help'])\n"
        "finally:\n    print(sorted({'jax', 'matplotlib', 'optax'} & sys.modules.keys()))"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
    assert "--dimension" in result.stdout


def test_no_arguments_are_a_question_for_help(capsys):
    main([])
    assert capsys.readouterr().out.startswith("usage: doublecv ")


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"doublecv {__version__}\n"


def test_module_is_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "doublecv", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, f"doublecv {__version__}\n")


def test_unknown_command(capsys):
    assert error_of(["toys"], capsys) == "doublecv: error: unknown command 'toys'; did you mean 'toy'?\n"
    assert "choose from toy, " in error_of(["quux"], capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimators", "rloo", "dubble-cv"], "did you mean 'double-cv'?"),
        (["--samples", "3"], "samples must be a multiple of 2 for DisARM, got 3"),
        (["--draws", "1"], "draws must be at least 2, got 1"),
    ],
)
def test_bad_settings_are_one_line_and_leave_no_folder(arguments, message, capsys, tmp_path):
    error = error_of([*SMALL, *arguments, "--out", str(tmp_path / "run")], capsys)
    assert error.startswith("doublecv toy: error: ")
    assert message in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["jax", "matplotlib", "rich", "optax"])
def test_without_the_lab_extra_it_says_what_to_install(package, tmp_path):
    result = python(
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from doublecv.lab.cli import main; main([*{SMALL}, '--out', {str(tmp_path / 'run')!r}])"
    )
    assert result.returncode == 2, result.stderr
    wanted = f"doublecv toy: error: {package} is not installed; the laboratory needs: pip install 'doublecv[lab]'\n"
    assert result.stderr == wanted
    assert list(tmp_path.iterdir()) == []


def test_metrics_are_tidy(run_folder):
    with (run_folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "seed",
        "estimator",
        "iteration",
        "variance",
        "objective",
        "mean_probability",
        "alpha",
    ]
    keys = [(row["seed"], row["estimator"], row["iteration"]) for row in rows]
    assert keys == [("1", name, str(step)) for name in ("rloo", "double-cv") for step in (0, 2, 4)]
    assert all((row["alpha"] == "") == (row["estimator"] == "rloo") for row in rows)
    assert all(float(row["variance"]) > 0 for row in rows)


def test_config_holds_the_settings(run_folder):
    settings = json.loads((run_folder / "config.json").read_text())["settings"]
    assert settings["dimension"] == 2
    assert settings["estimators"] == ["rloo", "double-cv"]
    assert "out" not in settings


def test_figures_are_there(run_folder):
    assert {"variance.png", "variance.svg", "objective.png", "mean-probability.svg", "alpha.png"} <= {
        path.name for path in run_folder.iterdir()
    }


def test_a_folder_with_another_run_is_left_as_it_is(run_folder, capsys):
    before = {path.name: path.read_bytes() for path in run_folder.iterdir()}
    error = error_of([*SMALL, "--dimension", "3", "--out", str(run_folder)], capsys)
    assert "is not empty; name a new folder, or remove this one" in error
    assert {path.name: path.read_bytes() for path in run_folder.iterdir()} == before


def test_without_a_folder_the_table_is_printed_and_nothing_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main([*SMALL, "--estimators", "rloo"])
    printed = capsys.readouterr().out
    assert "D = 2, K = 2, 4 iterations, 1 seed" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(capsys, monkeypatch, tmp_path):
    from doublecv.lab.common import files

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_config", full)
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, "--estimators", "rloo", "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert "doublecv toy: error: [Errno 28] No space left on device\n" in capsys.readouterr().err


def test_interrupt_is_one_line(capsys, monkeypatch):
    from doublecv.lab.toy import run as toy_run

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(toy_run, "_curves", interrupt)
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, "--estimators", "rloo"])
    assert stop.value.code == 130
    assert capsys.readouterr().err == "doublecv toy: stopped\n"


def examples(text):
    """The command lines below "example:"."""
    return re.findall(r"^example:\n  doublecv (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_one_that_a_person_likes(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for ugly in ("None", "default: )", "False", "STR", "INT", "==SUPPRESS=="):
        assert ugly not in shown
    assert all(len(line) <= 100 for line in shown.partition("\nexample:")[0].splitlines())
    (example,) = examples(shown)
    words = shlex.split(example)
    assert words[0] == name
    assert parse(settings_class(name), f"doublecv {name}", words[1:])
    helps = re.findall(r"^  (--[\w-]+|[A-Z]+)", shown, re.MULTILINE)
    assert len(helps) >= len(fields(settings_class(name)))


def test_the_programs_own_help_has_an_example_that_it_takes(capsys):
    main(["--help"])
    ((name, *words),) = map(shlex.split, examples(capsys.readouterr().out))
    parse(settings_class(name), f"doublecv {name}", words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy", "--dimensoin", "3"], "unknown option '--dimensoin'; did you mean '--dimension'?"),
        (["toy", "--samples"], "--samples needs a value"),
        (["toy", "--samples", "two"], "--samples must be a whole number, got 'two'"),
        (["toy", "--samples", "9" * 5000], "--samples must be a whole number, got '999"),
        (["toy", "--learning-rate", "fast"], "--learning-rate must be a number, got 'fast'"),
        (["toy", "--samples", "1000000"], "--samples must be at most 10,000, got 1000000"),
        (["toy", "--dimension", "1000000000"], "--dimension must be at most 1,000,000, got 1000000000"),
        (["toy", "--dimension", "1000000", "--samples", "10000"], "GB of memory with --samples 10000"),
        (["toy", "--dimension", "1000000", "--iterations", "9999999"], "GB of memory with 1,000,001 records"),
        (["toy", "--out", ""], "--out must be a path, got ''"),
        (["toy", "stray"], "unexpected argument 'stray'"),
        (["train", "--likelihood", "gausian"], "unknown --likelihood value 'gausian'; did you mean 'gaussian'?"),
        (["variance", "run"], "--out must be given"),
        (["report"], "DIR must be given"),
        (["--hlep"], "unknown option '--hlep'; did you mean '--help'?"),
    ],
)
def test_wrong_words_are_one_line(arguments, message, capsys):
    assert message in error_of(arguments, capsys)


def test_arguments_are_checked_before_jax_is_imported():
    large = ["train", "--samples", "1000000"]
    for words in (["train", "--steps", "0"], large, ["toy", "--draws", "1"], ["bench", "--rounds", "0"]):
        result = python(
            f"import sys\nfrom doublecv.lab.cli import main\ntry:\n    main({words})\n"
            "finally:\n    print(sorted({'jax', 'matplotlib', 'optax'} & sys.modules.keys()))"
        )
        assert (result.returncode, result.stdout) == (2, "[]\n"), result.stderr


def test_variance_without_a_run(tmp_path, capsys):
    assert "RUN must be given" in error_of(["variance", "--out", str(tmp_path / "out")], capsys)
