r"""The running norm of the gradient of f, in whose units bounded control variates are used.

A bounded control variate has the direction of the gradient instead of the gradient :math:`G_j` with the squared norm
:math:`N_j`. To have the unit of f, as all others have, it is multiplied by a running norm:

.. math:: e^{m/2} \, G_j \, / \max\big(\sqrt{N_j}, \, \ell\big), \qquad \ell^2 = \exp(m - c \, \sigma^2),

where m is a running mean of :math:`\log N_j` and :math:`\sigma^2` the variance of :math:`\log N_j` within a step. Two
devices prevent that it becomes too large where f becomes smaller at once.

1. **The floor** :math:`\ell` lies below most :math:`\sqrt{N_j}`. A fall of f makes the norm smaller than the floor, and
   the control variate becomes smaller with f in the same step. If :math:`\log N_j` has a large variance, as for the
   exponential of a linear function, the floor is low and does little.
2. **A test for a fall** after each step. The mean of :math:`\log N_j` over a step, and over recent ones, has a known
   standard error. If it is `CLEAR` errors below its running mean, m follows at once. From `DOUBT` errors on, the
   control variates of the next step are made smaller, to the lower confidence limit that is `MARGIN` errors lower.

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
r"""The c in the floor. The control variates of an exponential need a low floor; for most other functions
:math:`\sigma^2` is below 1."""

RATE, RECENT = 0.03, 0.2
"""The share of a step in the running means, after as many steps as it allows for, and in the mean of recent steps."""

LARGEST = log(10)
"""How far a step may be from m, as a logarithm of N, for m to follow it in proportion. Where the gradient is tiny in
most outcomes, the mean of the logarithms would move m too much."""

CLEAR, DOUBT, MARGIN = 4.0, 2.0, 1.5
"""Numbers of standard errors: at which m follows at once, from which on a fall is suspected, and how much lower the
unit is taken then."""

ERROR_OF_RECENT = (RECENT / (2 - RECENT)) ** 0.5
"""The standard error of the mean of recent steps, relative to that of one step."""


def start() -> dict[str, Any]:
    r"""Return the running norm of no steps.

    It consists of m; the logarithm of the squared unit, which is m or less; the floor; the number of steps;
    :math:`\sigma^2`; the mean of the recent steps, relative to that of all steps; and that of all steps, relative to m.
    """
    names = ("log_norm", "log_unit", "floor", "norm_steps", "norm_variance", "norm_recent", "norm_offset")
    return {name: np.zeros(()) for name in names}


def empty_statistics() -> dict[str, Any]:
    """Return the statistics of no batch element."""
    return {"norms": np.zeros(4)}


def statistics(
    averages: Mapping[str, Any], norm: Float[Array, "K *batch"], weight: Float[Array, "*batch"]
) -> dict[str, Any]:
    r"""Return the sums of w, :math:`w^2`, w y and :math:`w y^2` over all samples with :math:`y_j = \log N_j - m`.

    Args:
        averages: the running averages, with m.
        norm: :math:`\sqrt{N_j}` at the samples. A sample whose norm is 0 or not finite does not count.
        weight: the weight of each batch element; w is the part of it that one of the K samples has.
    """
    xp, none = namespace(norm), namespace(norm).zeros_like(norm)
    counts = (norm > 0) & xp.isfinite(norm)
    y = 2 * xp.log(xp.where(counts, norm, none + 1)) - averages["log_norm"]
    w = xp.where(counts, weight / norm.shape[0] + none, none)
    return {"norms": xp.stack([xp.sum(term) for term in (w, w**2, w * y, w * y**2)])}


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
    averages: Mapping[str, Any], norms: Float[Array, "4"], weight: Float[Array, ""], rise: Float[Array, ""]
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
    # A step in which few samples have a gradient says as much less.
    share = norms[0] / xp.where(weight > 0, weight, one)
    few = 1 / (steps + one) > RATE
    rate = share * xp.where(few, 1 / (steps + one), zero + RATE)
    moved_by = rate * xp.where(few, mean, at_most(at_least(mean, -LARGEST), LARGEST))

    offset, error = averages["norm_offset"], xp.sqrt(averages["norm_variance"] / samples)
    of_step = share * (mean - offset)
    # One large step is no rise.
    limited = xp.minimum(of_step, DOUBT * error)
    of_recent = averages["norm_recent"] + RECENT * (limited - share * averages["norm_recent"])
    of_both = ((of_step, error), (of_recent, ERROR_OF_RECENT * error))
    fallen, falling = (below < -CLEAR * its_error for below, its_error in of_both)
    rising = of_recent > CLEAR * ERROR_OF_RECENT * error
    changed = ~few & (fallen | falling | rising)
    # The mean of recent steps is still that of some steps before the fall.
    fall = xp.minimum(of_step, of_recent) - MARGIN * ERROR_OF_RECENT * error
    fall = xp.where(fallen, of_step - MARGIN * error, fall)
    moved_by = xp.where(changed, xp.where(rising & ~fallen, of_recent, fall), moved_by)
    lowest = zero
    for below, its_error in of_both:
        suspicion = at_most(at_least(-below / (its_error + TINY) - DOUBT, 0), 1)
        lowest = xp.minimum(lowest, suspicion * (below - MARGIN * its_error))

    log_norm = averages["log_norm"] + rise + moved_by
    variance = averages["norm_variance"] + rate * xp.where(seen, variance - averages["norm_variance"], zero)
    of_mean = rate * (mean - offset)
    state = {
        "log_norm": log_norm,
        "log_unit": log_norm + xp.where(few, zero, at_most(lowest - moved_by, 0)),
        "floor": xp.where(steps + share > 0, xp.exp((log_norm - DEPTH * variance) / 2), zero),
        "norm_steps": steps + share,
        "norm_variance": variance,
        "norm_recent": xp.where(changed, zero, of_recent - of_mean),
        "norm_offset": offset + xp.where(changed, zero, of_mean - moved_by),
    }
    first = steps == 0
    return Followed(state, rise + xp.where(first, moved_by, zero), xp.where(few & ~first, moved_by, zero))
