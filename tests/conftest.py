"""Fixtures that several test files share."""

import jax
import pytest


@pytest.fixture
def x64():
    """JAX in float64 for the length of a test."""
    with jax.enable_x64(True):
        yield
