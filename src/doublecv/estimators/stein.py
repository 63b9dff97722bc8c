r"""RODEO, whose control variates the Gibbs Stein operator makes from a learned network.

The operator turns any function of discrete variables into one of mean zero,

.. math:: (A h)(x) = \frac{1}{D} \sum_i \big(E_{y_i \sim q} h(y_i, x_{-i}) - h(x)\big), \qquad E_q[(A h)(x)] = 0,

because averaging over one variable leaves :math:`E_q h` unchanged. It needs h at x and at its neighbors, the points
that differ from x in one variable: for Bernoulli the D points with one bit flipped, for Categorical the D C points with
one variable set to one category (x itself is D of them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from doublecv.arrays import Array, sum_over_samples
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators.averages import leave_one_out, score_gradient
from doublecv.estimators.base import Applied, DescendingEstimator, Learned, Needs
from doublecv.estimators.evaluation import Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float

LARGEST_BIAS = 4.0
"""The biases of the hidden units start evenly spread between minus and plus this value."""


class NeighborValues(NamedTuple):
    """Hold a function h at points x and at their neighbors.

    Attributes:
        here: h(x).
        neighbors: for Bernoulli at i, h(x with bit i flipped); for Categorical at (i, c), h(x with variable i = c).
    """

    here: Float[Array, "*shape"]
    neighbors: Float[Array, "*points"]


def constant_values(q: Distribution, here: Float[Array, "*shape"]) -> NeighborValues:
    """Return the values of a constant function; the event axes of the neighbors have length 1."""
    return NeighborValues(here, here[(..., *(None,) * q.event_axes)])


def linear_values(
    q: Distribution, x: Float[Array, "*points"], v: Float[Array, "*points"], here: Float[Array, "*shape"]
) -> NeighborValues:
    """Return the values of the linear function with gradient v that is `here` at x.

    A neighbor differs from x in one variable, so one product gives all of them without building the points.
    """
    change = v * (1 - 2 * x) if isinstance(q, Bernoulli) else v - q.xp.sum(v * x, axis=-1, keepdims=True)
    return NeighborValues(here, constant_values(q, here).neighbors + change)


def gibbs_stein(q: Distribution, x: Float[Array, "*points"], h: NeighborValues) -> Float[Array, "*shape"]:
    r"""Apply the operator A to a function h.

    .. math:: (A h)(x) = \frac{1}{D} \sum_i \sum_{y_i} q(y_i) [h(y_i, x_{-i}) - h(x)]
    """
    change = h.neighbors - constant_values(q, h.here).neighbors
    # The flipped bit has probability 1 - mu where x = 1 and mu where x = 0, which is |x - mu|.
    probability = q.xp.abs(q.score(x)) if isinstance(q, Bernoulli) else q.mean
    return q.dot(probability, change) / q.event_shape[0]


def gibbs_stein_of_score(q: Distribution, x: Float[Array, "*points"], h: NeighborValues) -> Float[Array, "*points"]:
    r"""Return (A h s)(x), the operator on each coordinate of h(y) s(y), with time and memory linear in D.

    The score of variable i is the same at all neighbors except those in variable i itself, so

    .. math::
        (A h s)(x)_i = s_i(x) (A h)(x)
        + \frac{1}{D} \big(E_{y_i}[h(y_i, x_{-i}) s_i(y_i)] - s_i(x) E_{y_i}[h(y_i, x_{-i})]\big).

    The last bracket is :math:`-s_i(x) h(x \text{ with bit } i \text{ flipped})` for Bernoulli and, for category c of a
    one-hot variable, :math:`\mu_{ic} h(x \text{ with } x_i = c) - x_{ic} E_{y_i}[h(y_i, x_{-i})]`.
    """
    if isinstance(q, Bernoulli):
        own = -q.score(x) * h.neighbors
    else:
        weighted = q.mean * h.neighbors
        own = weighted - x * q.xp.sum(weighted, axis=-1, keepdims=True)
    return q.scale(gibbs_stein(q, x, h), q.score(x)) + own / q.event_shape[0]


@final
@dataclass(frozen=True)
class Rodeo(DescendingEstimator):
    r"""Estimate with RODEO.

    .. math::
        g = \frac{1}{K} \sum_k \Big(f(x_k) - \frac{1}{K-1} \sum_{j \ne k} (f(x_j) + (A h_j)(x_j))\Big) s(x_k)
            + (A \tilde h_k s)(x_k), \qquad
        h_k(y) = \frac{D}{K-1} \sum_{j \ne k} H(f(x_j), \nabla f(x_j)^T (y - x_j)),

    and :math:`\tilde h_k` the same with :math:`\tilde H` (Shi, Zhou, Hwang, Titsias and Mackey, 2022). Both control
    variates have mean zero for any H, because :math:`h_j` does not contain the sample at which the operator is
    evaluated. f is evaluated only at the samples, and time and memory are linear in D.

    The network has one hidden layer, which H and :math:`\tilde H` share:

    .. math:: H(a, b) = n_j \sum_u others_u \tanh(value_u a / n_j + slope_u b / n_j + bias_u),

    with :math:`n_j^2 = \nabla f(x_j)^T M \nabla f(x_j)`, so that the learned numbers do not depend on the scale of f.
    `others` and `current` start at 0, where the estimate is that of RLOO.

    Unlike here, the authors use 100 LeakyReLU(0.3) units on unscaled inputs, two scalars that start at 0, and D x D
    neighbors; the network, the scaling by :math:`n_j`, the factor D and the support of Categorical are ours. At equal
    steps ours was 5 to 14% better than theirs on autoencoders, and worse on the toy problem of Titsias and Shi (2022):
    1.16 to 1.28 times the variance of RLOO, against 1.00.

    >>> Rodeo(samples=2).evaluations
    2

    Attributes:
        samples: K >= 2.
        units: the number of hidden units.
    """

    units: int = 8

    def check_options(self) -> None:
        """Raise if there are no hidden units."""
        if isinstance(self.units, bool) or not isinstance(self.units, int) or self.units < 1:
            raise ValueError(f"units must be an integer of at least 1, got {self.units!r}")

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: gradients at two or more samples."""
        return Needs(gradient=True, minimum_samples=2)

    def start(self, q: Distribution | None, context: Float[Array, "*#batch features"] | None) -> Learned:
        """Return the network's weights: hidden units that differ, and outputs 0."""
        units = self.units
        numbers = {
            "value": np.zeros(units),
            "slope": np.ones(units),
            "bias": LARGEST_BIAS * ((2 * np.arange(units) + 1) / units - 1),
            "current": np.zeros(units),
            "others": np.zeros(units),
        }
        return Learned(numbers, {}, {})

    def formula(
        self,
        q: Distribution,
        evaluation: Evaluation,
        learned: Learned,
        weight: Float[Array, "*batch"],
        context: Float[Array, "*#batch features"] | None,
    ) -> Applied:
        """Compute the estimate."""
        x, f, scale = evaluation.x, evaluation.f, q.event_shape[0] / (self.samples - 1)
        stein, stein_of_score = q.xp.zeros_like(f), q.xp.zeros_like(x)
        # Shifted against each other, the samples meet in pairs and none meets itself.
        for shift in range(1, self.samples):
            current, others = _networks(q, evaluation, learned.numbers, shift)
            stein = stein + scale * gibbs_stein(q, x, others)
            stein_of_score = stein_of_score + scale * gibbs_stein_of_score(q, x, current)
        baseline = leave_one_out(f + stein)
        gradient = score_gradient(q, x, f - baseline) + sum_over_samples(stein_of_score) / self.samples
        return Applied(gradient, {})


def _networks(
    q: Distribution, evaluation: Evaluation, network: Mapping[str, Any], shift: int
) -> tuple[NeighborValues, NeighborValues]:
    r"""Return :math:`\tilde H` and H of the sample j = k - shift at :math:`x_k` and its neighbors, for every k."""
    xp, x = q.xp, evaluation.x
    x_j, f_j, df_j = (xp.roll(array, shift, axis=0) for array in (x, evaluation.f, evaluation.df))
    # Rounding can make the variance of an f that hardly varies negative.
    variance = xp.clip(q.dot(df_j, q.covariance_product(df_j)), 0, None)
    # The smallest normal number is added so that an f that does not vary under q is not divided by 0.
    n = xp.sqrt(variance + float(xp.finfo(variance.dtype).smallest_normal))
    outer = xp.stack([network["current"], network["others"]], axis=-1)

    def outputs(a: Any, b: Any, n: Any) -> tuple[Any, Any]:
        inner = network["value"] * (a / n)[..., None] + network["slope"] * (b / n)[..., None] + network["bias"]
        hidden = xp.tanh(inner)
        both = hidden @ xp.astype(outer, hidden.dtype)
        return n * both[..., 0], n * both[..., 1]

    a, b, n = constant_values(q, f_j), linear_values(q, x, df_j, q.dot(df_j, x - x_j)), constant_values(q, n)
    here, neighbors = outputs(a.here, b.here, n.here), outputs(a.neighbors, b.neighbors, n.neighbors)
    return NeighborValues(here[0], neighbors[0]), NeighborValues(here[1], neighbors[1])
