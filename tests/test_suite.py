"""The suite itself: what is left out of the fast set exists, and the run-time checker of annotations can fail."""

from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import Float, jaxtyped

from doublecv import estimators
from slow_tests import LEFT_OUT, VARIANTS, markers_of
from typechecker import checked

TESTS = Path(__file__).parent


@pytest.mark.parametrize("left", LEFT_OUT, ids=lambda left: left.pattern)
def test_what_is_left_out_exists_and_its_markers_are_known(left, pytestconfig):
    files = (path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("test_*.py"))
    assert any(fnmatchcase(file, left.pattern.partition("::")[0]) for file in files)
    known = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert set(left.markers) <= known
    assert left.instead


def test_variants_are_registered_and_left_out_of_the_front_ends_only():
    assert set(estimators.names()) > VARIANTS
    assert markers_of("tests/jax/test_expect.py::test_it[arms]", ["arms"]) == {"slow"}
    assert markers_of("tests/jax/test_expect.py::test_it[rloo]", ["rloo"]) == set()
    assert markers_of("tests/estimators/test_battery.py::test_it[arms]", ["arms"]) == set()


@jaxtyped(typechecker=checked)
def outer(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " m"], transposed: bool = False) -> Float[np.ndarray, "n m"]:
    return np.outer(b, a) if transposed else np.outer(a, b)


def test_the_checker_accepts_what_is_annotated():
    assert outer(np.ones(2), np.ones(3)).shape == (2, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        (np.ones((2, 2)), np.ones(3)),
        (np.ones(2, int), np.ones(3)),
        (np.ones(2), np.ones(3), "yes"),
        (np.ones(2), np.ones(3), True),
    ],
    ids=["shape", "type", "option", "result"],
)
def test_the_checker_refuses_what_is_not(arguments):
    with pytest.raises(TypeError):
        outer(*arguments)
