r"""The running norm of the gradient of f, in whose units bounded control variates are used.

A bounded control variate has the direction of the gradient instead of the gradient :math:`G_j` with the squared norm
:math:`N_j`. To have the unit of f, as all others have, it is multiplied by a running norm:

.. math:: e^{m/2} \, \sqrt{N_j} \, G_j \, / \max\big(\sqrt{N_j}, \, \ell\big)^2.

m is a running mean over steps of :math:`z = 2 \log \mathrm{mean}_j \sqrt{N_j}`, the mean over the samples of a step.
The mean comes before the logarithm because training may move most samples to where f is flat, as for a steep sigmoid:
the logarithms of their norms fall without end, while the few samples at which f changes make both the variance of
:math:`g_0` and the mean norm. Two devices prevent that the control variate becomes too large where f becomes smaller at
once.

1. **The floor** :math:`\ell = \exp\big((E[\log N_j] - c \, \mathrm{Var}[\log N_j]) / 2\big)`, with the mean and the
   variance over the samples, lies below most :math:`\sqrt{N_j}`. A large fall of f makes the norm smaller than the
   floor, and the control variate becomes smaller in the same step, as the square of f: where :math:`\log N_j` has a
   large variance, as for the exponential of a linear function, the floor is low, and what is proportional to f there
   could be much larger than :math:`g_0`. A small fall then does not reach the floor.
2. **A test for a fall** after each step. z, and its mean over recent steps, is compared with m in units of its standard
   deviation over steps. If it is `CLEAR` deviations below, m follows at once. From `DOUBT` deviations on, the control
   variates of the next step are made smaller, to the lower confidence limit that is `MARGIN` deviations lower. If m
   has followed one step and a later one is where m was before, this is taken back: all samples of a step may have
   been where f is flat.

Both use earlier steps only, so the estimate stays unbiased.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from doublecv.arrays import Array, at_least, at_most, namespace
from doublecv.estimators.scale import TINY

if TYPE_CHECKING:
    from jaxtyping import Float

DEPTH = 0.5
r"""The c in the floor. The control variates of an exponential need a low floor; for most other functions the variance
of :math:`\log N_j` is below 1."""

RATE, RECENT = 0.03, 0.2
"""The share of a step in the running means, after as many steps as it allows for, and in the mean of recent steps."""

LARGEST = log(10)
"""How far z may be from m, as a logarithm of N, for m to follow it in proportion. Where the gradient is tiny in all
samples of many steps, the mean of the logarithms would move m too much."""

CLEAR, DOUBT, MARGIN = 4.0, 2.0, 1.5
"""Numbers of standard deviations: at which m follows at once, from which on a fall is suspected, and how much lower the
unit is taken then."""

ERROR_OF_RECENT = (RECENT / (2 - RECENT)) ** 0.5
"""The standard deviation of the mean of recent steps, relative to that of one step."""

LARGEST_EXPONENT = 60.0
"""The largest logarithm of N, relative to m, whose exponential is taken; single precision overflows at 88."""


def start() -> dict[str, Any]:
    r"""Return the running norm of no steps.

    It consists of m; the logarithm of the squared unit, which is m or less; the floor; the number of steps; the mean of
    :math:`\log N_j`, relative to m, and its variance; the variance of z over steps; the mean of z in recent steps,
    relative to m; and how far m has fallen in single steps and not come back.
    """
    names = ("log_norm", "log_unit", "floor", "norm_steps", "norm_offset", "norm_variance")
    return {name: np.zeros(()) for name in (*names, "norm_scatter", "norm_recent", "norm_fallen")}


def empty_statistics() -> dict[str, Any]:
    """Return the statistics of no batch element."""
    return {"norms": np.zeros(5)}


def statistics(
    averages: Mapping[str, Any], norm: Float[Array, "K *batch"], weight: Float[Array, "*batch"]
) -> dict[str, Any]:
    r"""Return the sums of w, :math:`w^2`, w y, :math:`w y^2` and :math:`w e^{y/2}` with :math:`y_j = \log N_j - m`.

    Args:
        averages: the running averages, with m.
        norm: :math:`\sqrt{N_j}` at the samples. A sample whose norm is 0 or not finite does not count.
        weight: the weight of each batch element; w is the part of it that one of the K samples has.
    """
    xp, none = namespace(norm), namespace(norm).zeros_like(norm)
    counts = (norm > 0) & xp.isfinite(norm)
    y = 2 * xp.log(xp.where(counts, norm, none + 1)) - averages["log_norm"]
    w = xp.where(counts, weight / norm.shape[0] + none, none)
    terms = (w, w**2, w * y, w * y**2, w * xp.exp(at_most(y, LARGEST_EXPONENT) / 2))
    return {"norms": xp.stack([xp.sum(term) for term in terms])}


def fall(state: Mapping[str, Any]) -> Float[Array, ""]:
    """Return how far the logarithm of the squared unit is below that before the last falls."""
    return state["norm_fallen"] + state["log_norm"] - state["log_unit"]


def fall_at_once(before: Mapping[str, Any], after: Mapping[str, Any]) -> Float[Array, ""]:
    """Return how much m fell at once in a step, as a negative number; 0 if it did not."""
    return at_most(before["norm_fallen"] - after["norm_fallen"], 0)


class Followed(NamedTuple):
    """Hold how the running norm moved in one step.

    Attributes:
        state: the moved state, with the names of `start`.
        of_step: how much the logarithm of the squared unit that the step was measured in is to be moved.
        of_earlier: how much that of the earlier steps is to be moved.
    """

    state: dict[str, Any]
    of_step: Float[Array, ""]
    of_earlier: Float[Array, ""]


def follow(
    averages: Mapping[str, Any], norms: Float[Array, "5"], weight: Float[Array, ""], rise: Float[Array, ""]
) -> Followed:
    """Move the running norm by one step.

    Args:
        averages: the running averages before the step.
        norms: the statistics of the step.
        weight: the weight of all batch elements.
        rise: how much the logarithm of the scale of f has risen at once; m rises with it.
    """
    xp, steps = namespace(norms), averages["norm_steps"]
    zero, one = xp.zeros_like(steps), xp.ones_like(steps)
    seen, total = norms[0] > 0, xp.where(norms[0] > 0, norms[0], one)
    samples = xp.where(seen, total**2 / xp.where(seen, norms[1], one), one)
    mean, square = norms[2] / total, norms[3] / total
    variance = at_least(square - mean**2, 0) * samples / at_least(samples - 1, 1)
    mean = xp.where(seen, mean - rise, zero)
    z = xp.where(seen, 2 * xp.log(xp.where(seen, norms[4] / total, one) + TINY) - rise, zero)
    # A step in which few samples have a gradient says as much less.
    share = norms[0] / xp.where(weight > 0, weight, one)
    few = 1 / (steps + one) > RATE
    rate = share * xp.where(few, 1 / (steps + one), zero + RATE)
    moved_by = rate * xp.where(few, z, at_most(at_least(z, -LARGEST), LARGEST))

    deviation = xp.sqrt(averages["norm_scatter"])
    of_step = share * z
    # One large step is no rise.
    limited = xp.minimum(of_step, DOUBT * deviation)
    of_recent = averages["norm_recent"] + RECENT * (limited - share * averages["norm_recent"])
    of_both = ((of_step, deviation), (of_recent, ERROR_OF_RECENT * deviation))
    has_fallen, falling = (below < -CLEAR * its_deviation for below, its_deviation in of_both)
    rising = of_recent > CLEAR * ERROR_OF_RECENT * deviation
    # The mean of recent steps is still that of some steps before the fall.
    fall = xp.minimum(of_step, of_recent) - MARGIN * ERROR_OF_RECENT * deviation
    fall = xp.where(has_fallen, of_step - MARGIN * deviation, fall)
    fallen = averages["norm_fallen"]
    returned = (fallen > 0) & (z > fallen - deviation)
    changed = ~few & (has_fallen | falling | rising | returned)
    at_once = xp.where(returned, fallen, xp.where(rising & ~has_fallen, of_recent, fall))
    moved_by = xp.where(changed, at_once, moved_by)
    lowest = zero
    for below, its_deviation in of_both:
        suspicion = at_most(at_least(-below / (its_deviation + TINY) - DOUBT, 0), 1)
        lowest = xp.minimum(lowest, suspicion * (below - MARGIN * its_deviation))

    log_norm, first = averages["log_norm"] + rise + moved_by, steps == 0
    variance = averages["norm_variance"] + rate * xp.where(seen, variance - averages["norm_variance"], zero)
    of_mean = rate * xp.where(seen, mean - averages["norm_offset"], zero)
    offset = averages["norm_offset"] + xp.where(changed, zero, of_mean - moved_by)
    # A fall that was taken back was chance, which is part of the variance; one that lasts is not, nor is its beginning.
    square = xp.where(returned, fallen, z - averages["norm_recent"]) ** 2 - averages["norm_scatter"]
    of_scatter = xp.where(seen & ~first & (~changed | returned), rate * square, zero)
    lost = xp.where(~few & has_fallen | (fallen > 0), at_least(fallen - moved_by, 0), zero)
    state = {
        "log_norm": log_norm,
        "log_unit": log_norm + xp.where(few, zero, at_most(lowest - moved_by, 0)),
        "floor": xp.where(steps + share > 0, xp.exp((log_norm + offset - DEPTH * variance) / 2), zero),
        "norm_steps": steps + share,
        "norm_offset": offset,
        "norm_variance": variance,
        "norm_scatter": averages["norm_scatter"] + of_scatter,
        "norm_recent": xp.where(changed, zero, of_recent - moved_by),
        "norm_fallen": xp.where(returned, zero, lost),
    }
    return Followed(state, rise + xp.where(first, moved_by, zero), xp.where(few & ~first, moved_by, zero))
