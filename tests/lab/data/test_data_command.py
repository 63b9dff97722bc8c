"""`doublecv data`: the table, with everything, with nothing, and with broken files."""

import dataclasses
import os
import re
import socket
import subprocess
import sys

import pytest
from small_sets import TEST_NAME, TRAIN_NAME, SmallSet

from doublecv.lab.cli import main
from doublecv.lab.data import NAMES
from doublecv.lab.data.catalogue import SETS
from doublecv.lab.data.command import set_status


@pytest.fixture
def nothing_here(tmp_path, monkeypatch):
    """An empty cache, no folder named, no package installed, and no network."""
    monkeypatch.delenv("DOUBLECV_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setitem(SETS, "fashion-mnist", dataclasses.replace(SETS["fashion-mnist"], system_folder=None))

    def no_network(*arguments):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    return tmp_path


def lines_of(output):
    """State and place of each set in the table."""
    rows = re.findall(r"^ *(\S+) +(intact|broken|incomplete|not here) *(.*?) *$", output, re.MULTILINE)
    return {name: (state, where) for name, state, where in rows}


def test_nothing_there(nothing_here, capsys):
    main(["data"])
    captured = capsys.readouterr()
    lines = lines_of(captured.out)
    assert tuple(lines) == NAMES
    assert lines["digits"] == ("intact", "scikit-learn")
    assert lines["mnist"] == ("not here", "downloaded at first use from ossci-datasets.s3.amazonaws.com")
    assert lines["omniglot"] == ("not here", "downloaded at first use from github.com")
    assert captured.err == ""
    assert not (nothing_here / "cache").exists()


def test_broken_and_incomplete_sets_are_told_apart(nothing_here, capsys):
    root = nothing_here / "data [red]"
    for name in ("mnist", "fashion-mnist", "omniglot"):
        (root / name).mkdir(parents=True)
    (root / "mnist" / TRAIN_NAME).write_bytes(b"cut")
    (root / "fashion-mnist" / TRAIN_NAME).write_bytes(b"cut")
    (root / "fashion-mnist" / f"{TEST_NAME}.gz").write_bytes(b"cut")
    (root / "omniglot" / "chardata.mat").write_bytes(b"MATLAB 5.0")
    main(["data", "--data-dir", str(root)])
    output = capsys.readouterr().out
    lines = lines_of(output)
    assert lines["mnist"] == ("incomplete", "")
    assert lines["fashion-mnist"] == ("broken", str(root / "fashion-mnist"))
    assert lines["omniglot"] == ("broken", str(root / "omniglot" / "chardata.mat"))
    problems = output.splitlines()[-3:]
    assert problems[0].startswith(f"{root / 'mnist' / TEST_NAME}: expected it, packed or not")
    assert problems[1].startswith(
        f"{root / 'fashion-mnist' / TRAIN_NAME}: expected at most 47040016 bytes with sha256:c59f468a"
    )
    assert "found 3 bytes with sha256:" in problems[1]
    assert problems[2].startswith(
        f"{root / 'omniglot' / 'chardata.mat'}: expected at most 268435456 bytes with git:016a3536"
    )


def test_intact_set(nothing_here):
    small = SmallSet()
    folder = small.write(nothing_here)
    assert set_status(small.set, nothing_here, nothing_here / "cache") == ("small", "intact", str(folder), "")


@pytest.mark.parametrize("by_variable", [True, False])
def test_folder_that_is_not_there(nothing_here, capsys, monkeypatch, by_variable):
    nowhere = str(nothing_here / "nowhere")
    if by_variable:
        monkeypatch.setenv("DOUBLECV_DATA", nowhere)
    with pytest.raises(SystemExit) as stop:
        main(["data"] if by_variable else ["data", "--data-dir", nowhere])
    assert stop.value.code == 2
    named = "$DOUBLECV_DATA" if by_variable else "--data-dir"
    captured = capsys.readouterr()
    assert captured.err == f"doublecv data: error: {named} names {nowhere}, which is not a folder\n"
    assert captured.out == ""


def test_names_are_there_without_the_libraries_that_read():
    code = (
        "import sys; from doublecv.lab.data import NAMES\n"
        "print(sorted({'jax', 'sklearn', 'scipy', 'pooch', 'requests', 'rich'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"


def test_real_sets(capsys, monkeypatch):
    root = os.environ.get("DOUBLECV_DATA")
    if not root:
        pytest.skip("DOUBLECV_DATA is not set: the real data sets are not listed")
    monkeypatch.setenv("COLUMNS", "200")
    main(["data"])
    lines = lines_of(capsys.readouterr().out)
    for name in SETS:
        if os.path.isdir(os.path.join(root, name)):
            assert lines[name][0] == "intact"
            assert lines[name][1].startswith(os.path.join(root, name))
