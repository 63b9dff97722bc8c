r"""Coefficients that cannot hurt: solved from running moments and judged on later steps.

The variance of :math:`g = g_0 + \sum_i c_i h_i` is a parabola in the coefficients, with the minimum at

.. math:: c = -E[h h^T]^{-1} E[h g_0].

Estimated from few numbers this solution fits noise and can multiply the variance. Four devices prevent it. All of them
use earlier steps only, so the estimate stays unbiased.

1. **Several memories.** The moments are exponential sums with the decays `MEMORIES`. Each memory is solved with the
   ridges `RIDGES`, which gives a row of candidates :math:`c^{(j)}`.
2. **A ridge in units of what is not explained.** With n coefficients, N effective batch elements in the memory and the
   share :math:`\rho` of the mean square of :math:`g_0` that the candidate left over on later steps, the system is

   .. math:: \big(S A S + \kappa \, (\rho + n / N) \, \tfrac{n}{N} I\big) \, S^{-1} c = -S b, \qquad
       S_{ii}^{-2} = A_{ii} + 2 m,

   where m is the mean square of the terms that the parts are differences of (`Parts.magnitude`). A control variate that
   is small by cancellation or rounding is therefore not blown up.
3. **Out-of-sample judgement.** Each candidate is applied to the next step, before that step enters the moments. With
   :math:`v = \sum_i c^{(j)}_i h_i`, the sums of :math:`v \cdot g_0` and :math:`v \cdot v` give the best factor
   :math:`t = -E[v \cdot g_0] / E[v \cdot v]` and its standard error, in each of the memories `JUDGES`. The candidate
   gets the largest lower confidence limit of t, but no more than the smallest upper limit, clipped to [0, 1].
4. **A weighted choice.** The coefficients are the average of :math:`t_j c^{(j)}` with weights that grow exponentially
   with the judged gain. Before the first judgement all t are 0, which leaves :math:`g_0`, RLOO.

Every step is measured in units of the running geometric mean of :math:`g_0 \cdot g_0`, and counts at most `LARGEST`
times the mean step, so neither the scale of f nor an outlier matters.

The statistics are sums over batch elements: those of several calls, of the parts of a vmap or of several devices add
up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, matrix_product, namespace
from doublecv.distributions import Distribution, event_size
from doublecv.estimators.parts import Parts

if TYPE_CHECKING:
    from jaxtyping import Float

MEMORIES = (0.9, 0.99, 0.999)
"""The decays of the moments per step."""

RIDGES = (0.1, 1.0, 10.0)
"""The factors of the ridge; each memory is solved with each of them."""

JUDGES = (0.9, 0.97, 0.99, 0.999)
"""The decays of the out-of-sample judgement per step."""

LONG = 2
"""The number of judges, the last ones, whose E[v v] / E[g0 g0] bounds t from above: a rare outcome in which v is large
must not be forgotten because it has not occurred for a while."""

LOWER, UPPER = 0.6, 2.0
"""How many standard errors the confidence limits of t lie below and above its estimate."""

SMALL_SAMPLE = 3.0
"""The standard errors are multiplied by 1 + SMALL_SAMPLE / (N - 1), as few elements underestimate them."""

SHARPNESS = 0.2
"""How fast the weight of a candidate grows with its judged gain times the effective number of judged elements."""

MAGNITUDE_SHARE = 2.0
"""The multiple of `Parts.magnitude` that is added to the mean squares of the control variates."""

SCALE_RATE = 0.05
"""The share of each step in the running logarithm of the mean square of g0."""

LARGEST = 30.0
"""The largest multiple of the mean step that one step counts for."""

JUMP = 4.0
"""If two steps in a row exceed the running scale by this much in the logarithm, the scale follows at once."""

UNSEEN = 1.0
"""The number of elements that are assumed in the judgement to have no cancellation at all."""

LEAST_RIDGE = 1e-8
"""The smallest ridge on the unit diagonal of the system; ten rounding errors if that is more."""

ENOUGH_ELEMENTS, ENOUGH_NUMBERS = 8, 1600
"""Batch elements used for the statistics: at least 8, or enough for 1600 gradient entries.

The averages run over hundreds of steps, so more elements would hardly improve the coefficients; all 100 elements of a
batch with 200 variables would take as long as the rest of the formula.
"""


def start(coefficients: int) -> dict[str, Any]:
    """Return running averages of no steps."""
    n, candidates, judges = coefficients, len(MEMORIES) * len(RIDGES), len(JUDGES)
    return {
        "coefficients": np.zeros(n),
        "candidates": np.zeros((candidates, n)),
        "moments": np.zeros((candidates, 1 + n, 1 + n)),
        "own_squares": np.zeros(candidates),
        "magnitude": np.zeros(candidates),
        "judged": np.zeros((judges, 2, candidates)),
        "judged_squares": np.zeros((judges, 3, candidates)),
        "judged_own": np.zeros((judges, 2)),
        "steps": np.zeros(2),
        "log_scale": np.zeros(()),
        "log_excess": np.zeros(()),
    }


def empty_statistics(coefficients: int) -> dict[str, Any]:
    """Return the statistics of no batch element."""
    candidates = len(MEMORIES) * len(RIDGES)
    return {
        "products": np.zeros((1 + coefficients, 1 + coefficients)),
        "judged": np.zeros((2, candidates)),
        "judged_squares": np.zeros((3, candidates)),
        "own_squares": np.zeros(()),
        "magnitude": np.zeros(()),
        "weight": np.zeros(()),
    }


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
    g0 = stacked[:1]
    controls = xp.reshape(matrix_product(candidates, flat[1:]), (candidates.shape[0], *stacked.shape[1:]))
    own, with_g0, square = (_per_element(q, weight, a, b) for a, b in ((g0, g0), (controls, g0), (controls, controls)))
    magnitude = xp.astype(parts.magnitude(), dtype) * (amplitude**2 / size)
    scaled = xp.reshape(q.scale(xp.sqrt(weight), stacked), flat.shape)
    weight_squared = weight**2
    return {
        "products": matrix_product(scaled, scaled.T),
        "judged": _sum(xp, weight, xp.stack([with_g0, square])),
        "judged_squares": _sum(xp, weight_squared, xp.stack([with_g0**2, with_g0 * square, square**2])),
        "own_squares": _sum(xp, weight_squared, own[0] ** 2),
        "magnitude": _sum(xp, weight, xp.where(counts, magnitude, xp.zeros_like(magnitude))),
        "weight": xp.sum(weight),
    }


def advance(averages: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Move the running averages by one step; a step without weight or with numbers that are not finite is skipped."""
    xp = namespace(averages["moments"])
    weight, products = statistics["weight"], statistics["products"]
    one, zero = xp.ones_like(weight), xp.zeros_like(weight)
    known = averages["steps"][1] > 0
    own = products[0, 0] / xp.where(weight > 0, weight, one)
    measured = (weight > 0) & xp.isfinite(own) & (own > 0)
    log_own = xp.log(xp.where(measured, own, one))
    before = averages["log_excess"]
    lasting = xp.where(log_own < before, log_own, before)
    moved_by = xp.where(lasting > JUMP, lasting, SCALE_RATE * log_own)
    moved_by = xp.where(known, moved_by, log_own)
    moved_by = xp.where(measured, moved_by, zero)
    scale = {
        "log_scale": averages["log_scale"] + moved_by,
        "log_excess": xp.where(measured, log_own, before) - moved_by,
    }

    finite = [xp.all(xp.isfinite(value)) for value in statistics.values()]
    usable = (weight > 0) & xp.all(xp.stack(finite)) & (known | measured) & (_trace(products) > 0)
    # The first step is its own unit; later ones come in units of the steps before them.
    unit = xp.where(known | ~measured, one, 1 / xp.where(measured, own, one))
    counted, number = averages["steps"][0], averages["steps"][1]
    typical = xp.where(counted > 0, counted / xp.where(number > 0, number, one), own * unit)
    excess = own * unit / xp.where(typical > 0, LARGEST * typical, one)
    factor = unit / xp.where(weight > 0, weight, one) / xp.where(excess > 1, excess, one)
    factor = xp.where(usable, factor, zero)
    step = {
        name: xp.where(usable, value, xp.zeros_like(value)) * (factor**2 if name.endswith("squares") else factor)
        for name, value in statistics.items()
        if name != "weight"
    }
    moved = _move(averages, step) | scale
    moved["coefficients"], moved["candidates"] = _solve(averages, moved)
    sane = usable & xp.all(xp.isfinite(moved["candidates"])) & xp.all(xp.isfinite(moved["coefficients"]))
    result = {name: xp.where(sane, moved[name], value) for name, value in averages.items()}
    return result | scale


def _move(averages: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, Any]:
    """Add the normalised statistics of a step to the decayed sums."""
    xp = namespace(averages["moments"])
    own = step["products"][0, 0]

    def decays(values: Any, axes: int) -> Any:
        like = averages["moments"]
        array = xp.asarray(np.asarray(values), dtype=like.dtype, device=device(like))
        return xp.reshape(array, (-1, *(1,) * axes))

    memory = np.repeat(MEMORIES, len(RIDGES))
    return {
        "moments": decays(memory, 2) * averages["moments"] + step["products"],
        "own_squares": decays(memory**2, 0) * averages["own_squares"] + step["own_squares"],
        "magnitude": decays(memory, 0) * averages["magnitude"] + step["magnitude"],
        "judged": decays(JUDGES, 2) * averages["judged"] + step["judged"],
        "judged_squares": decays(np.square(JUDGES), 2) * averages["judged_squares"] + step["judged_squares"],
        "judged_own": xp.stack([decays(JUDGES, 0), decays(np.square(JUDGES), 0)], axis=-1) * averages["judged_own"]
        + xp.stack([own, step["own_squares"]]),
        "steps": 0.99 * averages["steps"] + xp.stack([own, xp.ones_like(own)]),
    }


def _solve(averages: Mapping[str, Any], moved: Mapping[str, Any]) -> tuple[Float[Array, "n"], Float[Array, "j n"]]:
    """Return the coefficients and the new candidates; `averages` holds the candidates that were judged."""
    xp, n = namespace(moved["moments"]), averages["coefficients"].shape[0]
    with_g0, square = moved["judged"][:, 0], moved["judged"][:, 1]
    own = moved["judged_own"][:, :1]
    elements = _ratio(own**2, moved["judged_own"][:, 1:])
    factor = xp.clip(-_ratio(with_g0, square), 0, None)
    left_over = xp.where(own > 0, xp.clip(1 + _ratio(factor * (2 * with_g0 + factor * square), own), 0, 1), 1 + 0 * own)
    squares = moved["judged_squares"]
    scatter = squares[:, 0] + factor * (2 * squares[:, 1] + factor * squares[:, 2])
    # The factor fits one element exactly, so an element of the mean size is added to the scatter.
    scatter = xp.clip(scatter, 0, None) + _ratio(with_g0, elements) ** 2
    few = 1 + SMALL_SAMPLE / xp.clip(elements - 1, 1e-6, None)
    error = _ratio(xp.sqrt(scatter), square) * few

    # One element that was not seen yet may have nothing of the cancellation that the coefficients rely on.
    mean_own = averages["moments"][:, 0, 0]
    unseen = _ratio(xp.sum(averages["candidates"] ** 2, axis=-1) * averages["magnitude"], mean_own)
    caution = _ratio(own, elements) * (left_over + UNSEEN * unseen)
    remembered = xp.max(_ratio(square, own)[-LONG:], axis=0) / 2 * own
    square_or_more = xp.where(remembered > square, remembered, square)
    lower = -_ratio(with_g0, square_or_more + caution) - LOWER * error
    upper = -_ratio(with_g0, square) + UPPER * error
    highest = xp.max(lower, axis=0)
    chosen = xp.astype(lower == highest, lower.dtype)
    chosen = chosen / xp.sum(chosen, axis=0)
    upper = xp.min(upper, axis=0)
    factor = xp.clip(xp.where(upper < highest, upper, highest), 0, 1)
    gain = -xp.sum(chosen * _ratio(factor * (2 * with_g0 + factor * square), own), axis=0)
    elements_chosen = xp.sum(chosen * elements, axis=0)

    support = gain * elements_chosen * SHARPNESS
    share = xp.exp(support - xp.max(support)) * xp.astype(gain > 0, gain.dtype)
    share = factor * _ratio(share, xp.sum(share))

    in_memory = _ratio(moved["moments"][:, 0, 0] ** 2, moved["own_squares"])
    few_left = xp.sum(chosen * left_over, axis=0) + n * _ratio(xp.ones_like(gain), elements_chosen)
    few_left = xp.where(elements_chosen > 0, xp.clip(few_left, 0, 1), xp.ones_like(gain))
    kappa = xp.asarray(np.tile(RIDGES, len(MEMORIES)), dtype=gain.dtype, device=device(gain))
    ridge = n * kappa * few_left / xp.where(in_memory > 0, in_memory, xp.ones_like(gain))
    least = max(LEAST_RIDGE, 10 * float(xp.finfo(gain.dtype).eps))
    candidates = least_variance(moved["moments"], xp.clip(ridge, least, None), MAGNITUDE_SHARE * moved["magnitude"])
    candidates = xp.where(in_memory[:, None] > 0, candidates, xp.zeros_like(candidates))
    return xp.sum(share[:, None] * candidates, axis=0), candidates


def least_variance(
    moments: Float[Array, "*j 1+n 1+n"],
    ridge: Float[Array, "*j"] | None = None,
    magnitude: Float[Array, "*j"] | None = None,
) -> Float[Array, "*j n"]:
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


def _sum(xp: Any, weight: Float[Array, "*batch"], values: Float[Array, "*leading_batch"]) -> Float[Array, "*leading"]:
    """Return the weighted sum over the batch axes."""
    return xp.sum(weight * values, axis=tuple(range(values.ndim - weight.ndim, values.ndim)))


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Return the quotient, or 0 where the denominator is 0."""
    xp = namespace(denominator)
    positive = denominator > 0
    quotient = numerator / xp.where(positive, denominator, xp.ones_like(denominator))
    return xp.where(positive, quotient, xp.zeros_like(quotient))


def _trace(matrix: Float[Array, "n n"]) -> Float[Array, ""]:
    xp = namespace(matrix)
    return xp.sum(xp.linalg.diagonal(matrix))


def _step(q: Distribution) -> int:
    """Return the distance between the batch elements that the statistics are taken from."""
    enough = max(ENOUGH_ELEMENTS, ceil(ENOUGH_NUMBERS / max(1, event_size(q))))
    return max(1, ceil(prod(q.batch_shape) / enough))
