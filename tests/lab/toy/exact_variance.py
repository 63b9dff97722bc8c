r"""Compute the exact variance of estimators on the toy problem, for any D: what drawn variances are compared with.

f is a sum over independent variables. So the weight that an estimator gives to the score of sample k is also a sum,
:math:`c + \sum_m W_{mk}`, where :math:`W_{mk}` depends only on the K values of variable m and has mean 0, and

.. math::
    g_i = s_i \frac{1}{K} \sum_k \Big(c + \sum_m W_{mk}\Big) y_{ik} + correction_i, \qquad y = x - \mu.

The part that depends only on variable i is uncorrelated with each part in which another variable m appears, and these
are uncorrelated with each other. So the variance of :math:`g_i` is the sum of their variances,

.. math::
    Var\Big[s_i \frac{1}{K} \sum_k (c + W_{ik}) y_{ik} + correction_i\Big]
    + \sum_{m \ne i} \frac{s_i^2}{K^2} \sum_{kl} E[W_{mk} W_{ml}] E[y_{ik} y_{il}],

which needs only the :math:`2^K` patterns of the K values of one variable, with their joint probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from doublecv.arrays import Array
from doublecv.distributions import Bernoulli
from doublecv.estimators import (
    ARMS,
    RLOO,
    DirichletCopula,
    DisARM,
    DoubleCV,
    Estimator,
    HalfDoubleCV,
    Independent,
    MuProp,
    Reinforce,
    RStar,
)
from doublecv.estimators.averages import leave_one_out
from doublecv.lab.toy.problem import ToyProblem

if TYPE_CHECKING:
    from jaxtyping import Float

LARGEST_TABLE = 2_000_000
"""The largest table, patterns times K times D, for which the variance is computed."""


def df(problem: ToyProblem, x: Array) -> Array:
    r"""Return the gradient of f in x, :math:`\frac{2}{D} (x - p_0)`."""
    return 2 / x.shape[-1] * (x - problem.target)


def slope(problem: ToyProblem, q: Bernoulli) -> float:
    r"""Return :math:`w = (1 - 2 p_0) / D`: :math:`f(x) = E_q f + \sum_i w (x_i - \mu_i)` at every binary x."""
    return (1 - 2 * problem.target) / q.event_shape[0]


class _Terms(NamedTuple):
    """Hold c, W, s and the correction of one estimator, for every pattern of the K values of a variable."""

    weight: Float[np.ndarray, "K patterns D"]
    constant: float = 0.0
    scale: Float[np.ndarray, "D"] | float = 1.0
    correction: Float[np.ndarray, "patterns D"] | float = 0.0


def has_exact_variance(estimator: Estimator, dimension: int) -> bool:
    """Return whether `exact_variance` knows the estimator and the patterns of K values are few enough."""
    # Not isinstance: a derived class may have another formula.
    known = type(estimator) in (Reinforce, RStar, RLOO, DoubleCV, HalfDoubleCV, MuProp, DisARM, ARMS)
    if isinstance(estimator, DoubleCV):
        known = estimator.coupling == Independent()
    return known and 2**estimator.samples * estimator.samples * dimension <= LARGEST_TABLE


def exact_variance(
    problem: ToyProblem, estimator: Estimator, q: Bernoulli, coefficients: Mapping[str, Any]
) -> Float[np.ndarray, "D"]:
    """Return the variance of every coordinate of the gradient; q holds NumPy logits of shape [D]."""
    if not has_exact_variance(estimator, q.event_shape[0]):
        raise ValueError(
            f"estimator must be one with a known variance and few samples, got {type(estimator).__name__} with "
            f"{estimator.samples}; see has_exact_variance, or estimate the variance from draws"
        )
    samples = estimator.samples
    joint = estimator.needs.coupling.joint(q, samples)
    x = np.asarray(joint.patterns, dtype=float).T[:, :, None]
    y = x - q.mean
    terms = _terms(problem, estimator, q, coefficients, x, y)

    def expectation(values: Array) -> Array:
        return np.sum(joint.probabilities * values, axis=0)

    def second_moments(values: Array) -> Array:
        return np.einsum("pd,kpd,lpd->kld", joint.probabilities, values, values)

    own = terms.scale * np.mean((terms.constant + terms.weight) * y, axis=0) + terms.correction
    of_own = expectation((own - expectation(own)) ** 2)
    of_weight = second_moments(terms.weight)
    of_others = np.sum(of_weight, axis=-1, keepdims=True) - of_weight
    of_cross = (terms.scale / samples) ** 2 * np.sum(of_others * second_moments(y), axis=(0, 1))
    variance: Float[np.ndarray, "D"] = of_own + of_cross
    return variance


def _terms(
    problem: ToyProblem,
    estimator: Estimator,
    q: Bernoulli,
    coefficients: Mapping[str, Any],
    x: Float[np.ndarray, "K patterns 1"],
    y: Float[np.ndarray, "K patterns D"],
) -> _Terms:
    f = slope(problem, q) * y
    df_mean = df(problem, q.mean)
    match estimator:
        case Reinforce():
            return _Terms(f, constant=float(problem.expected_f(q)) - coefficients.get("baseline", 0.0))
        case RStar():
            return _Terms(f)
        case RLOO():
            return _Terms(f - leave_one_out(f))
        case ARMS():
            return _Terms(f - leave_one_out(f), scale=DirichletCopula().independence(q, estimator.samples))
        case DisARM():
            # Sample k and sample k + K/2 are a pair, each the other's baseline.
            return _Terms(f - np.roll(f, estimator.samples // 2, axis=0), scale=1 - q.min_prob)
        case MuProp():
            constant = float(problem.expected_f(q) - problem.f(q.mean))
            return _Terms(f - df_mean * y, constant=constant, correction=q.covariance_product(df_mean))
        case DoubleCV(control="mean"):
            b, d = df_mean * y, df_mean
        case _:
            gradient = df(problem, np.broadcast_to(x, y.shape))
            b, d = leave_one_out(gradient) * y, np.mean(gradient, axis=0)
    alpha, keep = coefficients["alpha"], estimator.keep if isinstance(estimator, HalfDoubleCV) else "both"
    baseline = leave_one_out(f if keep == "current" else f + alpha * b)
    if keep == "others":
        return _Terms(f - baseline)
    return _Terms(f + alpha * b - baseline, correction=-alpha * q.covariance_product(d))
