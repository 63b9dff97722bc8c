r"""Coefficients of least variance, solved from running averages of the parts' second moments.

The variance of :math:`g = g_0 + \sum_i c_i h_i` is a parabola in the coefficients, with the minimum at

.. math:: c = -E[h h^T]^{-1} E[h g_0].

The expectations are exponential averages over earlier steps, so that the estimate stays unbiased. Statistics are sums
over batch elements: those of several calls, of the parts of a vmap or of several devices add up.
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

RATE = 0.01
"""The share of each step in the running averages."""

ENOUGH_ELEMENTS, ENOUGH_NUMBERS = 8, 1600
"""Batch elements used for the statistics: at least 8, or enough for 1600 gradient entries.

The averages run over hundreds of steps, so more elements would hardly improve the coefficients; all 100 elements of a
batch with 200 variables would take as long as the rest of the formula.
"""

LEAST_RIDGE = 1e-8
"""The smallest ridge on the unit diagonal of the system; ten rounding errors if that is more.

It is small because control variates that are nearly the same can be worth their difference: on a quadratic f at logits
0 all of the gain is in directions with less than 1e-5 of the variance.
"""


def start(coefficients: int) -> dict[str, Any]:
    """Return running averages of no steps."""
    return {"moments": np.zeros((1 + coefficients, 1 + coefficients))}


def empty_statistics(coefficients: int) -> dict[str, Any]:
    """Return the statistics of no batch element."""
    return {"products": np.zeros((1 + coefficients, 1 + coefficients)), "weight": np.zeros(())}


def coefficients(averages: Mapping[str, Any]) -> Float[Array, "n"]:
    """Return the coefficients of least variance under the running averages."""
    return least_variance(averages["moments"])


def statistics(parts: Parts, names: Sequence[str], weight: Float[Array, "*batch"]) -> dict[str, Any]:
    r"""Return the weighted sum over batch elements of :math:`(g_0, h) (g_0, h)^T` and the sum of the weights.

    Args:
        parts: the parts of the estimate.
        names: the order of the coefficients.
        weight: the absolute weight of each batch element in the loss. An element with weight 0 does not count, even if
            its parts are not finite.
    """
    q = parts.q
    xp, step = q.xp, _step(q)
    if step > 1:
        parts, weight = parts.subsample(step), q.subsample_array(step, weight)
    stacked = parts.stack(names)
    # The event axes are the last ones, so that the weight broadcasts from the batch axes.
    counts = (weight > 0)[(..., *(None,) * q.event_axes)]
    scaled = xp.where(counts, q.scale(xp.sqrt(weight / event_size(q)), stacked), xp.zeros_like(stacked))
    flat = xp.reshape(scaled, (scaled.shape[0], -1))
    return {"products": matrix_product(flat, flat.T), "weight": xp.sum(weight)}


def advance(averages: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Move the running averages by one step; a step without weight or with numbers that are not finite is skipped."""
    before, products, weight = averages["moments"], statistics["products"], statistics["weight"]
    xp = namespace(before)
    usable = (weight > 0) & xp.all(xp.isfinite(products))
    new = products / xp.where(usable, weight, xp.ones_like(weight))
    return {"moments": xp.where(usable, before + RATE * (new - before), before)}


def least_variance(moments: Float[Array, "1+n 1+n"]) -> Float[Array, "n"]:
    r"""Return :math:`c = -S (S A S + ridge)^{-1} S b` with :math:`A = E[h h^T]` and :math:`b = E[h g_0]`.

    The diagonal S makes the diagonal of S A S equal to 1, so that the ridge means the same for all coefficients. A
    control variate that was always 0 gets the coefficient 0.
    """
    xp = namespace(moments)
    products, with_g0 = moments[1:, 1:], moments[1:, 0]
    diagonal = xp.linalg.diagonal(products)
    seen = diagonal > 0
    scale = xp.where(seen, 1 / xp.sqrt(xp.where(seen, diagonal, xp.ones_like(diagonal))), xp.zeros_like(diagonal))
    identity = xp.eye(diagonal.shape[0], dtype=diagonal.dtype, device=device(diagonal))
    # A control variate that was never seen has a row of zeros, which 1 on the diagonal makes solvable.
    ridge = max(LEAST_RIDGE, 10 * float(xp.finfo(diagonal.dtype).eps))
    added = xp.where(seen, ridge * xp.ones_like(diagonal), xp.ones_like(diagonal))
    system = scale[:, None] * products * scale[None, :] + added * identity
    return -scale * xp.linalg.solve(system, (scale * with_g0)[:, None])[:, 0]


def _step(q: Distribution) -> int:
    """Return the distance between the batch elements that the statistics are taken from."""
    enough = max(ENOUGH_ELEMENTS, ceil(ENOUGH_NUMBERS / max(1, event_size(q))))
    return max(1, ceil(prod(q.batch_shape) / enough))
