"""The tiny sweep, made once for all processes that run the tests."""

import os
from fcntl import LOCK_EX, flock

import pytest
from tiny_sweep import make

from doublecv.lab.sweep import plan as sweep


@pytest.fixture(scope="session")
def tiny_sweep(tmp_path_factory):
    """Its folder; a test that changes it takes a copy."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "tiny-sweep"
    with (shared / "tiny-sweep.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (folder / sweep.FILE).exists():
            make(folder)
    return folder
