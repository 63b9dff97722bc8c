"""Estimators with antithetic binary samples: DisARM and ARMS."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

from doublecv.arrays import Array
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators.base import FixedEstimator, Needs
from doublecv.estimators.couplings import Antithetic, DirichletCopula
from doublecv.estimators.evaluation import Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float


@final
@dataclass(frozen=True)
class DisARM(FixedEstimator):
    r"""Estimate with DisARM over K/2 antithetic pairs (x, x').

    .. math:: g = \frac{2}{K} \sum_{pairs} \tfrac12 (f(x) - f(x')) (x - x') \, \mathrm{sigmoid}(|logits|)

    (Dong, Mnih and Tucker, 2020, section 3; Yin et al., 2020). It supports only Bernoulli, because a one-hot sample has
    no antithetic partner.

    >>> DisARM(samples=4).evaluations
    4

    Attributes:
        samples: K, even; f is evaluated at exactly K points.
    """

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: f at antithetic pairs."""
        return Needs(families=(Bernoulli,), minimum_samples=2, multiple_of=2, coupling=Antithetic())

    def estimate(self, q: Distribution, evaluation: Evaluation) -> Float[Array, "*batch D"]:
        """Return the estimate of the antithetic coupling."""
        return Antithetic().estimate(q, evaluation.x, evaluation.f)


@final
@dataclass(frozen=True)
class ARMS(FixedEstimator):
    r"""Estimate with ARMS and a Dirichlet copula, which is RLOO on coupled samples.

    .. math:: g = \frac{1}{K} \sum_k \Big(f(x_k) - \frac{1}{K-1} \sum_{j \ne k} f(x_j)\Big) \frac{s(x_k)}{1 - \rho}

    where :math:`\rho`, one number per variable, is the correlation of two of the samples (Dimitriev and Zhou, 2021,
    section 3 for the estimator, section 4 for the copula). K = 2 is DisARM. It supports only Bernoulli, because the
    correlation of one-hot samples is a matrix.

    >>> ARMS(samples=3).evaluations
    3

    Attributes:
        samples: K >= 2; f is evaluated at exactly K points.
    """

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: f at mutually antithetic samples."""
        return Needs(families=(Bernoulli,), minimum_samples=2, coupling=DirichletCopula())

    def estimate(self, q: Distribution, evaluation: Evaluation) -> Float[Array, "*batch D"]:
        """Return the estimate of the Dirichlet copula."""
        return DirichletCopula().estimate(q, evaluation.x, evaluation.f)
