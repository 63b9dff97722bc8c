"""Functions f with gradients known by hand, and learned states of the estimators for them, for every array library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import doublecv as dcv
from doublecv.arrays import namespace
from doublecv.distributions import Distribution, event_size
from doublecv.estimators import Estimator, Evaluation, Learned, LinearEstimator, fixed_coefficients, make, names
from doublecv.exact import enumerate_outcomes, exact_mean

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
        return exact_mean(self.f, q)

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
    """A linear f, on which a Taylor expansion is exact."""
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
"""The number of features of the context."""

LEARNING_STEPS = 30
"""The number of steps after which running averages are taken for learned."""


BINARY = tuple(name for name in names() if dcv.Bernoulli in make(name, samples=4).needs.families)
"""The registered estimators that support Bernoulli."""


def samples_for(name: str, samples: int = 2) -> int:
    """Return K, or the least that the estimator takes."""
    return max(samples, make(name, samples=4).needs.minimum_samples)


def make_estimator(name: str, samples: int = 2) -> Estimator:
    """Return the registered estimator with K samples, or with the least that it takes."""
    return make(name, samples=samples_for(name, samples))


def make_context(batch: tuple[int, ...] = (2,)):
    """Return features of each batch element."""
    return np.random.default_rng(8).normal(size=(*batch, FEATURES))


def make_learned(estimator: Estimator, q: Distribution, context: Any = None, value: float = 0.7) -> Learned:
    """Return a learned state that is far from the start, as NumPy arrays.

    Numbers are random, scalars are equal to `value`, and running averages are those of a few steps on a random network.
    """
    generator = np.random.default_rng(int(1000 * abs(value)))
    q = type(q)(logits=np.asarray(q.logits, dtype=float))
    context = None if context is None else np.asarray(context)
    start = estimator.init(q, context)
    numbers = {
        name: value * generator.normal(size=np.shape(array)) if np.ndim(array) else np.asarray(value)
        for name, array in start.numbers.items()
    }
    if "log_temperature" in numbers:
        numbers |= {"log_temperature": np.asarray(-0.5), "scale": np.asarray(0.8)}
    learned = start._replace(numbers=numbers)
    if not learned.averages or 0 in q.batch_shape:
        return learned
    problem = network(event_size(q), q.event_axes)
    for _ in range(LEARNING_STEPS):
        applied = estimator.apply(q, make_evaluation(estimator, problem, q, generator), learned, None, context)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
    if "surrogate_coefficients" in learned.averages:
        # A random surrogate is judged useless and would not be used at all.
        learned.averages["surrogate_coefficients"] = np.array([0.7])
    return learned


def make_evaluation(estimator: Estimator, problem: Problem, q: Distribution, generator: Any) -> Evaluation:
    """Return f at drawn samples and at the mean; relaxed points get random numbers."""
    x = estimator.draw(q, generator.uniform(size=estimator.noise_shape(q)))
    control = dcontrol = None
    if points := estimator.needs.relaxed_points:
        control = generator.normal(size=(points, *q.batch_shape))
        dcontrol = generator.normal(size=(points, *q.logits.shape))
    mean = q.mean
    expected_f = problem.expected_f(q) if estimator.needs.expected_f else None
    return Evaluation(x, problem.f(x), problem.df(x), problem.f(mean), problem.df(mean), expected_f, control, dcontrol)


def best_coefficients(estimator: LinearEstimator, problem: Problem, q: Distribution) -> Learned:
    """Return the coefficients of least total variance, exactly: the vertex of a parabola."""
    outcomes = enumerate_outcomes(problem.f, q, estimator, problem.df)
    g0, h = estimator.parts(outcomes.q, outcomes.evaluation).vectors()

    def moment(a, b):
        return np.sum(outcomes.expectation(a * b))

    system = np.array([[moment(one, other) for other in h.values()] for one in h.values()])
    right = np.array([moment(one, g0) for one in h.values()])
    scale = np.sqrt(np.diag(system))
    solution = -np.linalg.lstsq(system / np.outer(scale, scale), right / scale, rcond=1e-13)[0] / scale
    return fixed_coefficients(dict(zip(h, solution, strict=True)))
