"""Where sets are looked for, and in which order."""

import shutil

import pytest
from small_sets import TEST_NAME, TRAIN_NAME, SmallSet

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.catalogue import SETS, BrokenFile
from doublecv.lab.data.fetch import cache_folder, find


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The named folder, the variable's, the system's and the cache, all empty."""
    folders = {name: tmp_path / name for name in ("named", "variable", "system", "cache")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setenv("DOUBLECV_DATA", str(folders["variable"]))
    return folders


def test_first_place_that_has_it(places):
    small = SmallSet(system_folder=places["system"] / "small")
    for root in places.values():
        small.write(root)
    for name in list(places):
        found = find(small.set, places["named"], places["cache"])
        assert found.paths == tuple(places[name] / "small" / f"{file.name}.gz" for file in small.form.files)
        shutil.rmtree(places[name] / "small")
    assert find(small.set, places["named"], places["cache"]) is None


def test_without_folder_variable_or_package_the_cache_is_left(places, monkeypatch):
    small = SmallSet()
    for root in places.values():
        small.write(root)
    monkeypatch.setenv("DOUBLECV_DATA", "")
    monkeypatch.chdir(places["named"])
    assert find(small.set, None, places["cache"]).paths[0].parent == places["cache"] / "small"


def test_unpacked_packed_or_mixed(places):
    small = SmallSet()
    small.write(places["named"], packed=False, only=TRAIN_NAME)
    folder = small.write(places["named"], packed=True, only=TEST_NAME)
    assert find(small.set, places["named"], places["cache"]).paths == (folder / TRAIN_NAME, folder / f"{TEST_NAME}.gz")


@pytest.mark.parametrize("place", ["named", "variable", "system"])
def test_half_a_set_is_an_error_outside_the_cache(places, place):
    small = SmallSet(system_folder=places["system"] / "small")
    folder = small.write(places[place], only=TRAIN_NAME)
    small.write(places["cache"])
    with pytest.raises(BrokenFile) as raised:
        find(small.set, places["named"], places["cache"])
    assert str(raised.value) == (f"{folder / TEST_NAME}: expected it, packed or not, found only {TRAIN_NAME}.gz there")


def test_half_a_set_in_the_cache_is_no_set_yet(places):
    small = SmallSet()
    small.write(places["cache"], only=TEST_NAME)
    assert find(small.set, None, places["cache"]) is None


def test_folders_that_are_not_there_are_named(places, monkeypatch):
    small, nowhere = SmallSet(), places["named"] / "nowhere"
    with pytest.raises(InputError, match=f"--data-dir names {nowhere}, which is not a folder"):
        find(small.set, nowhere, places["cache"])
    monkeypatch.setenv("DOUBLECV_DATA", str(nowhere))
    with pytest.raises(InputError, match=rf"\$DOUBLECV_DATA names {nowhere}, which is not a folder"):
        find(small.set, places["named"], places["cache"])


def test_tilde_in_the_variable_is_the_home_folder(places, monkeypatch):
    small = SmallSet()
    small.write(places["named"])
    monkeypatch.setenv("HOME", str(places["named"].parent))
    monkeypatch.setenv("DOUBLECV_DATA", "~/named")
    assert find(small.set, None, places["cache"]).paths[0].parent == places["named"] / "small"


def test_omniglot_in_either_form(places):
    folder = places["named"] / "omniglot"
    folder.mkdir()
    (folder / "chardata.mat").touch()
    found = find(SETS["omniglot"], places["named"], places["cache"])
    assert (found.form, found.paths) == (SETS["omniglot"].forms[1], (folder / "chardata.mat",))
    (folder / "omniglot28.npz").touch()
    found = find(SETS["omniglot"], places["named"], places["cache"])
    assert (found.form, found.paths) == (SETS["omniglot"].forms[0], (folder / "omniglot28.npz",))


def test_debian_package_is_looked_for_where_it_puts_its_files():
    assert str(SETS["fashion-mnist"].system_folder) == "/usr/share/datasets/fashion-mnist"


def test_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "doublecv"
