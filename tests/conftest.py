"""Fixtures that several test files share."""

import jax
import pytest

# The suite compiles thousands of small programs and runs each for an instant: compiling them is what takes the time.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def x64():
    """JAX in float64 for the length of a test."""
    with jax.enable_x64(True):
        yield
