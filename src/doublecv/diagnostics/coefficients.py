r"""The coefficients of least variance: exact by enumeration, or from products of the parts that were drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from doublecv.arrays import Array, matrix_product
from doublecv.diagnostics.problem import total_gradient
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, Learned, LinearEstimator, Parts, fixed_coefficients
from doublecv.estimators.judgement import least_variance
from doublecv.exact import enumerate_outcomes

if TYPE_CHECKING:
    from jaxtyping import Float


def optimal_coefficients(
    f: Callable[[Array], Array],
    q: Distribution,
    estimator: Estimator,
    *,
    df: Callable[[Array], Array] | None = None,
) -> Learned:
    r"""Return the coefficients of least variance, exactly, by enumeration of all outcomes.

    The estimate is linear in them, :math:`g = g_0 + \sum_i c_i h_i`, so that they solve
    :math:`E[h h^T] c = -E[h g_0]`, summed over batch elements and coordinates. It runs on the arrays of NumPy, JAX and
    PyTorch; `doublecv.jax.optimal_coefficients` and `doublecv.torch.optimal_coefficients` also take the expectations
    over draws.

    >>> import doublecv as dcv
    >>> q = dcv.Bernoulli(logits=np.zeros(3))
    >>> f, df = lambda x: x.sum(-1), lambda x: np.ones_like(x)
    >>> learned = optimal_coefficients(f, q, dcv.DoubleCV(samples=2), df=df)
    >>> round(float(learned.numbers["alpha"]), 6)
    -1.0

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, small enough for all outcomes of K samples to be enumerated.
        estimator: an estimator that is linear in its coefficients, or learns nothing.
        df: the gradient of f in x, for NumPy arrays; JAX and PyTorch find it by automatic differentiation.
    """
    linear = require_linear(estimator)
    if linear is None:
        return fixed_coefficients({})
    outcomes = enumerate_outcomes(f, q, linear, df)
    parts = linear.parts(outcomes.q, outcomes.evaluation).stack(linear.needs.coefficients)
    products = [[float(q.xp.sum(outcomes.expectation(a * b))) for b in parts] for a in parts]
    return solve(linear, np.array(products))


def require_linear(estimator: Estimator) -> LinearEstimator | None:
    """Return the estimator if it is linear in its coefficients, None if it learns nothing, and raise otherwise."""
    if isinstance(estimator, LinearEstimator):
        return estimator if estimator.needs.coefficients else None
    if estimator.needs.sized or any(estimator.init()):
        raise ValueError(
            f"estimator must be linear in its coefficients or learn nothing, got {type(estimator).__name__}, whose "
            f"learned numbers have no closed form; train its state with Expectation.update instead"
        )
    return None


def products_of_parts(parts: Parts, estimator: LinearEstimator) -> Float[Array, "parts parts"]:
    r"""Return :math:`(g_0, h) (g_0, h)^T`, summed over batch elements and coordinates, of one estimate; traceable."""
    stacked = total_gradient(parts.q, parts.stack(estimator.needs.coefficients))
    flat = parts.q.xp.reshape(stacked, (stacked.shape[0], -1))
    return matrix_product(flat, flat.T)


def solve(estimator: LinearEstimator, products: Any) -> Learned:
    """Return the coefficients of least variance for the mean of `products_of_parts` over draws.

    The system is solved in float64, whatever the type of the products.
    """
    best = least_variance(np.asarray(products, dtype=float))
    return fixed_coefficients(dict(zip(estimator.needs.coefficients, best, strict=True)))
