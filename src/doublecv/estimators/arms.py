"""ARMS: K mutually antithetic binary samples, debiased by their correlation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from doublecv.arrays import Array
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.couplings import Coupling, DirichletCopula
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.leave_one_out import leave_one_out
from doublecv.estimators.reinforce import score_gradient

if TYPE_CHECKING:
    from jaxtyping import Float


def copula_gradient(
    q: Distribution, x: Float[Array, "K *batch D"], f: Float[Array, "K *batch"]
) -> Float[Array, "*batch D"]:
    """1/K sum_k (f_k - loo(f)_k) s_k / (1 - rho)."""
    return score_gradient(q, x, f - leave_one_out(f)) * DirichletCopula().independence(q, x.shape[0])


@dataclass(frozen=True)
class ARMS(Estimator):
    """ARMS with a Dirichlet copula: RLOO on coupled samples, with the equation

        g = 1/K sum_k (f(x_k) - 1/(K-1) sum_{j != k} f(x_j)) s(x_k) / (1 - rho)

    where rho, one number a variable, is the correlation of two of the samples (Dimitriev and Zhou, 2021, section 3 for
    the estimator, section 4 for the copula). K = 2 is DisARM. Bernoulli alone: the correlation of one-hot samples is
    a matrix, by which RLOO cannot be divided.

    Attributes:
        samples: K >= 2; f is evaluated at exactly K points.
    """

    minimum_samples: ClassVar[int] = 2
    families: ClassVar[tuple[type[Distribution], ...]] = (Bernoulli,)

    @property
    def name(self) -> str:
        """The registry's name."""
        return "arms"

    @property
    def sampler(self) -> Coupling:
        """The Dirichlet copula."""
        return DirichletCopula()

    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*batch D"]:
        """1/K sum_k (f_k - loo(f)_k) s_k / (1 - rho)."""
        return copula_gradient(q, evaluation.x, evaluation.f)
