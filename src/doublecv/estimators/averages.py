r"""Averages over samples: leave-one-out means, weighted scores, and the corrections of control variates.

Formulas are written for samples that each visited logits of their own. A product distribution is the case in which all
samples visit the same logits: there the gradient is the sum over the samples, and the corrections simplify.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from doublecv.arrays import Array, namespace, sum_over_samples
from doublecv.distributions import Distribution

if TYPE_CHECKING:
    from jaxtyping import Float


def leave_one_out(v: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
    r"""Return :math:`\frac{1}{K-1} \sum_{j \ne k} v_j` for every sample k."""
    return (sum_over_samples(v)[None] - v) / (v.shape[0] - 1)


def leave_pair_out(v: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
    r"""Return the mean of v over the samples of all pairs but the sample's own.

    Sample k and sample k + K/2 are a pair; the samples of other pairs are independent of both.
    """
    pairs = v.shape[0] // 2
    of_others = leave_one_out((v[:pairs] + v[pairs:]) / 2)
    return namespace(v).concat([of_others, of_others], axis=0)


def mean_over_samples(
    q: Distribution, v: Float[Array, "K *logits"]
) -> Float[Array, "*logits"] | Float[Array, "K *logits"]:
    r"""Return the gradient :math:`\frac{1}{K} \sum_k v_k`; where q has visited logits, the terms :math:`v_k / K`."""
    return v / v.shape[0] if q.visited else sum_over_samples(v) / v.shape[0]


def weighted_mean(
    q: Distribution, weight: Float[Array, "K *batch"], v: Float[Array, "K *logits"]
) -> Float[Array, "*logits"] | Float[Array, "K *logits"]:
    r"""Return :math:`\frac{1}{K} \sum_k w_k v_k`; where q has visited logits, the terms :math:`w_k v_k / K`."""
    return q.scale(weight, v) / v.shape[0] if q.visited else q.weighted_sum(weight, v) / v.shape[0]


def score_gradient(
    q: Distribution, x: Float[Array, "K *logits"], weight: Float[Array, "K *batch"]
) -> Float[Array, "*logits"] | Float[Array, "K *logits"]:
    r"""Return :math:`\frac{1}{K} \sum_k w_k s(x_k)`."""
    return weighted_mean(q, weight, q.score(x))


def dot_with_others(
    q: Distribution, v: Float[Array, "K *logits"], score: Float[Array, "K *logits"]
) -> tuple[Float[Array, "K *batch"], Float[Array, "*logits"] | Float[Array, "K *logits"]]:
    r"""Return :math:`b_k = \bar v_{-k}^T s(x_k)` for every sample k, and the correction of :math:`\sum_k b_k s_k / K`.

    With :math:`\bar v_{-k}` the leave-one-out mean; the correction is that of `dot_correction`.
    """
    if q.visited:
        others = leave_one_out(v)
        return q.dot(others, score), q.covariance_product(others) / v.shape[0]
    total = sum_over_samples(v)
    correction = q.covariance_product(total / v.shape[0])
    if v.shape[0] == 2 and isinstance(v, np.ndarray):
        return q.dot(v[::-1], score), correction
    # The division comes last because b has one number where v has an event.
    return q.dot(total[None] - v, score) / (v.shape[0] - 1), correction


def dot_correction(
    q: Distribution, v: Float[Array, "K *logits"]
) -> Float[Array, "*logits"] | Float[Array, "K *logits"]:
    r"""Return the mean of :math:`\frac{1}{K} \sum_k \bar v_{-k}^T (x_k - \mu) \, s(x_k)` given the v of other samples.

    With :math:`\bar v_{-k}` the leave-one-out mean, each term has the conditional mean :math:`M \bar v_{-k}`, with M at
    the logits that sample k visited. Over samples with the same logits this sums to :math:`M \frac{1}{K} \sum_k v_k`.
    """
    if q.visited:
        return q.covariance_product(leave_one_out(v)) / v.shape[0]
    return q.covariance_product(sum_over_samples(v) / v.shape[0])


def score_magnitude(
    q: Distribution,
    score: Float[Array, "K *logits"],
    weight: Float[Array, "*n_K_batch"],
    correction: Float[Array, "*logits"] | None = None,
) -> Float[Array, "*n_batch"]:
    r"""Return :math:`\frac{1}{K^2} \sum_k w_k^2 \, s(x_k)^T s(x_k) + r^T r`, the size of a control variate's terms.

    Args:
        q: the distribution.
        score: the scores :math:`s(x_k)`.
        weight: the weights :math:`w_k`, or those of several control variates.
        correction: r, which is subtracted from the weighted scores; None for 0.
    """
    norms = q.dot(score, score)
    size = q.xp.sum(weight**2 * norms, axis=weight.ndim - norms.ndim) / score.shape[0] ** 2
    return size if correction is None else size + correction_magnitude(q, correction)


def correction_magnitude(q: Distribution, correction: Float[Array, "*logits"]) -> Float[Array, "*batch"]:
    r"""Return :math:`r^T r` of a correction; where q has visited logits, summed over the samples."""
    square = q.dot(correction, correction)
    return sum_over_samples(square) if q.visited else square
