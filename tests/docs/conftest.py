"""The built site: that of `make docs` where nothing has changed since, and otherwise one that is built here, once."""

import os
import subprocess
import sys
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = ("docs", "src", "examples", "CHANGELOG.md", "constraints.txt")


def newest_source():
    files = [path for name in SOURCES for path in [ROOT / name, *(ROOT / name).rglob("*")] if path.is_file()]
    return max(path.stat().st_mtime for path in files if "__pycache__" not in path.parts)


def is_current(site):
    # Sphinx writes the index of the search last.
    index = site / "searchindex.js"
    return index.exists() and index.stat().st_mtime > newest_source()


def build(site):
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*command, "--jobs", "2", "--doctree-dir", f"{site}-doctrees", ROOT / "docs", site],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Its folder."""
    if is_current(ROOT / "build" / "docs"):
        return ROOT / "build" / "docs"
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "site.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not is_current(shared / "site"):
            build(shared / "site")
    return shared / "site"
