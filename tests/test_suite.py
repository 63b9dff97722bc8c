"""The suite itself: what is left out of the fast set exists, and the run-time checker of annotations can fail."""

import importlib
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import Float

from doublecv import estimators
from slow_tests import LEFT_OUT, VARIANTS, markers_of
from typechecker import UntrueAnnotationError, checked, install

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


@checked
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
    with pytest.raises(UntrueAnnotationError):
        outer(*arguments)


@checked
def half(number: int) -> float:
    if isinstance(number, str):
        raise ValueError("number must be an int")
    return number / 2


def test_the_checker_lets_an_error_of_the_function_through():
    with pytest.raises(ValueError, match="must be an int"):
        half("3")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        half()
    with pytest.raises(UntrueAnnotationError, match=r"half: number is annotated <class 'int'>, got <class 'float'>"):
        half(3.0)


@checked
def total(arrays: dict[str, list[Float[np.ndarray, "n"]]]) -> float:
    return float(sum(array.sum() for each in arrays.values() for array in each))


def test_the_checker_looks_at_every_item():
    right = {"a": [np.ones(2)] * 20, "b": [np.ones(2)] * 20}
    assert total(right) == 80
    with pytest.raises(UntrueAnnotationError, match="total: arrays"):
        total(right | {"b": [*right["b"][:7], np.ones(3), *right["b"][8:]]})


PACKAGE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
import numpy as np
if TYPE_CHECKING:
    from jaxtyping import Float

def transposed(a: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n m"]:
    return a.T

@dataclass
class Parent:
    a: Float[np.ndarray, "n"]

@dataclass
class Pair(Parent):
    b: Float[np.ndarray, "n"]
"""


def test_the_checker_resolves_what_is_imported_for_annotations_only(tmp_path, monkeypatch):
    (tmp_path / "package_with_shapes.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install("package_with_shapes")
    package = importlib.import_module("package_with_shapes")
    assert package.transposed(np.ones((2, 2))).shape == (2, 2)
    with pytest.raises(UntrueAnnotationError, match="transposed: return"):
        package.transposed(np.ones((2, 3)))
    assert package.Pair(np.ones(2), np.ones(2)).b.shape == (2,)
    with pytest.raises(UntrueAnnotationError, match="b is annotated"):
        package.Pair(np.ones(2), np.ones(3))
