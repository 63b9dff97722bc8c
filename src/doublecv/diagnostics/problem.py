"""What a front-end provides for the diagnostics: one problem, on which any estimator can be measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from doublecv.arrays import Array
from doublecv.checks import PATH_ESTIMATORS, check_sequential
from doublecv.diagnostics.entrants import AnyEstimator
from doublecv.diagnostics.meter import Meter, SquaredBias, measure_squared_bias, merge
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, Learned, QuadraticDoubleCV
from doublecv.estimators.base import NOTHING
from doublecv.sequential import Sequential

if TYPE_CHECKING:
    from jaxtyping import Float

GROUPS = 20
"""The number of groups of draws whose means tell the error of a squared bias."""

LARGEST_EXACT = 2**22
"""The largest number of coordinates of all points of the support for which the exact gradient is computed unasked."""

FIT_STREAM, REFERENCE_STREAM = 1_000_000, 2_000_000
"""Streams of random numbers apart from those of the measurement, which are counted from 0."""

Measure: TypeAlias = Callable[[int, int], Meter]
"""From a number of draws and the number of a stream of random numbers to a meter of that many gradients."""


def check_distribution(q: object) -> None:
    """Raise unless q is a distribution that can be measured."""
    if not isinstance(q, Distribution | Sequential):
        raise TypeError(f"q must be a distribution such as doublecv.Bernoulli(logits=logits), got {type(q).__name__}")


def total_gradient(q: Distribution, gradient: Float[Array, "*visited"]) -> Float[Array, "*logits"]:
    """Return the gradient in the logits of q; on paths, where every sample has its own, the sum over the samples.

    The sum is the gradient in numbers that are added to the logits of all samples: in the biases of the layers.

    Args:
        q: the distribution that the samples came from.
        gradient: a gradient, or parts of one in front, with the samples in front of the batch axes if q is a path.
    """
    return q.xp.sum(gradient, axis=-len(q.batch_shape) - q.event_axes - 1) if q.visited else gradient


def made_distribution(q: Any) -> tuple[Any, Callable[[], Distribution] | None]:
    """Return the distribution, and the function that makes it if that was given in its place."""
    if not callable(q) or isinstance(q, Distribution | Sequential):
        return q, None
    return q(), q


class Prepared(NamedTuple):
    """Hold the learned state that an estimator is measured with, and a word for where it comes from."""

    learned: Learned
    state: str


class Problem(ABC):
    """f and q in the arrays of one framework.

    Attributes:
        q: the distribution.
    """

    q: Distribution | Sequential

    @abstractmethod
    def optimal_coefficients(self, estimator: Estimator, draws: int) -> Learned:
        """Return the coefficients of least variance from draws of `FIT_STREAM`."""

    @abstractmethod
    def train(self, estimator: Estimator, steps: int) -> Learned:
        """Return the learned state after some steps on this problem, with draws of `FIT_STREAM`."""

    @abstractmethod
    def measure(self, estimator: AnyEstimator, learned: Learned) -> Measure:
        """Return a function that draws gradients; the same stream gives the same random numbers."""

    @abstractmethod
    def step(self, estimator: AnyEstimator) -> Callable[[], object]:
        """Return a function that computes all gradients of a training step around f, once."""

    @abstractmethod
    def exact_gradient(self) -> Float[np.ndarray, "*logits"]:
        """Return the exact gradient by enumeration."""

    def check_entrant(self, estimator: AnyEstimator) -> None:
        """Raise unless the estimator supports q."""
        if not isinstance(self.q, Sequential):
            if isinstance(estimator, Estimator):
                estimator.check_family(self.q)
        elif isinstance(estimator, Estimator):
            check_sequential(estimator)
        else:
            raise TypeError(
                f"{type(estimator).__name__} is for independent variables of one kind, got q = "
                f"{type(self.q).__name__}; take one of {', '.join(PATH_ESTIMATORS)}"
            )

    def prepare(self, estimator: AnyEstimator, draws: int, steps: int) -> Prepared:
        """Return the state for a measurement: best coefficients where they exist, otherwise a trained state."""
        if not isinstance(estimator, Estimator):
            return Prepared(NOTHING, "-")
        if estimator.needs.coefficients:
            return Prepared(self.optimal_coefficients(estimator, draws), "best")
        if estimator.needs.sized or any(estimator.init()):
            return Prepared(self.train(estimator, steps), f"trained {steps}")
        return Prepared(NOTHING, "-")

    def is_enumerable(self) -> bool:
        """Return whether the support is small enough for the exact gradient; that of a path is not enumerated."""
        if isinstance(self.q, Sequential):
            return False
        values = self.q.variable_values().shape[0]
        return bool(float(values) ** self.q.event_shape[0] * prod(self.q.logits.shape) <= LARGEST_EXACT)

    def measure_biased(self, estimator: AnyEstimator, draws: int) -> tuple[Meter, SquaredBias]:
        """Return the meter of a biased estimator and its squared bias.

        The bias is taken against the exact gradient, or against unbiased draws where that is out of reach.
        """
        each = max(2, draws // GROUPS)
        measure = self.measure(estimator, NOTHING)
        meters = [measure(each, stream) for stream in range(GROUPS)]
        truths = [self.exact_gradient()] * GROUPS if self.is_enumerable() else self.reference(each)
        differences = [_mean(meter) - truth for meter, truth in zip(meters, truths, strict=True)]
        return reduce(merge, meters), measure_squared_bias(differences)

    def reference(self, draws: int) -> list[Float[np.ndarray, "*logits"]]:
        """Return means of groups of unbiased gradients, of `draws` gradients each."""
        unbiased = QuadraticDoubleCV(samples=8)
        measure = self.measure(unbiased, self.optimal_coefficients(unbiased, 10 * GROUPS))
        return [_mean(measure(draws, REFERENCE_STREAM + stream)) for stream in range(GROUPS)]


def _mean(meter: Meter) -> Float[np.ndarray, "*logits"]:
    return np.asarray(meter.mean, dtype=float)
