"""The coefficients of least variance in closed form: the oracle with which learned coefficients are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from doublecv.arrays import Array
from doublecv.diagnostics.drawn import mean_over_draws
from doublecv.diagnostics.exact import enumerate_outcomes
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, LinearEstimator

if TYPE_CHECKING:
    from jaxtyping import Float, PRNGKeyArray


def optimal_coefficients(
    estimator: Estimator,
    f: Callable[[Array], Array],
    q: Distribution,
    key: PRNGKeyArray | None = None,
    draws: int | None = None,
    df: Callable[[Array], Array] | None = None,
) -> dict[str, float]:
    """The coefficients of least variance, summed over batch and coordinates.

    The estimate is linear in them, g = g0 + sum_i c_i h_i, so they solve E[h h^T] c = -E[h g0]. The expectations are
    exact, by enumeration, unless `key` and `draws` are given: then they are means over that many draws.

    Args:
        estimator: an estimator that is linear in its coefficients.
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution.
        key: a JAX random key; None for exact expectations.
        draws: how many draws the expectations are taken over, with a key.
        df: the gradient of f in x, for NumPy arrays; JAX and torch find it by themselves.
    """
    if not isinstance(estimator, LinearEstimator):
        if estimator.coefficients():
            raise ValueError(
                f"estimator must be a LinearEstimator, or have no coefficients, got {type(estimator).__name__}, which "
                f"does not state its linear parts; descend along the coefficients' gradient instead"
            )
        return {}
    names = list(estimator.starts())
    if not names:
        return {}
    if key is None:
        outcomes = enumerate_outcomes(estimator, f, q, df)
        parts = estimator.parts(outcomes.q, outcomes.evaluation).stacked(names)
        products = np.array([[float(q.xp.sum(outcomes.expectation(a * b))) for b in parts] for a in parts])
    elif draws is None:
        raise ValueError("draws is None, but a key was given: say how many draws the means are over")
    else:
        products = np.asarray(mean_over_draws(_drawn_products(estimator, f, q), key, draws), dtype=float)
    # lstsq and not solve: a control variate that is always 0 has no best coefficient, and 0 will do.
    best = np.linalg.lstsq(products[1:, 1:], -products[1:, 0], rcond=None)[0]
    return {name: float(value) for name, value in zip(names, best, strict=True)}


def optimal_alpha(
    estimator: Estimator,
    f: Callable[[Array], Array],
    q: Distribution,
    key: PRNGKeyArray | None = None,
    draws: int | None = None,
    df: Callable[[Array], Array] | None = None,
) -> float:
    """The best alpha for any K: E[g0 . h] / E[h . h] with gradient = g0 - alpha h (Titsias and Shi, 2022, appendix).

    The arguments are those of `optimal_coefficients`.
    """
    names = estimator.starts() if isinstance(estimator, LinearEstimator) else estimator.coefficients()
    if names.keys() != {"alpha"}:
        raise ValueError(
            f"estimator must have alpha as its one coefficient, got {type(estimator).__name__} with {sorted(names)}"
        )
    return optimal_coefficients(estimator, f, q, key, draws, df)["alpha"]


def _drawn_products(
    estimator: LinearEstimator, f: Callable[[Array], Array], q: Distribution
) -> Callable[[Any], Float[Array, "parts parts"]]:
    from doublecv.jax import estimate

    def products(key: Any) -> Any:
        evaluation = estimate(f, q, estimator, estimator.coefficients(), key).evaluation
        parts = estimator.parts(q, evaluation).stacked(estimator.starts())
        flat = parts.reshape(len(parts), -1)
        return flat @ flat.T

    return products
