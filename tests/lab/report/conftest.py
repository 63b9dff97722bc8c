"""The tiny sweep."""

import shutil

import pytest
from tiny_sweep import make


@pytest.fixture(scope="session")
def tiny_sweep(tmp_path_factory):
    """Its folder; a test that changes it takes `copy`."""
    return make(tmp_path_factory.mktemp("made") / "tiny-sweep")


@pytest.fixture
def copy(tiny_sweep, tmp_path):
    return shutil.copytree(tiny_sweep, tmp_path / "sweep", ignore=shutil.ignore_patterns("report"))
