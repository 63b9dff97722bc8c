"""RLOO: REINFORCE with the mean of the other samples' f as baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from doublecv.arrays import Array
from doublecv.distributions import Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.leave_one_out import leave_one_out
from doublecv.estimators.reinforce import score_gradient

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class RLOO(Estimator):
    """REINFORCE leave-one-out, with the equation

        g = 1/K sum_k (f(x_k) - 1/(K-1) sum_{j != k} f(x_j)) s(x_k)

    (Salimans and Knowles, 2014; Kool et al., 2019; Titsias and Shi, 2022, equation 3).

    Attributes:
        samples: K >= 2.
    """

    minimum_samples: ClassVar[int] = 2

    @property
    def name(self) -> str:
        """The registry's name."""
        return "rloo"

    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*logits"]:
        """1/K sum_k (f_k - loo(f)_k) s_k."""
        return score_gradient(q, evaluation.x, evaluation.f - leave_one_out(evaluation.f))
