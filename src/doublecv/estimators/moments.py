r"""Coefficients that cannot hurt: solved from running moments and judged on later steps.

The variance of :math:`g = g_0 + \sum_i c_i h_i` is a parabola in the coefficients, with the minimum at

.. math:: c = -E[h h^T]^{-1} E[h g_0].

Estimated from few numbers this solution fits noise and can multiply the variance. Four devices prevent it. All of them
use earlier steps only, so the estimate stays unbiased.

1. **A row of candidates.** The moments are exponential sums with the decays `MEMORIES`. Each of them gives a solution
   for every set of coefficients that the estimator names and, where it names a direction u, the best multiple of u,
   which has one number to learn only, at most `LARGEST_MULTIPLE`.
2. **A ridge in units of what is not explained.** With n coefficients in a set (1 for a multiple of u), N effective
   batch elements in the memory that they are solved from, and the share :math:`\rho` of the mean square of :math:`g_0`
   that the candidate left over on later steps, the system is

   .. math:: \big(S A S + \kappa \, (\rho + n / N) \, \tfrac{n}{N} I\big) \, S^{-1} c = -S b, \qquad
       S_{ii}^{-2} = A_{ii} + \eta m,

   where m is the mean square of the terms that the parts are differences of (`Parts.magnitude`) and :math:`\eta` is one
   of `MAGNITUDE_SHARES`; with an entropy of B > `MANY_BITS` bits, m counts `MANY_BITS / B` times. A control variate
   that is small by cancellation or rounding is therefore not blown up.
3. **Out-of-sample judgement.** Each candidate is applied to the next step, before that step enters the moments. With
   :math:`v = \sum_i c_i h_i` for the candidate c, the sums of :math:`v \cdot g_0` and :math:`v \cdot v` in each memory
   give the best factor :math:`t = -E[v \cdot g_0] / E[v \cdot v]` and its standard error. The candidate is used with a
   lower confidence limit of t, clipped to [0, 1]. A batch element whose :math:`g_0 \cdot g_0` exceeds `LARGEST_JUDGED`
   times the mean counts as much less: its factor is judged like that of others, but it does not decide alone.
4. **A weighted choice.** The coefficients are the average of :math:`t c` over candidates and memories, with weights
   that grow exponentially with the judged gain times the number of judged elements. RLOO takes part with the gain 0.
   A candidate starts with the weight :math:`\exp(-\lambda (\nu_1 n^2 / (N B))^2)`, where B is the entropy of x in bits:
   it may have been good for as long as its memory held many elements, and now rest on one. The weight of a solution
   for a set has one more factor, :math:`\exp(-\lambda (1 + (\nu n^2 / (M B))^2))` with M judged elements. It is used
   only if it is better than the multiple of u and was judged on many more numbers than it has coefficients: with few
   outcomes it fits all that were seen, whatever the others are. Before the first judgement the coefficients are 0,
   which leaves :math:`g_0`, RLOO.

Where x becomes almost certain within tens of steps, all memories forget the earlier ones sooner (`OUTDATED`).

Every step is measured in units of the running scale of :math:`g_0` (:mod:`doublecv.estimators.scale`), so the scale of
f does not matter. **Bounded** control variates have the direction of the gradient of f and the length of its running
norm (:mod:`doublecv.estimators.norm`). No outcome makes them very large, so they are trusted sooner than the others.
:mod:`doublecv.estimators.judgement` has the candidates and their weights.

The statistics are sums over batch elements: those of several calls, of the parts of a vmap or of several devices add
up. If they are averaged over n devices where they should be added up, the judgement takes the batch to be n times
smaller than it is; it becomes more cautious, and the estimate stays unbiased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil, log, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, at_least, at_most, matrix_product, namespace
from doublecv.distributions import Distribution, event_size
from doublecv.estimators import norm, scale
from doublecv.estimators.judgement import MEMORIES, System, choose, shapes, split
from doublecv.estimators.parts import Parts
from doublecv.estimators.scale import TINY

if TYPE_CHECKING:
    from jaxtyping import Float

LARGEST = 100.0
"""The largest multiple of the mean step that one step counts for."""

LARGEST_JUDGED = 25.0
"""The largest multiple of the mean g0 . g0 that one batch element counts for in the judgement. With heavy tails, few
elements would otherwise decide alone; the solutions themselves are fitted to all elements as they are."""

OUTDATED, LEAST_BITS, FASTEST = 0.5, 2.5, 0.5
"""All memories forget faster where the entropy of x is less than `OUTDATED` times its mean in the shortest of them:
most of the variance in them was that of another distribution. They keep at least the share `FASTEST` per step. Where
the mean is at most `LEAST_BITS` bits they forget as usual: one variable that becomes certain leaves little to learn."""

ENOUGH_ELEMENTS, ENOUGH_NUMBERS = 8, 1600
"""Batch elements used for the statistics: at least 8, or enough for 1600 gradient entries.

The averages run over hundreds of steps, so more elements would hardly improve the coefficients; all 100 elements of a
batch with 200 variables would take as long as the rest of the formula.
"""


def start(system: System) -> dict[str, Any]:
    """Return running averages of no steps."""
    memories = len(MEMORIES)
    return {
        "coefficients": np.zeros(system.number),
        "candidates": np.zeros((system.candidates, system.number)),
        "sums": np.zeros((memories, sum(map(prod, shapes(system))))),
        "steps": np.zeros(memories),
        "bits": np.zeros(()),
        **scale.start(),
        **(norm.start() if system.bounded else {}),
    }


def empty_statistics(system: System) -> dict[str, Any]:
    """Return the statistics of no batch element."""
    empty = {"sums": np.zeros(sum(map(prod, shapes(system)))), "weight": np.zeros(()), "entropy": np.zeros(())}
    return empty | norm.empty_statistics() if system.bounded else empty


def coefficients(averages: Mapping[str, Any]) -> Float[Array, "n"]:
    """Return the coefficients that the earlier steps justify."""
    return averages["coefficients"]


def statistics(
    averages: Mapping[str, Any], parts: Parts, names: Sequence[str], weight: Float[Array, "*batch"], system: System
) -> dict[str, Any]:
    r"""Return the sums over batch elements that `advance` takes.

    Args:
        averages: the running averages that the estimate was made with; their candidates are judged.
        parts: the parts of the estimate.
        names: the order of the coefficients.
        weight: the absolute weight of each batch element in the loss. An element with weight 0 does not count, even if
            its parts are not finite.
        system: the system that `start` was called with.
    """
    q = parts.q
    xp, step = q.xp, _step(q)
    if step > 1:
        parts, weight = parts.subsample(step), q.subsample_array(step, weight)
        q = parts.q
    # A state in NumPy has a type that JAX may not have.
    candidates = xp.asarray(averages["candidates"])
    dtype = candidates.dtype
    weight, size = xp.astype(weight, dtype), event_size(q)
    counts = weight > 0
    stacked = xp.astype(parts.stack(names), dtype)
    # The parts in units of the running scale; bounded control variates have the unit of the running norm.
    is_bounded = xp.asarray(system.is_bounded, dtype=dtype, device=device(stacked))
    log_unit = is_bounded * averages["log_unit"] if system.bounded else is_bounded
    amplitude = xp.exp((log_unit - averages["log_scale"]) / 2) / size**0.5
    stacked = stacked * xp.reshape(amplitude, (-1, *(1,) * (stacked.ndim - 1)))
    # The event axes are the last ones, so that the weight broadcasts from the batch axes.
    stacked = xp.where(counts[(..., *(None,) * q.event_axes)], stacked, xp.zeros_like(stacked))
    flat = xp.reshape(stacked, (stacked.shape[0], -1))
    controls = xp.reshape(matrix_product(candidates, flat[1:]), (candidates.shape[0], *stacked.shape[1:]))
    own = _per_element(q, weight, stacked[:1], stacked[:1])
    with_g0, square = _per_element(q, weight, controls, stacked[:1]), _per_element(q, weight, controls, controls)
    share = _judged_share(own, averages, system)
    own, with_g0, square = share * own, share * with_g0, share * square
    magnitude = xp.astype(parts.magnitude(names), dtype)
    magnitude = magnitude * xp.reshape(amplitude[1:] ** 2, (-1, *(1,) * (magnitude.ndim - 1)))
    scaled = xp.reshape(q.scale(xp.sqrt(weight), stacked), flat.shape)
    linear = xp.concat([xp.where(counts, magnitude, xp.zeros_like(magnitude)), with_g0, square, own])
    squared = xp.concat([own**2, with_g0**2, with_g0 * square, square**2])
    entropy = xp.where(counts, xp.astype(q.visited_entropy(), dtype), xp.zeros_like(weight))
    products = xp.reshape(matrix_product(scaled, scaled.T), (-1,))
    sums = xp.concat([products, _sum(xp, weight, linear), _sum(xp, weight**2, squared)])
    statistics = {"sums": sums, "weight": xp.sum(weight), "entropy": xp.sum(weight * entropy) / log(2)}
    if system.bounded:
        assert parts.norm is not None
        statistics |= norm.statistics(averages, xp.astype(parts.norm, dtype), weight)
    return statistics


def advance(
    averages: Mapping[str, Any],
    statistics: Mapping[str, Any],
    system: System,
    *,
    sees_f: bool = True,
    fall: Float[Array, ""] | None = None,
) -> dict[str, Any]:
    """Move the running averages by one step; a step without weight or with numbers that are not finite is skipped.

    Args:
        averages: the running averages that the statistics were made with.
        statistics: the sums over all batch elements of the step.
        system: the system that `start` was called with.
        sees_f: whether the control variates that are not bounded become smaller with f, as those of a linear estimator
            do. If they do not, the scale must follow a fall of f at once.
        fall: a fall of f that is known from elsewhere, as `scale.follow` takes it.
    """
    sums, raw, weight = averages["sums"], statistics["sums"], statistics["weight"]
    xp, n = namespace(sums), system.number
    one, zero = xp.ones_like(weight), xp.zeros_like(weight)
    steps = averages["steps"][-1]
    known, safe_weight = steps > 0, xp.where(weight > 0, weight, one)

    def array(values: Any) -> Array:
        return xp.asarray(np.asarray(values, dtype=float), dtype=sums.dtype, device=device(sums))

    # The squares of the parts: every (n + 2)-th product is on the diagonal.
    has_unit = array(system.is_bounded) == 0
    squares, earlier = (
        xp.where(has_unit, products[: (1 + n) ** 2 : n + 2], array(np.zeros(1 + n)))
        for products in (raw / safe_weight, sums[-1] / xp.where(known, steps, one))
    )
    own, size = squares[0], xp.sum(squares)
    of_earlier, bounded = xp.sum(earlier), bool(system.bounded)
    running = scale.follow(averages, own, size, of_earlier, steps, sees_f=sees_f, bounded=bounded, fall=fall)
    usable = (weight > 0) & xp.isfinite(size) & (size > 0) & running.plausible & (known | running.measured)
    usable = usable & xp.all(xp.isfinite(raw))

    # The first step is its own unit; later ones come in units of the steps before them.
    unit = xp.where(known, xp.exp(-running.jump), 1 / xp.where(running.measured, own, one))
    too_large = xp.where(known, own * unit / (LARGEST * earlier[0] + TINY), zero)
    share = safe_weight * xp.where(too_large > 1, too_large, one)
    orders, of_norm, of_products = (array(values) for values in _exponents(system))
    step = xp.where(usable, raw, xp.zeros_like(raw)) * (unit / share) ** orders
    conversion = xp.exp(-xp.where(running.starting, running.moved_by, zero) * orders)
    log_unit, of_running_norm = array(np.zeros(n)), {}
    if system.bounded:
        followed = norm.follow(averages, statistics["norms"], weight, at_least(running.jump, 0))
        log_unit, of_running_norm = array(system.is_bounded)[1:] * followed.state["log_unit"], followed.state
        # The control variates that were judged in a step with a jump were partly in the former unit.
        step = xp.where(running.jumped, step * of_products, step) * xp.exp(followed.of_step * of_norm)
        conversion = conversion * xp.exp(followed.of_earlier * of_norm)
    of_squares = 1 + 3 * system.candidates
    # The squares of the first step may have been rounded to 0; it counts as one element.
    squared = xp.where(known, step[-of_squares:], array(np.eye(1, of_squares)[0]))
    step = xp.concat([step[:-of_squares], squared])
    bits = statistics["entropy"] / safe_weight
    usual = averages["bits"] / (averages["steps"][0] + TINY)
    forgets = at_most(at_least(bits / (OUTDATED * usual + TINY), FASTEST), 1)
    decay = array(MEMORIES) * xp.where(usual > LEAST_BITS, forgets, one)
    moved = {"sums": (decay[:, None] * sums + step) * conversion}
    moved |= {"steps": decay * averages["steps"] + one, "bits": decay[0] * averages["bits"] + bits}
    chosen, candidates = choose(averages["candidates"], moved["sums"], bits, system)
    if system.bounded:
        # Bounded control variates do not become smaller with f by themselves, nor can those that are used with them.
        fall = norm.fall(of_running_norm)
        chosen = xp.where(
            scale.has_fallen(running.state) & (fall < -running.state["log_fallen"] / 2), 0 * chosen, chosen
        )
    moved |= {"coefficients": chosen * xp.exp(log_unit / 2), "candidates": candidates} | of_running_norm
    sane = usable & xp.all(xp.isfinite(candidates)) & xp.all(xp.isfinite(chosen))
    return {name: xp.where(sane, value, averages[name]) for name, value in moved.items()} | running.state


@cache
def _exponents(system: System) -> tuple[Float[np.ndarray, "s"], Float[np.ndarray, "s"], Float[np.ndarray, "s"]]:
    """Return, for all that is summed, the powers of the scale and of the norm, and 1 for what is not judged.

    The powers of the scale are also those of the weight. Sums that are judged are not converted to another norm.
    """
    bounded, candidates = system.is_bounded, system.candidates
    products = (bounded[:, None] + bounded).ravel()
    solved, judged, squares = np.ones(products.size + system.number), np.ones(2 * candidates), np.ones(3 * candidates)
    of_scale = np.concatenate([solved, judged, [1.0, 2.0], 2 * squares])
    of_norm = np.concatenate([products / 2, bounded[1:], 0 * judged, [0.0, 0.0], 0 * squares])
    is_kept = np.concatenate([solved, 0 * judged, [1.0, 1.0], 0 * squares])
    return of_scale, of_norm, is_kept


def _judged_share(
    own: Float[Array, "1 *batch"], averages: Mapping[str, Any], system: System
) -> Float[Array, "1 *batch"]:
    """Return the share with which each batch element counts in the judgement, from its g0 . g0."""
    xp = namespace(own)
    sums, steps = xp.asarray(averages["sums"])[-1], xp.asarray(averages["steps"])[-1]
    usual, ones = split(sums, system).own[0] / at_least(steps, TINY), xp.ones_like(own)
    is_large = (usual > 0) & (own > LARGEST_JUDGED * usual)
    return xp.where(is_large, LARGEST_JUDGED * usual / xp.where(is_large, own, ones), ones)


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
