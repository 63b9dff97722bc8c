"""MuProp: a first-order Taylor expansion of f around the mean as baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from doublecv.arrays import Array
from doublecv.distributions import Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.reinforce import score_gradient

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class MuProp(Estimator):
    """MuProp, with the equation

        g = 1/K sum_k [f(x_k) - f(mu) - grad f(mu)^T (x_k - mu)] s(x_k) + M grad f(mu)

    (Gu et al., 2016, with one layer of discrete variables).

    Attributes:
        samples: K >= 1; f is evaluated at the mean besides.
    """

    @property
    def name(self) -> str:
        """The registry's name."""
        return "muprop"

    @property
    def needs_mean(self) -> bool:
        """The expansion is around the mean."""
        return True

    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*logits"]:
        """1/K sum_k (f_k - f(mu) - grad f(mu)^T (x_k - mu)) s_k + M grad f(mu)."""
        expansion = evaluation.f_mean + q.dot(evaluation.df_mean, evaluation.x - q.mean)
        return score_gradient(q, evaluation.x, evaluation.f - expansion) + q.covariance(evaluation.df_mean)
