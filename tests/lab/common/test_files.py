"""Files are complete or absent, links are not followed, locks end with their process, paths stay inside."""

import os
import subprocess
import sys

import pytest

from doublecv.lab.common.errors import InputError, unknown_name
from doublecv.lab.common.files import inside, is_locked, locked, write_atomically


def test_a_file_is_replaced_and_nothing_else_left(tmp_path):
    path = tmp_path / "numbers.json"
    for content in (b"first", b"second"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["numbers.json"]


@pytest.mark.parametrize("name", ["numbers.json", ".numbers.json-partial"])
def test_a_link_is_replaced_and_not_written_through(tmp_path, name):
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(precious)
    write_atomically(folder / "numbers.json", b"new")
    assert precious.read_text() == "kept"
    assert (folder / "numbers.json").read_bytes() == b"new"
    assert not (folder / "numbers.json").is_symlink()
    assert os.listdir(folder) == ["numbers.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "numbers.json"
    path.write_bytes(b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["numbers.json"]


@pytest.mark.parametrize("relative", ["/etc", "..", "a/../../b", "", "a\\b", "a\0b"])
def test_paths_that_leave_the_folder_are_refused(tmp_path, relative):
    with pytest.raises(InputError, match="does not stay inside"):
        inside(tmp_path, relative)


def test_links_below_the_folder_are_refused_and_above_it_allowed(tmp_path):
    (tmp_path / "real" / "runs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert inside(tmp_path / "link", "runs/one") == tmp_path / "link" / "runs" / "one"
    (tmp_path / "real" / "out").symlink_to(tmp_path)
    with pytest.raises(InputError, match="symbolic link"):
        inside(tmp_path / "link", "out/one")


def test_a_lock_ends_with_its_process(tmp_path):
    assert not is_locked(tmp_path)
    code = (
        "from pathlib import Path; from doublecv.lab.common.files import locked\n"
        f"with locked(Path({str(tmp_path)!r})):\n    print('held', flush=True)\n    input()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert is_locked(tmp_path)
    with pytest.raises(InputError, match=f"another process works in {tmp_path}"), locked(tmp_path):
        pass
    holder.kill()
    holder.communicate()
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        assert is_locked(tmp_path)


def test_unknown_names_are_answered_with_the_closest_or_with_all():
    assert str(unknown_name("estimator", "dubble", ["rloo", "double"])) == (
        "unknown estimator 'dubble'; did you mean 'double'?"
    )
    assert str(unknown_name("estimator", "x" * 99, ["rloo", "double"])).endswith("xxx'; choose from rloo, double")
