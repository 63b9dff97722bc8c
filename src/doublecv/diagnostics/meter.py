r"""The variance meter: running mean and variance of gradient estimates, for every array library.

A `Meter` is a tuple of arrays, so it can be carried through `jax.lax.scan` as well as through a Python loop:

>>> import numpy as np
>>> meter = empty(np.zeros(3))
>>> for chunk in np.random.default_rng(0).normal(size=(10, 100, 3)):
...     meter = add(meter, chunk)
>>> summarize(meter).variance
1.0...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from doublecv.arrays import Array, namespace

if TYPE_CHECKING:
    from jaxtyping import Float


class Meter(NamedTuple):
    r"""Hold the statistics of the gradients that were seen.

    Attributes:
        count: the number of gradients.
        mean: their mean.
        squares: the sum of their squared distances from the mean, for every coordinate.
        distance: the mean over the gradients of :math:`d_n`, the squared distance of one gradient from the mean,
            averaged over the coordinates; the mean is that of the gradients seen until then.
        distance_squares: the sum of the squared distances of :math:`d_n` from their mean.
    """

    count: Float[Array, ""]
    mean: Float[Array, "*logits"]
    squares: Float[Array, "*logits"]
    distance: Float[Array, ""]
    distance_squares: Float[Array, ""]


class Variance(NamedTuple):
    """Hold a measured variance, the mean over batch elements and coordinates, and its standard error."""

    variance: float
    standard_error: float


class SquaredBias(NamedTuple):
    """Hold a measured squared bias, the mean over batch elements and coordinates, and its standard error.

    The measurement is unbiased, so that it is negative about as often as positive where there is no bias.
    """

    squared_bias: float
    standard_error: float


def empty(like: Float[Array, "*logits"]) -> Meter:
    """Return the meter of no gradients of this shape, type and device."""
    xp = namespace(like)
    zeros = xp.zeros_like(like)
    nothing = xp.sum(zeros)
    return Meter(nothing, zeros, zeros, nothing, nothing)


def add(meter: Meter, gradients: Float[Array, "n *logits"]) -> Meter:
    r"""Add n gradients by the update of Chan, Golub and LeVeque (1979), which does not cancel.

    For the means :math:`m_A, m_B` and the sums of squares :math:`S_A, S_B` of :math:`n_A` and :math:`n_B` gradients,

    .. math::
        m = m_A + \frac{n_B}{n_A + n_B} (m_B - m_A), \qquad S = S_A + S_B + \frac{n_A n_B}{n_A + n_B} (m_B - m_A)^2.
    """
    xp = namespace(gradients)
    mean = xp.mean(gradients, axis=0)
    count, mean, squares = _merge(
        (meter.count, meter.mean, meter.squares),
        (xp.ones_like(meter.count) * gradients.shape[0], mean, xp.sum((gradients - mean) ** 2, axis=0)),
    )
    # The standard error needs the distances from the final mean. Those from the present one are as good: the mean's
    # own error adds a share of 1 / count to them.
    distances = xp.mean(xp.reshape((gradients - mean) ** 2, (gradients.shape[0], -1)), axis=1)
    distance = xp.mean(distances)
    _, distance, distance_squares = _merge(
        (meter.count, meter.distance, meter.distance_squares),
        (count - meter.count, distance, xp.sum((distances - distance) ** 2)),
    )
    return Meter(count, mean, squares, distance, distance_squares)


def merge(first: Meter, second: Meter) -> Meter:
    """Return the meter of the gradients of both."""
    count, mean, squares = _merge(first[:3], second[:3])
    of_first = (first.count, first.distance, first.distance_squares)
    of_second = (second.count, second.distance, second.distance_squares)
    return Meter(count, mean, squares, *_merge(of_first, of_second)[1:])


def mean_variance(meter: Meter) -> Float[Array, ""]:
    r"""Return the unbiased variance :math:`S / (n - 1)`, averaged over batch elements and coordinates; traceable."""
    return namespace(meter.squares).mean(meter.squares) / (meter.count - 1)


def standard_error(meter: Meter) -> Float[Array, ""]:
    """Return the standard error of `mean_variance`, from the spread of the distances of single draws; traceable."""
    return namespace(meter.squares).sqrt(meter.distance_squares / (meter.count - 1) / meter.count)


def summarize(meter: Meter) -> Variance:
    """Return the variance and its standard error as Python numbers.

    Args:
        meter: a meter of at least two gradients.
    """
    if not float(meter.count) >= 2:
        raise ValueError(f"draws must be at least 2 for a variance, got {float(meter.count):.0f}")
    return Variance(float(mean_variance(meter)), float(standard_error(meter)))


def measure_squared_bias(differences: Sequence[Float[np.ndarray, "*logits"]]) -> SquaredBias:
    r"""Return the squared norm of the mean of independent differences, per coordinate, without its own bias.

    The square of a mean of noisy differences :math:`d_1, \dots, d_G` is too large by their variance. Products of
    different ones are not:

    .. math:: \frac{1}{G (G - 1)} \sum_{g \ne h} d_g^T d_h.

    The standard error is that of the jackknife, which leaves out one difference at a time.

    Args:
        differences: means of groups of draws minus the true gradient, or minus means of groups of unbiased draws.
    """
    groups = len(differences)
    if groups < 3:
        raise ValueError(f"differences must be at least 3 for a standard error, got {groups}")
    flat = np.stack([np.asarray(difference, dtype=float).reshape(-1) for difference in differences])
    products = flat @ flat.T / flat.shape[1]
    of_each = products.sum(axis=1) - np.diag(products)
    total = of_each.sum()
    left_out = (total - 2 * of_each) / ((groups - 1) * (groups - 2))
    error = np.sqrt((groups - 1) / groups * np.sum((left_out - left_out.mean()) ** 2))
    return SquaredBias(float(total / (groups * (groups - 1))), float(error))


def _merge(first: tuple[Array, Array, Array], second: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Return count, mean and sum of squares of two sets, at least one of which is not empty."""
    (count_a, mean_a, squares_a), (count_b, mean_b, squares_b) = first, second
    count, shift = count_a + count_b, mean_b - mean_a
    return count, mean_a + shift * (count_b / count), squares_a + squares_b + shift**2 * (count_a * count_b / count)
