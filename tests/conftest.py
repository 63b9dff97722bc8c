"""Options and fixtures that the whole suite shares."""

import ctypes
import gc
import os
import signal
import sys
import tempfile

import pytest

# Programs that were compiled once in a run are read from this folder afterwards, by the other worker and by the
# processes that tests start. It must be set before JAX is imported. `make test` names a folder that outlives the run.
if "PYTEST_XDIST_WORKER" not in os.environ and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled_programs = tempfile.TemporaryDirectory(prefix="doublecv-compiled-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled_programs.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# For the processes that tests start; the reason is with pytest's own list of warnings in pyproject.toml.
os.environ["PYTHONWARNINGS"] = "ignore:Error reading persistent compilation cache entry:UserWarning"

# It must be installed before the package is imported. A variable reaches the workers; a plugin does not early enough.
if "DOUBLECV_TYPECHECK" in os.environ:
    import typechecker

    typechecker.install("doublecv")

import jax

from browser import PROGRAM, Pages, chromium
from slow_tests import markers_of

# The suite compiles thousands of small programs and runs each for an instant: compiling them is what takes the time.
jax.config.update("jax_disable_most_optimizations", True)

# A shell without job control starts its background jobs with SIGINT ignored, and their children inherit that; the tests
# that interrupt a process need it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = 1 << 30
"""Bytes of its own memory above which a worker forgets its compiled programs."""


def _own_memory():
    # Without the files of libraries: those of PyTorch with CUDA are more than 1 GB.
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests that the fast set leaves out."""
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        test = item.path.relative_to(item.config.rootpath).as_posix() + item.nodeid[item.nodeid.find("::") :]
        for marker in markers_of(test, parameters):
            item.add_marker(marker)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Forget compiled programs at the end of a module, and within one that takes much memory."""
    ends_module = nextitem is None or nextitem.path != item.path
    if sys.platform == "linux" and _own_memory() > (MEMORY // 2 if ends_module else MEMORY):
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # The C library keeps what is freed otherwise.


@pytest.fixture
def x64():
    """Use JAX in float64 for the length of a test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def browser():
    """Start a headless Chromium for the tests of one module."""
    if PROGRAM is None:
        pytest.skip("Chromium is not installed: pages are not tested in a browser")
    with chromium() as started:
        yield started


@pytest.fixture
def pages(browser):
    """Open pages that are closed after the test."""
    opened = Pages(browser)
    yield opened
    opened.close()
