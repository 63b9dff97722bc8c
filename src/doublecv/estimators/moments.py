r"""Coefficients that cannot hurt: solved from running moments and judged on later steps.

The variance of :math:`g = g_0 + \sum_i c_i h_i` is a parabola in the coefficients, with the minimum at

.. math:: c = -E[h h^T]^{-1} E[h g_0].

Estimated from few numbers this solution fits noise and can multiply the variance. Four devices prevent it. All of them
use earlier steps only, so the estimate stays unbiased.

1. **A row of candidates.** The moments are exponential sums with the decays `MEMORIES`. Each of them gives a solution
   for all coefficients and, where the estimator names a direction u, the best multiple of u, which has one number to
   learn only, at most `LARGEST_MULTIPLE`.
2. **A ridge in units of what is not explained.** With n coefficients (1 for a multiple of u), N effective batch
   elements in the memory that they are solved from, and the share :math:`\rho` of the mean square of :math:`g_0` that
   the candidate left over on later steps, the system is

   .. math:: \big(S A S + \kappa \, (\rho + n / N) \, \tfrac{n}{N} I\big) \, S^{-1} c = -S b, \qquad
       S_{ii}^{-2} = A_{ii} + \eta m,

   where m is the mean square of the terms that the parts are differences of (`Parts.magnitude`) and :math:`\eta` is one
   of `MAGNITUDE_SHARES`. A control variate that is small by cancellation or rounding is therefore not blown up.
3. **Out-of-sample judgement.** Each candidate is applied to the next step, before that step enters the moments. With
   :math:`v = \sum_i c_i h_i` for the candidate c, the sums of :math:`v \cdot g_0` and :math:`v \cdot v` in each memory
   give the best factor :math:`t = -E[v \cdot g_0] / E[v \cdot v]` and its standard error. The candidate is used with a
   lower confidence limit of t, clipped to [0, 1].
4. **A weighted choice.** The coefficients are the average of :math:`t c` over candidates and memories, with weights
   that grow exponentially with the judged gain times the number of judged elements. RLOO takes part with the gain 0.
   A candidate starts with the weight :math:`\exp(-\lambda (\nu_1 n^2 / (N B))^2)`, where B is the number of bits of an
   x: it may have been good for as long as its memory held many elements, and now rest on one. The weight of a solution
   for all coefficients has one more factor, :math:`\exp(-\lambda (1 + (\nu n^2 / (M B))^2))` with M judged elements. It
   is used only if it is better than the multiple of u and was judged on many more numbers than it has coefficients:
   with few outcomes it fits all that were seen, whatever the others are. Before the first judgement the coefficients
   are 0, which leaves :math:`g_0`, RLOO.

Every step is measured in units of the running geometric mean of :math:`g_0 \cdot g_0`, so the scale of f does not
matter. Steps in which all samples have the same f say nothing about the scale. A step whose parts are thousands of
times larger than before is left out if the next one is not so large too.

The statistics are sums over batch elements: those of several calls, of the parts of a vmap or of several devices add
up. If they are averaged over n devices where they should be added up, the judgement takes the batch to be n times
smaller than it is; it becomes more cautious, and the estimate stays unbiased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, matrix_product, namespace
from doublecv.distributions import Distribution, event_bits, event_size
from doublecv.estimators.parts import Parts

if TYPE_CHECKING:
    from jaxtyping import Float

MEMORIES = (0.97, 0.999)
"""The decays of all sums per step."""

RIDGE_OF_ALL, RIDGE_OF_ONE = 0.01, 3.0
r"""The factor :math:`\kappa` of the ridge in the solution for all coefficients, and in that for a multiple of u."""

LARGEST_MULTIPLE = 1.5
"""The largest multiple of u. With the multiple -1 a linear f has no variance left; a much larger one means that the
gradient of f is small in the outcomes that were seen, and it may be large in others."""

MAGNITUDE_SHARES = (2.0, 0.05)
"""The multiple of the mean of `Parts.magnitude` that is added to the mean squares of the control variates, for the sums
of each memory: what cancels over a thousand steps is relied on more than what cancels over thirty."""

LOWER = 1.0
"""How many standard errors the confidence limit of t lies below its estimate."""

UNSEEN = 2.0
"""The number of elements that are assumed in the judgement to have no cancellation at all."""

RARE = 2.0
"""With B bits per x, `LOWER` and `UNSEEN` are `1 + RARE / B^2` times as large: few variables have few outcomes, and
rare ones stay unseen for long."""

PRIOR, HELD_NUMBERS, JUDGED_NUMBERS = 3.0, 4.0, 20.0
r"""The :math:`\lambda`, :math:`\nu_1` and :math:`\nu` in the first weight of a candidate."""

SCALE_RATE = 0.05
"""The share of each step in the running logarithm of the mean square of g0, after as many steps as it allows for."""

LARGEST = 100.0
"""The largest multiple of the mean step that one step counts for."""

JUMP = log(1e4)
"""A step is left out if its parts exceed the mean by this much in the logarithm; two in a row are a jump of the scale,
which is followed at once."""

FALL = log(1e-4)
"""The logarithm of g0 . g0, relative to the running scale, below which f may have become much smaller at once."""

SLOWEST_FALL = log(0.1)
"""The smallest logarithm of g0 . g0, relative to the running scale, that the scale of a linear estimator follows in
proportion: nearly all steps of an almost certain variable have a tiny g0, and the few others make the variance."""

ROUNDING = 100.0
"""The number of rounding errors, relative to the parts, below which g0 is one itself: all samples have the same f."""

LEAST_RIDGE = 1e-8
"""The smallest ridge on the unit diagonal of the system; ten rounding errors if that is more."""

TINY = 1e-30
"""What is added to denominators, in the units of the running scale, so that 0 / 0 is 0."""

ENOUGH_ELEMENTS, ENOUGH_NUMBERS = 8, 1600
"""Batch elements used for the statistics: at least 8, or enough for 1600 gradient entries.

The averages run over hundreds of steps, so more elements would hardly improve the coefficients; all 100 elements of a
batch with 200 variables would take as long as the rest of the formula.
"""

Direction = tuple[float, ...]
"""A direction u in the space of the coefficients."""


class _Sums(NamedTuple):
    """Hold what is summed over batch elements, and over steps with each decay.

    Attributes:
        products: the inner products of g0 and the control variates.
        magnitude: the size of each control variate before cancellation.
        judged: v . g0 and v . v of every candidate.
        own_square: (g0 . g0)^2.
        judged_squares: (v . g0)^2, (v . g0) (v . v) and (v . v)^2 of every candidate.
    """

    products: Float[Array, "*memories 1+n 1+n"]
    magnitude: Float[Array, "*memories n"]
    judged: Float[Array, "*memories 2 j"]
    own_square: Float[Array, "*memories 1"]
    judged_squares: Float[Array, "*memories 3 j"]


def _shapes(n: int, candidates: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of what is summed."""
    return ((1 + n, 1 + n), (n,), (2, candidates), (1,), (3, candidates))


def _split(sums: Float[Array, "*memories s"], n: int, candidates: int) -> _Sums:
    """Return the sums of one array, in which they lie one after the other, so that one operation moves all of them."""
    xp, end, parts = namespace(sums), 0, []
    for shape in _shapes(n, candidates):
        start, end = end, end + prod(shape)
        parts.append(xp.reshape(sums[..., start:end], (*sums.shape[:-1], *shape)))
    return _Sums(*parts)


def start(n: int, direction: Direction | None = None) -> dict[str, Any]:
    """Return running averages of no steps.

    Args:
        n: the number of coefficients.
        direction: the direction u; None if there is no direction that is better than others.
    """
    memories, candidates = len(MEMORIES), len(MEMORIES) * len(_solves_all(n, direction))
    return {
        "coefficients": np.zeros(n),
        "candidates": np.zeros((candidates, n)),
        "sums": np.zeros((memories, sum(map(prod, _shapes(n, candidates))))),
        "steps": np.zeros(memories),
        "log_scale": np.zeros(()),
        "log_excess": np.zeros(()),
        "log_own": np.zeros(()),
    }


def empty_statistics(n: int, direction: Direction | None = None) -> dict[str, Any]:
    """Return the statistics of no batch element."""
    return {"sums": np.zeros(start(n, direction)["sums"].shape[1]), "weight": np.zeros(()), "bits": np.zeros(())}


def coefficients(averages: Mapping[str, Any]) -> Float[Array, "n"]:
    """Return the coefficients that the earlier steps justify."""
    return averages["coefficients"]


def statistics(
    averages: Mapping[str, Any], parts: Parts, names: Sequence[str], weight: Float[Array, "*batch"]
) -> dict[str, Any]:
    r"""Return the sums over batch elements that `advance` takes.

    Args:
        averages: the running averages that the estimate was made with; their candidates are judged.
        parts: the parts of the estimate.
        names: the order of the coefficients.
        weight: the absolute weight of each batch element in the loss. An element with weight 0 does not count, even if
            its parts are not finite.
    """
    q = parts.q
    xp, step = q.xp, _step(q)
    if step > 1:
        parts, weight = parts.subsample(step), q.subsample_array(step, weight)
        q = parts.q
    candidates, dtype = averages["candidates"], averages["candidates"].dtype
    weight, size = xp.astype(weight, dtype), event_size(q)
    counts = weight > 0
    amplitude = xp.exp(-averages["log_scale"] / 2)
    stacked = xp.astype(parts.stack(names), dtype) * (amplitude / size**0.5)
    # The event axes are the last ones, so that the weight broadcasts from the batch axes.
    stacked = xp.where(counts[(..., *(None,) * q.event_axes)], stacked, xp.zeros_like(stacked))
    flat = xp.reshape(stacked, (stacked.shape[0], -1))
    controls = xp.reshape(matrix_product(candidates, flat[1:]), (candidates.shape[0], *stacked.shape[1:]))
    own = _per_element(q, weight, stacked[:1], stacked[:1])
    with_g0, square = _per_element(q, weight, controls, stacked[:1]), _per_element(q, weight, controls, controls)
    magnitude = xp.astype(parts.magnitude(names), dtype) * (amplitude**2 / size)
    scaled = xp.reshape(q.scale(xp.sqrt(weight), stacked), flat.shape)
    linear = xp.concat([xp.where(counts, magnitude, xp.zeros_like(magnitude)), with_g0, square])
    squared = xp.concat([own**2, with_g0**2, with_g0 * square, square**2])
    total = xp.sum(weight)
    products = xp.reshape(matrix_product(scaled, scaled.T), (-1,))
    sums = xp.concat([products, _sum(xp, weight, linear), _sum(xp, weight**2, squared)])
    return {"sums": sums, "weight": total, "bits": event_bits(q) * total}


def advance(
    averages: Mapping[str, Any],
    statistics: Mapping[str, Any],
    direction: Direction | None = None,
    *,
    follow_falls: bool = False,
) -> dict[str, Any]:
    """Move the running averages by one step; a step without weight or with numbers that are not finite is skipped.

    Args:
        averages: the running averages that the statistics were made with.
        statistics: the sums over all batch elements of the step.
        direction: the direction u that `start` was called with.
        follow_falls: whether the scale follows two small steps in a row at once. The parts of a linear estimator become
            smaller with f, so that it can wait; a control variate that does not see f cannot.
    """
    sums, raw, weight = averages["sums"], statistics["sums"], statistics["weight"]
    xp, n = namespace(sums), averages["coefficients"].shape[0]
    one, zero = xp.ones_like(weight), xp.zeros_like(weight)
    weighted, steps = weight > 0, averages["steps"][-1]
    known, safe_weight = steps > 0, xp.where(weighted, weight, one)

    # The squares of the parts: every (n + 2)-th product is on the diagonal.
    squares = raw[: (1 + n) ** 2 : n + 2] / safe_weight
    earlier = sums[-1, : (1 + n) ** 2 : n + 2] / xp.where(known, steps, one)
    own, size, earlier_size = squares[0], xp.sum(squares), xp.sum(earlier)
    # A part that does not become smaller with f says nothing about the rounding of f.
    rounding = 0.0 if follow_falls else (ROUNDING * float(xp.finfo(sums.dtype).eps)) ** 2
    measured = weighted & xp.isfinite(own) & (own > rounding * size)
    present = weighted & xp.isfinite(size) & (size > 0)
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
    if follow_falls:
        larger = xp.where(log_own > averages["log_own"], log_own, averages["log_own"])
        fallen = known & measured & (larger < FALL)
        jump, jumped = xp.where(fallen, larger, jump), jumped | fallen
    # At first the scale is the mean over all steps, in whose units the earlier sums are expressed again: one unusual
    # first step would otherwise outweigh the others, or count for nothing, as long as it is remembered.
    starting = known & ~jumped & few
    # Where all samples have the same f, what is left of g0 may be a rounding error.
    later = log_own if follow_falls else xp.where(log_own > SLOWEST_FALL, log_own, zero + SLOWEST_FALL)
    gradual = xp.where(few, xp.where(log_own > FALL, share * log_own, zero), SCALE_RATE * later)
    moved_by = xp.where(known, jump + xp.where(jumped, zero, gradual), log_own)
    moved_by = xp.where(measured & plausible | jumped, moved_by, zero)
    scale = {
        "log_scale": averages["log_scale"] + moved_by,
        "log_excess": xp.where(present, excess - jump, averages["log_excess"]),
        "log_own": xp.where(measured, log_own - moved_by, averages["log_own"]),
    }

    usable = present & plausible & (known | measured) & xp.all(xp.isfinite(raw))
    # The first step is its own unit; later ones come in units of the steps before them.
    unit = xp.where(known, xp.exp(-jump), 1 / xp.where(measured, own, one))
    too_large = xp.where(known, own * unit / (LARGEST * earlier[0] + TINY), zero)
    factor = unit / safe_weight / xp.where(too_large > 1, too_large, one)
    linear = xp.where(usable, raw, xp.zeros_like(raw)) * factor
    of_squares = 1 + 3 * averages["candidates"].shape[0]
    # The squares of the first step may have been rounded to 0; it counts as one element.
    first = xp.asarray(np.eye(1, of_squares)[0], dtype=sums.dtype, device=device(sums))
    squared = xp.where(known, linear[-of_squares:] * factor, first)
    step = xp.concat([linear[:-of_squares], squared])
    decay = xp.asarray(np.asarray(MEMORIES), dtype=sums.dtype, device=device(sums))
    powers = np.repeat([1.0, 2.0], [step.shape[0] - of_squares, of_squares])
    powers = xp.asarray(powers, dtype=sums.dtype, device=device(sums))
    conversion = xp.exp(-xp.where(starting, moved_by, zero) * powers)
    moved = {"sums": (decay[:, None] * sums + step) * conversion, "steps": decay * averages["steps"] + one}
    candidates, bits = averages["candidates"], statistics["bits"] / safe_weight
    moved["coefficients"], moved["candidates"] = _choose(candidates, moved["sums"], bits, direction)
    sane = usable & xp.all(xp.isfinite(moved["candidates"])) & xp.all(xp.isfinite(moved["coefficients"]))
    return {name: xp.where(sane, value, averages[name]) for name, value in moved.items()} | scale


def _choose(
    judged: Float[Array, "j n"], sums: Float[Array, "m s"], bits: Float[Array, ""], direction: Direction | None
) -> tuple[Float[Array, "n"], Float[Array, "j n"]]:
    """Return the coefficients and the new candidates, from the judgement of the former candidates."""
    xp, (count, n), memories = namespace(sums), judged.shape, len(MEMORIES)
    now = _split(sums, n, count)
    own, squares = now.products[:, 0, :1], now.judged_squares
    elements = own**2 / (now.own_square + TINY)
    with_g0, square = now.judged[:, 0], now.judged[:, 1]
    slope = xp.clip(-with_g0 / (square + TINY), 0, None)
    left_over = xp.clip(1 + slope * with_g0 / (own + TINY), 0, 1)
    scatter = xp.clip(squares[:, 0] + slope * (2 * squares[:, 1] + slope * squares[:, 2]), 0, None)
    # The factor fits one element exactly, so an element of the mean size is added; few elements underestimate the rest.
    scatter = scatter + (with_g0 / (elements + TINY)) ** 2
    error = xp.sqrt(scatter) / (square + TINY) * (1 + 1 / xp.clip(elements - 1, 1e-6, None))

    # An element that was not seen yet may have nothing of the cancellation that the coefficients rely on.
    sizes = xp.reshape(judged, (memories, -1, n)) ** 2 * now.magnitude[:, None, :]
    unseen = xp.reshape(xp.sum(sizes, axis=-1) / (own + TINY), (-1,))
    bits = xp.clip(bits, 1, None)
    rare = 1 + RARE / bits**2
    caution = own / (elements + TINY) * (left_over + UNSEEN * rare * unseen)
    cautious = -with_g0 / (square + caution + TINY)
    factor = xp.clip(cautious - LOWER * rare * error, 0, 1)
    gain = -factor * (2 * with_g0 + factor * square) / (own + TINY)

    is_solution = np.tile(_solves_all(n, direction), memories)
    of_all, learned = (
        xp.asarray(values.astype(float), dtype=sums.dtype, device=device(sums))
        for values in (is_solution, np.where(is_solution, n, 1))
    )
    held = xp.reshape(elements * xp.ones_like(xp.reshape(learned, (memories, -1))), (-1,))
    too_few_held = xp.clip(HELD_NUMBERS * learned**2 / (held * bits + TINY), None, 1e3)
    too_few_judged = xp.clip(JUDGED_NUMBERS * n**2 / (elements * bits + TINY), None, 1e3)
    penalty = PRIOR * (too_few_held**2 + of_all * (1 + too_few_judged**2))
    support = gain * elements - penalty
    highest = xp.clip(xp.max(support), 0, None)
    share = xp.where(gain > 0, xp.exp(support - highest), xp.zeros_like(gain))
    share = xp.sum(factor * share, axis=0) / (xp.sum(share) + xp.exp(-highest))

    unexplained = xp.clip(left_over[-1] + learned / (held + TINY), 0, 1)
    ridge = xp.reshape(unexplained / (held + TINY), (memories, -1))
    candidates = xp.reshape(_solve(now, ridge, direction), (count, n))
    return xp.sum(share[:, None] * candidates, axis=0), candidates


def _solve(now: _Sums, ridge: Float[Array, "m v"], direction: Direction | None) -> Float[Array, "m v n"]:
    """Return the solutions of every memory: the multiple of the direction, then all coefficients."""
    xp, n = namespace(ridge), now.magnitude.shape[-1]
    least = max(LEAST_RIDGE, 10 * float(xp.finfo(ridge.dtype).eps))
    solutions = []
    for variant, of_all in enumerate(_solves_all(n, direction)):
        if of_all:
            of_ridge = xp.clip(RIDGE_OF_ALL * n * ridge[:, variant], least, None)
            shares = xp.asarray(np.asarray(MAGNITUDE_SHARES), dtype=ridge.dtype, device=device(ridge))
            magnitude = shares * xp.sum(now.magnitude, axis=-1) / n
            solutions.append(least_variance(now.products, of_ridge, magnitude))
            continue
        u = xp.asarray(np.asarray((1.0,) if direction is None else direction), dtype=ridge.dtype, device=device(ridge))
        square = xp.sum((now.products[:, 1:, 1:] @ u) * u, axis=-1)
        of_ridge = xp.clip(RIDGE_OF_ONE * ridge[:, variant], least, None) * (square + now.magnitude @ u**2)
        multiple = -(now.products[:, 1:, 0] @ u) / (xp.clip(square, 0, None) + of_ridge + TINY)
        if direction is not None:
            multiple = xp.clip(multiple, -LARGEST_MULTIPLE, LARGEST_MULTIPLE)
        solutions.append(multiple[:, None] * u)
    return xp.stack(solutions, axis=1)


def _solves_all(n: int, direction: Direction | None) -> tuple[bool, ...]:
    """Return, for every candidate of a memory, whether it is a solution for all coefficients."""
    if n == 1:
        return (False,)
    return (True,) if direction is None else (False, True)


def least_variance(
    moments: Float[Array, "*j parts parts"],
    ridge: Float[Array, "*j"] | None = None,
    magnitude: Float[Array, "*j"] | None = None,
) -> Float[Array, "*j parts-1"]:
    r"""Return :math:`c = -S (S A S + ridge)^{-1} S b` with :math:`A = E[h h^T]` and :math:`b = E[h g_0]`.

    The diagonal S makes the diagonal of S A S equal to 1, or less where the magnitude is not 0, so that the ridge means
    the same for all coefficients. A control variate that was always 0 gets the coefficient 0.

    Args:
        moments: the matrix :math:`E[(g_0, h) (g_0, h)^T]`, or several of them.
        ridge: what is added to the diagonal; None for ten rounding errors.
        magnitude: what is added to the mean squares of h in S; None for 0.
    """
    xp = namespace(moments)
    products, with_g0 = moments[..., 1:, 1:], moments[..., 1:, 0]
    diagonal = xp.linalg.diagonal(products)
    if ridge is None:
        ridge = max(LEAST_RIDGE, 10 * float(xp.finfo(moments.dtype).eps)) * xp.ones_like(diagonal[..., 0])
    unit = diagonal if magnitude is None else diagonal + magnitude[..., None]
    seen = unit > 0
    scale = xp.where(seen, 1 / xp.sqrt(xp.where(seen, unit, xp.ones_like(unit))), xp.zeros_like(unit))
    identity = xp.eye(diagonal.shape[-1], dtype=diagonal.dtype, device=device(diagonal))
    system = scale[..., :, None] * products * scale[..., None, :] + ridge[..., None, None] * identity
    return -scale * xp.linalg.solve(system, (scale * with_g0)[..., None])[..., 0]


def _per_element(q: Distribution, weight: Array, a: Array, b: Array) -> Float[Array, "j *batch"]:
    """Return the inner products of every batch element, over all axes but the first and those of the batch."""
    products = q.dot(a, b)
    extra = products.ndim - 1 - weight.ndim
    return q.xp.sum(products, axis=tuple(range(1, 1 + extra))) if extra else products


def _sum(xp: Any, weight: Float[Array, "*batch"], values: Float[Array, "j *batch"]) -> Float[Array, "j"]:
    """Return the weighted sums over the batch axes."""
    return xp.sum(weight * values, axis=tuple(range(1, values.ndim)))


def _step(q: Distribution) -> int:
    """Return the distance between the batch elements that the statistics are taken from."""
    enough = max(ENOUGH_ELEMENTS, ceil(ENOUGH_NUMBERS / max(1, event_size(q))))
    return max(1, ceil(prod(q.batch_shape) / enough))
