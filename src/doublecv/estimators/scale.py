r"""The running scale of :math:`g_0`, in whose units the steps of a run are comparable.

The scale is the running geometric mean of :math:`g_0 \cdot g_0`. Steps in which all samples have the same f say nothing
about it. A step whose parts are thousands of times larger than before is left out; if the next one is as large, the
scale follows at once.

f has **fallen** when the logarithm of :math:`g_0 \cdot g_0` is `CLEAR` standard deviations below that of the scale. The
deviation is learned: with one batch element and two samples, two similar values of f make :math:`g_0 \cdot g_0` small
by chance, and with almost certain variables it is tiny in most steps, but with a batch its logarithm hardly varies. A
fall does not count in the deviation unless it was chance: unless a later step is as large as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from doublecv.arrays import Array, namespace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

SCALE_RATE = 0.05
"""The share of each step in the running logarithm of the mean square of g0, after as many steps as it allows for."""

JUMP = log(1e4)
"""A step is left out if its parts exceed the mean by this much in the logarithm; two in a row are a jump of the scale,
which is followed at once."""

FALL = log(1e-4)
"""The logarithm of g0 . g0, relative to the running scale, below which f may have become much smaller at once."""

SLOWEST_FALL = log(0.1)
"""The smallest logarithm of g0 . g0, relative to the running scale, that the scale of a linear estimator follows in
proportion: nearly all steps of an almost certain variable have a tiny g0, and the few others make the variance."""

CLEAR, DEVIATION_RATE = 4.0, 0.05
"""The number of standard deviations below the scale at which f has fallen, and the share of each step in the square of
the deviation, which starts where `CLEAR` deviations are `FALL`."""

PEAK_DECAY = 0.5
"""How much the logarithm of the largest recent g0 . g0 decreases per step."""

ROUNDING = 100.0
"""The number of rounding errors, relative to the parts, below which g0 is one itself: all samples have the same f."""

TINY = 1e-30
"""What is added to denominators, in the units of the running scale, so that 0 / 0 is 0."""


class Followed(NamedTuple):
    """Hold how the running scale moved in one step.

    Attributes:
        state: the moved state, with the names of `start`.
        moved_by: how much the logarithm of the scale moved.
        jump: the part of it that was followed at once.
        jumped: whether there was such a part.
        starting: whether the scale is still the mean over all steps.
        measured: whether g0 was more than a rounding error.
        plausible: whether the step is not an outlier.
    """

    state: dict[str, Any]
    moved_by: Float[Array, ""]
    jump: Float[Array, ""]
    jumped: Bool[Array, ""]
    starting: Bool[Array, ""]
    measured: Bool[Array, ""]
    plausible: Bool[Array, ""]


def start() -> dict[str, Any]:
    r"""Return the running scale of no steps.

    It consists of its logarithm; the logarithms of the last excess of the parts, of the last :math:`g_0 \cdot g_0` and
    of its recent peak, and how far f has fallen since its last usual step, all relative to the scale; and the variance
    of the logarithm of :math:`g_0 \cdot g_0`.
    """
    zeros = ("log_scale", "log_excess", "log_own", "log_peak", "log_fallen")
    return {name: np.zeros(()) for name in zeros} | {"own_variance": np.asarray((FALL / CLEAR) ** 2)}


def has_fallen(averages: Mapping[str, Any]) -> Bool[Array, ""]:
    """Return whether f was clearly smaller in the last step than before."""
    return averages["log_fallen"] < 0


def follow(
    averages: Mapping[str, Any],
    own: Float[Array, ""],
    size: Float[Array, ""],
    earlier_size: Float[Array, ""],
    steps: Float[Array, ""],
    *,
    sees_f: bool,
    bounded: bool,
    fall: Float[Array, ""] | None = None,
) -> Followed:
    """Move the running scale by one step.

    Args:
        averages: the running averages before the step, with the names of `start`.
        own: the mean square of g0 in this step, in units of the scale; NaN if the step has no weight.
        size: the sum of the mean squares of g0 and of the control variates that have the unit of f.
        earlier_size: the same over the earlier steps.
        steps: the effective number of earlier steps.
        sees_f: whether the control variates become smaller with f. If they do not, as the learned surrogate, the scale
            follows two small steps in a row at once.
        bounded: whether there are also bounded control variates, for which steps after a fall of f must count as much.
        fall: how much the norm of the gradient says that f has become smaller at once, as a negative logarithm of a
            square; the scale follows it. None if nothing is known of it.
    """
    xp, known = namespace(own), steps > 0
    one, zero = xp.ones_like(own), xp.zeros_like(own)
    # A part that does not become smaller with f says nothing about the rounding of f.
    rounding = (ROUNDING * float(xp.finfo(own.dtype).eps)) ** 2 if sees_f else 0.0
    measured = xp.isfinite(own) & (own > rounding * size)
    present = xp.isfinite(size) & (size > 0)
    log_own = xp.log(xp.where(measured, own, one))
    excess = xp.log(xp.where(present & known, size / (earlier_size + TINY), one))
    lasting = xp.where(excess < averages["log_excess"], excess, averages["log_excess"])
    share = 1 / (steps + one)
    few = share > SCALE_RATE
    # The scale is that of g0: large control variates beside a g0 as before are no jump. Where all samples have the same
    # f there is no g0 to tell; the first steps may then have seen no large control variate yet, and this is one.
    risen = xp.where(measured & (log_own < lasting), log_own, lasting)
    jump = xp.where((lasting > JUMP) & (risen > 0), risen, zero)
    jumped = jump > 0
    plausible = (excess <= JUMP) | (lasting > JUMP) | (few & ~measured)
    decayed = averages["log_peak"] - PEAK_DECAY
    peak = xp.where(measured, xp.where((log_own > decayed) | ~known, log_own, decayed), averages["log_peak"])
    lowest = -CLEAR * xp.sqrt(averages["own_variance"])
    is_small = known & measured & (log_own < lowest)
    if not sees_f or bounded:
        larger = xp.where(log_own > averages["log_own"], log_own, averages["log_own"])
        largest, limit = (peak, FALL) if sees_f else (larger, lowest)
        follows = known & measured & (largest < limit)
        jump, jumped = xp.where(follows, largest, jump), jumped | follows
    if fall is not None:
        jump, jumped = xp.where(fall < 0, fall, jump), jumped | (fall < 0)
    # At first the scale is the mean over all steps, in whose units the earlier sums are expressed again: one unusual
    # first step would otherwise outweigh the others, or count for nothing, as long as it is remembered.
    starting = known & ~jumped & few
    # Where all samples have the same f, what is left of g0 may be a rounding error.
    later = xp.where(log_own > SLOWEST_FALL, log_own, zero + SLOWEST_FALL) if sees_f else log_own
    gradual = xp.where(few, xp.where(log_own > FALL, share * log_own, zero), SCALE_RATE * later)
    moved_by = xp.where(known, jump + xp.where(jumped, zero, gradual), log_own)
    moved_by = xp.where(measured & plausible | jumped, moved_by, zero)
    # A fall that did not last was chance, which is part of the variance.
    earlier = averages["log_fallen"]
    returned = (earlier < 0) & measured & ~is_small
    square = xp.where(returned, earlier, log_own) ** 2 - averages["own_variance"]
    counts = known & measured & plausible & ~is_small & ~jumped
    lower = xp.where(log_own < earlier, log_own, earlier)
    fallen = xp.where(is_small, lower - moved_by, xp.where(measured, zero, earlier))
    state = {
        "log_scale": averages["log_scale"] + moved_by,
        "log_excess": xp.where(present, excess - jump, averages["log_excess"]),
        "log_own": xp.where(measured, log_own - moved_by, averages["log_own"]),
        "log_peak": peak - moved_by,
        "log_fallen": xp.where(jumped, zero, fallen),
        "own_variance": averages["own_variance"] + xp.where(counts, DEVIATION_RATE * square, zero),
    }
    return Followed(state, moved_by, jump, jumped, starting, measured, plausible)
