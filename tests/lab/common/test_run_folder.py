"""A run's folder is claimed once and never written over."""

import json

import pytest

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import claim, claimed, write_config

SETTINGS = {"dimension": 200, "estimators": ["rloo", "disarm"]}


def test_a_new_folder_is_made_with_its_parents(tmp_path):
    claim(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_an_empty_folder_will_do(tmp_path):
    claim(tmp_path)


@pytest.mark.parametrize("config", [None, "not json"])
def test_a_folder_with_anything_else_is_left_alone(tmp_path, config):
    (tmp_path / "precious.txt").write_text("kept")
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match="is not empty; name a new folder"):
        claim(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "kept"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match=r"cannot be written to \(File exists\)"):
        claim(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written to"):
        claim(tmp_path / "file" / "below")


def test_config_names_settings_and_versions(tmp_path):
    write_config(tmp_path, "toy", SETTINGS)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["command"] == "toy"
    assert config["settings"] == SETTINGS
    assert {"python", "doublecv", "jax", "numpy"} <= config["versions"].keys()


def test_two_processes_cannot_fill_one_folder(tmp_path):
    with claimed(tmp_path / "run"):
        claim(tmp_path / "run")
        with pytest.raises(InputError, match="another process works in"), claimed(tmp_path / "run"):
            pass
        write_config(tmp_path / "run", "toy", SETTINGS)
    with pytest.raises(InputError, match="is not empty"), claimed(tmp_path / "run"):
        pass
