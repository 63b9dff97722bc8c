"""Fixtures that several test files share."""

import jax
import pytest

from browser import PROGRAM, Pages, chromium

# The suite compiles thousands of small programs and runs each for an instant: compiling them is what takes the time.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def x64():
    """JAX in float64 for the length of a test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium for the tests of one module."""
    if PROGRAM is None:
        pytest.skip("Chromium is not installed: pages are not tested in a browser")
    with chromium() as started:
        yield started


@pytest.fixture
def pages(browser):
    """Pages that are closed after the test."""
    opened = Pages(browser)
    yield opened
    opened.close()
