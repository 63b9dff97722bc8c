"""Functions f with gradients known by hand, and the estimators set up for them, for every array library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from doublecv.diagnostics.exact import support

import doublecv as dcv
from doublecv.arrays import namespace
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, make

VARIABLES = {dcv.Bernoulli: (3,), dcv.Categorical: (2, 3)}
"""The event shapes of the battery: few enough outcomes to enumerate, and more than one variable."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """f and its gradient as functions of x flattened over the event."""

    flat_f: Callable[[Any, Any], Any]
    flat_df: Callable[[Any, Any], Any]
    event_axes: int
    known_mean: Callable[[Distribution], Any] | None = None

    def f(self, x):
        return self.flat_f(namespace(x), self._flatten(x))

    def df(self, x):
        return namespace(x).reshape(self.flat_df(namespace(x), self._flatten(x)), x.shape)

    def expected_f(self, q: Distribution):
        if self.known_mean is not None:
            return self.known_mean(q)
        points, probabilities = support(q)
        return q.xp.sum(probabilities * self.f(points), axis=0)

    def _flatten(self, x):
        return namespace(x).reshape(x, (*x.shape[: x.ndim - self.event_axes], -1))


def _constant(xp, array, like):
    return xp.asarray(array, dtype=like.dtype)


def quadratic(size: int, event_axes: int) -> Problem:
    """A quadratic with diagonal, as the toy problem has it, and an offset that a baseline must remove."""
    matrix = np.random.default_rng(1).normal(size=(size, size))

    def f(xp, x):
        return 2.0 + xp.sum((x @ _constant(xp, matrix, x)) * x, axis=-1)

    def df(xp, x):
        return x @ _constant(xp, matrix + matrix.T, x)

    return Problem(f, df, event_axes)


def multilinear(size: int, event_axes: int) -> Problem:
    """A random form of degree 3 in which no variable is squared."""
    generator = np.random.default_rng(2)
    cubic = np.zeros((size, size, size))
    for i in range(size):
        for j in range(i):
            for k in range(j):
                cubic[i, j, k] = generator.normal()
    linear = generator.normal(size=size)

    def partial(xp, x, axis):
        moved = _constant(xp, np.moveaxis(cubic, axis, 0), x)
        return xp.sum(xp.sum(moved * x[..., None, None, :], axis=-1) * x[..., None, :], axis=-1)

    def f(xp, x):
        return xp.sum(x * (partial(xp, x, 0) + _constant(xp, linear, x)), axis=-1)

    def df(xp, x):
        return partial(xp, x, 0) + partial(xp, x, 1) + partial(xp, x, 2) + _constant(xp, linear, x)

    return Problem(f, df, event_axes)


def network(size: int, event_axes: int) -> Problem:
    """A small tanh network."""
    generator = np.random.default_rng(3)
    inner, outer = generator.normal(size=(size, 4)), generator.normal(size=4)

    def f(xp, x):
        return xp.tanh(x @ _constant(xp, inner, x)) @ _constant(xp, outer, x) - 1.5

    def df(xp, x):
        slope = 1 - xp.tanh(x @ _constant(xp, inner, x)) ** 2
        return (slope * _constant(xp, outer, x)) @ _constant(xp, inner.T, x)

    return Problem(f, df, event_axes)


def linear(size: int, event_axes: int) -> Problem:
    """A linear f, on which a Taylor surrogate is exact."""
    weights = np.random.default_rng(4).normal(size=size)

    def f(xp, x):
        return 3.0 + x @ _constant(xp, weights, x)

    def df(xp, x):
        return xp.broadcast_to(_constant(xp, weights, x), x.shape)

    return Problem(f, df, event_axes)


def toy(size: int, event_axes: int = 1) -> Problem:
    """The paper's toy problem: mean_i (x_i - 0.499)^2."""

    def f(xp, x):
        return xp.mean((x - 0.499) ** 2, axis=-1)

    def df(xp, x):
        return 2 * (x - 0.499) / size

    def mean(q):
        return q.xp.mean(q.mean * 0.501**2 + (1 - q.mean) * 0.499**2, axis=-1)

    return Problem(f, df, event_axes, mean)


PROBLEMS = {"quadratic": quadratic, "multilinear": multilinear, "network": network}


def make_problem(name: str, family: type[Distribution]) -> Problem:
    shape = VARIABLES[family]
    return PROBLEMS[name](int(np.prod(shape)), len(shape))


def make_logits(family: type[Distribution], batch: tuple[int, ...] = (2,), seed: int = 0, scale: float = 1.2):
    return scale * np.random.default_rng(seed).normal(size=(*batch, *VARIABLES[family]))


FEATURES = 4
"""The features of the context of a surrogate."""


def samples_for(name: str, samples: int = 2) -> int:
    """K, or the least that the estimator takes."""
    return max(samples, make(name, samples=4).minimum_samples)


def make_estimator(name: str, samples: int, problem: Problem | None = None, variables: int | None = None) -> Estimator:
    """The registered estimator, with the exact mean of f or the context where it asks for that.

    The context is the same for all batch elements, so that it goes with batches of any shape.
    """
    estimator = make(name, samples=samples_for(name, samples))
    if isinstance(estimator, dcv.RStar) and problem is not None:
        return dataclasses.replace(estimator, expected_f=problem.expected_f)
    if isinstance(estimator, dcv.Surrogate):
        (default,) = VARIABLES[dcv.Bernoulli]
        context = np.random.default_rng(8).normal(size=FEATURES)
        return dataclasses.replace(
            estimator, variables=variables or default, features=FEATURES, directions=2, context=context
        )
    return estimator


def make_coefficients(estimator: Estimator, value: float) -> dict[str, Any]:
    """Coefficients that are far from their start: numbers equal to `value`, and random matrices made from it."""
    generator = np.random.default_rng(int(1000 * abs(value)))

    def scattered(start):
        if isinstance(start, dict):
            return {name: scattered(entry) for name, entry in start.items()}
        return generator.normal(size=np.shape(start)) if np.ndim(start) else value

    coefficients = scattered(estimator.coefficients())
    for name in estimator.averaged:
        products = coefficients[name] @ coefficients[name].T
        # Far from singular, so that float32 solves with it as float64 does.
        coefficients[name] = products + len(products) * np.eye(len(products))
    return coefficients
