"""`doublecv reproduce` on the command line: its list, and errors in one line."""

import subprocess
import sys

import pytest

from doublecv.lab.cli import main
from doublecv.lab.sweep import command
from doublecv.lab.sweep.plan import TARGETS, cores


def error_of(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *arguments])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("doublecv reproduce: error: ")
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure-1", "--seeds", "2147483648"], "--seeds must be at most 2,147,483,647, got 2147483648"),
        (["figure-1", "--steps", "9" * 30], "--steps must be at most 1,000,000,000, got 999999"),
        ([], "name a target, or all; --list shows them"),
        (["tabel-k2-bernoulli"], "unknown target 'tabel-k2-bernoulli'; did you mean 'table-k2-bernoulli'?"),
        (["quux"], "unknown target 'quux'; choose from figure-1, "),
        (["figure-1", "--only", "datasets=mnist"], "unknown --only key 'datasets'; did you mean 'dataset'?"),
        (["figure-1", "--only", "dataset"], "--only must be KEY=VALUE,... with a key among"),
        (["figure-1", "--only", "dataset=mnist", "dataset=omniglot"], "--only must name dataset once"),
        (
            ["figure-1", "--only", "estimator=rloo,dubble-cv"],
            "--only estimator 'dubble-cv'; did you mean 'double-cv'?",
        ),
        (["figure-1", "--only", "samples=3"], "unknown --only samples '3'; choose from 2, 4"),
        (["figure-1", "--only", "dataset=mnist"], "nothing is left of figure-1 with --only dataset=mnist"),
        (["table-k2-bernoulli", "--only", "estimator=r-star"], "--estimator r-star needs the exact mean of f"),
        (["figure-1", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["figure-1", "--seeds", "1", "1"], "--seeds must not repeat a value, got 1 1"),
        (["figure-1", "--seeds", "2", "3"], "the toy problem has the seeds 1, 2, ...; got --seeds 2 3"),
        (["figure-1", "--cluster", "one:1", "two:2"], "unexpected argument 'two:2'"),
    ],
)
def test_what_cannot_work_is_one_line_and_leaves_no_folder(arguments, message, capsys, tmp_path):
    folder = [] if not arguments else ["--out", str(tmp_path / "sweep")]
    assert message in error_of([*arguments, *folder], capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_must_be_named(capsys):
    assert "--out DIR is missing" in error_of(["figure-1"], capsys)


def test_a_file_is_no_folder(capsys, tmp_path):
    (tmp_path / "sweep").write_text("")
    assert "is a file; name a folder" in error_of(["figure-1", "--out", str(tmp_path / "sweep")], capsys)


def test_without_ray_the_error_names_the_extra(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    error = error_of(["figure-1", "--out", str(tmp_path / "sweep"), "--cluster"], capsys)
    assert "--cluster needs Ray, which is not installed: pip install 'doublecv[cluster]'" in error
    assert list(tmp_path.iterdir()) == []


def test_help_comes_without_jax():
    code = (
        "import sys\nfrom doublecv.lab.cli import main\n"
        "try:\n    main(['reproduce', '--help'])\n"
        "finally:\n    print(sorted({'jax', 'ray', 'matplotlib'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "[]"
    assert "--cluster" in found.stdout


def test_the_list_has_all_targets_with_their_runs_and_times(capsys, monkeypatch):
    monkeypatch.setattr(command, "multiplications_per_second", lambda: 1e10)
    monkeypatch.setenv("COLUMNS", "160")
    main(["reproduce", "--list", "--steps", "20000", "--seeds", "1", "2"])
    captured = capsys.readouterr()
    assert captured.err == ""
    rows = {line.split()[0]: line.split() for line in captured.out.splitlines() if line.strip()}
    assert {*TARGETS, "all"} <= rows.keys()
    assert "48" in rows["table-k2-bernoulli"]
    assert "196" in rows["all"]
    # A step of RLOO, K = 2, nonlinear, has 3 * 100 * 3 * 236,800 multiplications, that is 21 ms at this speed.
    main(["reproduce", "table-k2-bernoulli", "--list", "--seeds", "1", "--only", "estimator=rloo", "network=nonlinear"])
    times = [
        line.split()[-2:] for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["table-k2-bernoulli"]
    ]
    days = 3 * 1_000_000 * 0.0213 / 86400 / min(3, cores())
    assert times[0][1] == "h"
    assert 24 * days < float(times[0][0]) < 1.2 * 24 * days


def test_the_list_needs_no_writable_home(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    measured = subprocess.CompletedProcess([], 0, stdout="20.0\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: measured)
    main(["reproduce", "--list", "figure-1"])
    captured = capsys.readouterr()
    assert captured.err == "measuring a training step ...\n"
    assert "figure-1" in captured.out
