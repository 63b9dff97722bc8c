r"""Advantages and the score-function loss, for samples that were drawn elsewhere.

The functions need no distribution and no f: K values per group (rewards of K completions of a prompt, say), with the
samples in front, `[K, *batch]`, and the log-probabilities of the samples. They accept NumPy, JAX and torch arrays.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

from array_api_compat import device

from doublecv.arrays import Array, detach, namespace, require_floating

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

Baseline = Literal["leave-one-out", "shrunken", "none"]
Scale = Literal["none", "group", "batch"]


def advantages(
    values: Float[Array, "K *batch"],
    baseline: Baseline = "leave-one-out",
    *,
    mask: Bool[Array, "K *batch"] | None = None,
    pass_at: int = 1,
    standardize: Scale = "none",
) -> Float[Array, "K *batch"]:
    r"""Return how much better each sample is than a baseline that does not depend on it.

    With the values :math:`v_k` of K independent samples :math:`x_k \sim p` of a group, the gradient of :math:`E[v]` is

    .. math:: \frac{1}{K} \sum_k a_k \nabla \log p(x_k), \qquad a_k = v_k - b_k,

    without bias if :math:`b_k` does not depend on :math:`x_k`. The baselines are

    - "leave-one-out": :math:`b_k = \frac{1}{K-1} \sum_{j \ne k} v_j` (Kool, van Hoof and Welling, 2019);
    - "shrunken": :math:`b_k = (1 - \lambda) \frac{1}{K-1} \sum_{j \ne k} v_j + \lambda m`, with the mean m of the other
      groups' means: James-Stein shrinkage over the batch (Zeng et al., 2025, equations 13 to 16). Of n groups,

      .. math:: \lambda = \frac{n - 1}{n} \, \frac{e}{e + s},

      where e is the others' mean variance within a group divided by K, the variance of a group's mean, and s is the
      mean squared distance of the others' means to m. Both come from the other groups only, so that the estimate
      stays exactly unbiased. It helps where K is small and there are many groups: with values 0 and 1 whose
      probability is uniform over the groups, the mean squared error of the baseline is 0.52 of that of
      "leave-one-out" for K = 2 and 32 groups, 0.67 for K = 4, 0.80 for K = 8, but 1.4 for K = 8 and 3 groups;
    - "none": :math:`b_k = 0`.

    With `pass_at` = k > 1 the objective is not the mean but the expected maximum of k samples, which for values 0 and 1
    is pass@k (Chen et al., 2021). The advantages are those of its unbiased estimate, the mean over all subsets of k
    samples, less the same mean over the subsets of the other samples:

    .. math:: a_i = k \Big( \operatorname{mean}_{S \ni i} \max_{j \in S} v_j
              - \operatorname{mean}_{S \not\ni i} \max_{j \in S} v_j \Big), \qquad |S| = k.

    Without standardisation the gradient is unbiased in all these cases, if the groups' sizes do not depend on the
    samples. A standardised gradient is not unbiased: the factor depends on the samples. It cannot explode, because the
    advantages are divided by their own root mean square: no result exceeds the square root of their number, and where
    all advantages are rounding errors of the values the result is 0.

    Args:
        values: the samples' values, of a floating type.
        baseline: see above. "shrunken" needs at least three groups, "leave-one-out" at least two samples per group.
        mask: True for samples that exist, where groups have unequal sizes; the others get the advantage 0, whatever
            their value. A group with a single sample has no leave-one-out baseline and gets 0, too; "shrunken" then
            takes the mean of the other groups.
        pass_at: k, at most K - 1; a smaller group gets 0.
        standardize: "group" divides by the root mean square of a group's advantages, "batch" by that of all.

    Returns:
        The advantages. No derivative passes through them.

    >>> import numpy as np
    >>> advantages(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))[:, 0].tolist()
    [1.0, -0.5, -0.5]
    """
    _check_values("values", values)
    _check_choice("baseline", baseline, get_args(Baseline))
    _check_choice("standardize", standardize, get_args(Scale))
    _check_pass_at(pass_at, baseline, values)
    exists = _existing(values, mask)
    xp = namespace(values)
    wide = _wide(xp.where(exists, detach(values), 0))
    weight = xp.astype(exists, wide.dtype)
    if pass_at > 1:
        result = _of_maximum(wide, weight, pass_at)
    elif baseline == "none":
        result = wide
    else:
        result = wide - _leave_one_out(wide, weight)
        result = xp.where(xp.sum(weight, axis=0) > 1, result, 0)
        if baseline == "shrunken":
            result = _shrunken(wide, weight)
    result = _standardized(result * weight, wide, weight, standardize)
    return xp.astype(result, values.dtype)


def score_function_loss(
    log_prob: Float[Array, "K *batch"],
    values: Float[Array, "K *batch"],
    baseline: Baseline = "leave-one-out",
    *,
    mask: Bool[Array, "K *batch"] | None = None,
    pass_at: int = 1,
    standardize: Scale = "none",
) -> Float[Array, "*batch"]:
    r"""Return the mean of the values, with the score-function gradient in the parameters of `log_prob`.

    .. math:: \frac{1}{K} \sum_k v_k, \quad\text{with the derivative}\quad
              \frac{1}{K} \sum_k a_k \nabla \log p(x_k) + \nabla v_k

    and the `advantages` :math:`a_k`. The second part is for values that depend on the parameters themselves; rewards
    do not. For values that are to be large, as rewards, minimise the negative of the result.

    Args:
        log_prob: the log-probability of each sample, summed over its steps or tokens, differentiable.
        values: the values of the samples, as of `advantages`.
        baseline: as of `advantages`.
        mask: as of `advantages`; the mean is taken over the samples that exist.
        pass_at: as of `advantages`; the result is then the unbiased estimate of the expected maximum of k samples.
        standardize: as of `advantages`; it scales the first part of the derivative, not the result.

    Returns:
        One number per group; take its mean over the batch.
    """
    _check_values("values", values)
    _check_values("log_prob", log_prob)
    if tuple(log_prob.shape) != tuple(values.shape):
        raise ValueError(
            f"log_prob must have the shape of values, {tuple(values.shape)}, got shape {tuple(log_prob.shape)}; sum "
            f"it over the steps or tokens of each sample"
        )
    weight = advantages(values, baseline, mask=mask, pass_at=pass_at, standardize=standardize)
    xp, exists = namespace(values), _existing(values, mask)
    there = xp.astype(exists, values.dtype)
    number = xp.clip(xp.sum(there, axis=0), 1, None)
    known = xp.where(exists, log_prob, 0)
    score = xp.sum(weight * (known - detach(known)), axis=0) / number
    return pass_at_k(values, pass_at, mask=mask) + score


def pass_at_k(
    values: Float[Array, "K *batch"], k: int, *, mask: Bool[Array, "K *batch"] | None = None
) -> Float[Array, "*batch"]:
    r"""Return the unbiased estimate of the expected maximum of k samples: the mean over all subsets of k of the K.

    .. math:: \binom{K}{k}^{-1} \sum_{|S| = k} \max_{j \in S} v_j = \binom{K}{k}^{-1} \sum_r \binom{r}{k-1} v_{(r)}

    with the values in ascending order, :math:`v_{(0)} \le v_{(1)} \le \dots`. For c ones among zeros it is
    :math:`1 - \binom{K-c}{k} / \binom{K}{k}` (Chen et al., 2021, equation 1), for k = 1 the mean.

    Args:
        values: the samples' values, of a floating type.
        k: the number of samples of which the best counts, at most K.
        mask: True for samples that exist; a group with fewer than k samples gets 0.

    >>> import numpy as np
    >>> float(pass_at_k(np.array([1.0, 0.0, 0.0, 0.0]), 2))
    0.5
    """
    _check_values("values", values)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= values.shape[0]:
        raise ValueError(f"k must be an integer from 1 to the number of samples, {values.shape[0]}, got {k!r}")
    exists = _existing(values, mask)
    xp = namespace(values)
    wide = _wide(xp.where(exists, values, 0))
    weight = xp.astype(exists, wide.dtype)
    rank = xp.sum(_before(detach(wide), weight), axis=0)
    best = xp.sum(_binomial(rank, k - 1) * weight * wide, axis=0)
    return xp.astype(_ratio(best, _binomial(xp.sum(weight, axis=0), k)), values.dtype)


def _leave_one_out(values: Float[Array, "K *batch"], weight: Float[Array, "K *batch"]) -> Float[Array, "K *batch"]:
    """Return the mean of the other samples that exist, and 0 where there is none."""
    xp = namespace(values)
    total, number = xp.sum(values * weight, axis=0), xp.sum(weight, axis=0)
    return (total - values * weight) / xp.clip(number - weight, 1, None)


def _shrunken(values: Float[Array, "K *batch"], weight: Float[Array, "K *batch"]) -> Float[Array, "K *batch"]:
    """Return the values less the leave-one-out means, drawn towards the mean of the other groups."""
    xp = namespace(values)
    batch = tuple(values.shape[1:])
    if prod(batch) < 3:
        raise ValueError(
            f"values must hold at least three groups for baseline='shrunken', got shape {tuple(values.shape)} with "
            f"{prod(batch)}: the spread of the groups comes from the other ones; take baseline='leave-one-out'"
        )
    # In units of the largest value, of which the square may overflow; the shrinkage does not depend on the unit.
    largest = xp.max(xp.abs(values * weight))
    unit = xp.where(largest > 0, largest, 1)
    v, w = (xp.reshape(array, (values.shape[0], prod(batch))) for array in (values / unit, weight))
    number = xp.sum(w, axis=0)
    mean = xp.sum(v * w, axis=0) / xp.clip(number, 1, None)
    within = xp.sum(w * (v - mean) ** 2, axis=0) / xp.clip(number - 1, 1, None)
    present, repeated = xp.astype(number > 0, v.dtype), xp.astype(number > 1, v.dtype)

    def over_others(u: Array, of: Array) -> Array:
        """Return the mean of u over the other groups that have it."""
        return (xp.sum(u * of) - u * of) / xp.clip(xp.sum(of) - of, 1, None)

    others = xp.sum(present) - present
    target = over_others(mean, present)
    # About a fixed centre: the difference of two sums of squares would lose the digits of a small spread.
    centred = mean - xp.sum(mean * present) / xp.clip(xp.sum(present), 1, None)
    spread = xp.clip(over_others(centred**2, present) - over_others(centred, present) ** 2, 0, None)
    error = over_others(within, repeated) / xp.clip(number, 1, None)
    shrinkage = xp.where(number > 1, others / (others + 1) * _ratio(error, error + spread), 1)
    shrinkage = xp.where(others > 1, shrinkage, 0)
    baseline = (1 - shrinkage) * _leave_one_out(v, w) + shrinkage * target
    known = (number > 1) | (others > 1)
    return xp.reshape(xp.where(known, v - baseline, 0), tuple(values.shape)) * unit


def _of_maximum(values: Float[Array, "K *batch"], weight: Float[Array, "K *batch"], k: int) -> Float[Array, "K *batch"]:
    """Return k times the mean maximum over subsets with sample i, less that over subsets without it."""
    xp = namespace(values)
    before = _before(values, weight)
    others = xp.sum(weight, axis=0) - 1
    rank = xp.sum(before, axis=0)
    # rank_ij: how many samples other than i are before j. Axis 0 is i, axis 1 is j.
    rank_without = rank[None] - before
    of_j = weight[None] * values[None] * (1 - _same(values))
    without = xp.sum(of_j * _binomial(rank_without, k - 1), axis=1)
    led_by_others = xp.sum(of_j * before * _binomial(rank_without, k - 2), axis=1)
    inside = led_by_others + values * _binomial(rank, k - 1)
    result = k * (_ratio(inside, _binomial(others, k - 1)) - _ratio(without, _binomial(others, k)))
    return xp.where(others >= k, result, 0)


def _before(values: Float[Array, "K *batch"], weight: Float[Array, "K *batch"]) -> Float[Array, "K K *batch"]:
    """Return 1 at i, j where sample i exists and is before j in ascending order; equal values keep their order."""
    xp = namespace(values)
    order = xp.reshape(xp.arange(values.shape[0], device=device(values)), (-1, *(1,) * (values.ndim - 1)))
    earlier = xp.astype(order[:, None] < order[None], values.dtype)
    lower = xp.astype(values[:, None] < values[None], values.dtype)
    equal = xp.astype(values[:, None] == values[None], values.dtype)
    return (lower + equal * earlier) * weight[:, None]


def _same(values: Float[Array, "K *batch"]) -> Float[Array, "K K *ones"]:
    """Return the identity over the first two axes."""
    xp = namespace(values)
    identity = xp.eye(values.shape[0], dtype=values.dtype, device=device(values))
    return xp.reshape(identity, (values.shape[0],) * 2 + (1,) * (values.ndim - 1))


def _binomial(n: Float[Array, "..."], k: int) -> Float[Array, "..."]:
    """Return the binomial coefficient for an array n; 0 where n < k."""
    xp = namespace(n)
    result = xp.ones_like(n)
    for t in range(k):
        result = result * xp.clip(n - t, 0, None) / (t + 1)
    return result


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Return the ratio, and 0 where the denominator is 0."""
    xp = namespace(denominator)
    return xp.where(denominator > 0, numerator / xp.where(denominator > 0, denominator, 1), 0)


def _standardized(
    result: Float[Array, "K *batch"], values: Float[Array, "K *batch"], weight: Float[Array, "K *batch"], scale: Scale
) -> Float[Array, "K *batch"]:
    """Divide by the root mean square of the advantages, unless they are rounding errors."""
    if scale == "none":
        return result
    xp = namespace(result)
    axes = 0 if scale == "group" else None
    size = xp.max(xp.abs(values * weight), axis=axes, keepdims=True)
    rounding = 16 * float(xp.finfo(result.dtype).eps) * size
    largest = xp.max(xp.abs(result), axis=axes, keepdims=True)
    known = largest > rounding
    # Scaled by the largest first: the square of a large advantage may overflow, that of a small one vanish.
    unit = xp.where(known, result / xp.where(known, largest, 1), 0)
    number = xp.clip(xp.sum(weight, axis=axes, keepdims=True), 1, None)
    mean_square = xp.sum(unit**2, axis=axes, keepdims=True) / number
    return xp.where(known, unit / xp.sqrt(xp.where(known, mean_square, 1)), 0)


def _wide(values: Array) -> Array:
    """Return the values in at least single precision, in which they are summed."""
    xp = namespace(values)
    return xp.astype(values, xp.float32) if xp.finfo(values.dtype).bits < 32 else values


def _existing(values: Float[Array, "K *batch"], mask: Any) -> Bool[Array, "K *batch"]:
    xp = namespace(values)
    if mask is None:
        return xp.ones_like(values, dtype=xp.bool)
    if not hasattr(mask, "dtype") or mask.dtype != xp.bool:
        raise TypeError(
            f"mask must be an array of booleans, True for samples that exist, got "
            f"{getattr(mask, 'dtype', type(mask).__name__)}; compare it first, for example mask > 0"
        )
    if tuple(mask.shape) != tuple(values.shape):
        raise ValueError(f"mask must have the shape of values, {tuple(values.shape)}, got shape {tuple(mask.shape)}")
    return mask


def _check_values(argument: str, values: Any) -> None:
    require_floating(argument, values)
    if values.ndim < 1 or 0 in values.shape:
        raise ValueError(
            f"{argument} must have shape [K, *batch] with the K samples of a group in front and at least one number, "
            f"got shape {tuple(values.shape)}"
        )


def _check_choice(argument: str, given: Any, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, known))}, got {given!r}")


def _check_pass_at(k: Any, baseline: Baseline, values: Array) -> None:
    samples = values.shape[0]
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"pass_at must be an integer, got {k!r}")
    if k == 1:
        if samples < 2 and baseline == "leave-one-out":
            raise ValueError(
                f"values must hold at least two samples per group in front for baseline='leave-one-out', got shape "
                f"{tuple(values.shape)}; draw more, or take baseline='none'"
            )
        return
    if baseline != "leave-one-out":
        raise ValueError(f"baseline must be 'leave-one-out' for pass_at > 1, got {baseline!r} with pass_at={k}")
    if not 1 <= k < samples:
        raise ValueError(
            f"pass_at must be from 1 to K - 1 = {samples - 1}, got {k}: the baseline of a sample is the maximum of k "
            f"others; draw more samples per group"
        )
