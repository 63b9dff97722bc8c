"""Score function estimators: REINFORCE, RLOO and the bound R*."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

from doublecv.arrays import Array, subtract_from_samples
from doublecv.distributions import Distribution
from doublecv.estimators.averages import leave_one_out, score_gradient
from doublecv.estimators.base import FixedEstimator, Needs
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.linear import LinearEstimator
from doublecv.estimators.parts import Vectors

if TYPE_CHECKING:
    from jaxtyping import Float


@final
@dataclass(frozen=True)
class Reinforce(LinearEstimator):
    r"""Estimate with the score function and a constant baseline or none.

    .. math:: g = \frac{1}{K} \sum_k (f(x_k) - c) \, s(x_k)

    (Williams, 1992; Glynn, 1990; Titsias and Shi, 2022, equation 2).

    >>> Reinforce(samples=4, learned_baseline=True).needs.coefficients
    ('baseline',)

    Attributes:
        samples: K >= 1.
        learned_baseline: whether c is a coefficient, learned by reducing the variance; otherwise c = 0.
    """

    learned_baseline: bool = False

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: f at the samples."""
        return Needs(path=True, coefficients=("baseline",) if self.learned_baseline else ())

    def parts(self, q: Distribution, evaluation: Evaluation) -> Vectors:
        r"""Return :math:`g_0 = \frac{1}{K} \sum_k f_k s_k` and :math:`h = -\frac{1}{K} \sum_k s_k`."""
        g0 = score_gradient(q, evaluation.x, evaluation.f)
        if not self.learned_baseline:
            return Vectors(q, g0, {})
        return Vectors(q, g0, {"baseline": -score_gradient(q, evaluation.x, q.xp.ones_like(evaluation.f))})


@final
@dataclass(frozen=True)
class RLOO(FixedEstimator):
    r"""Estimate with REINFORCE leave-one-out: the baseline is the mean of f at the other samples.

    .. math:: g = \frac{1}{K} \sum_k \Big(f(x_k) - \frac{1}{K-1} \sum_{j \ne k} f(x_j)\Big) s(x_k)

    (Salimans and Knowles, 2014; Kool et al., 2019; Titsias and Shi, 2022, equation 3).

    >>> RLOO(samples=4).evaluations
    4

    Attributes:
        samples: K >= 2.
    """

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: f at two or more samples."""
        return Needs(minimum_samples=2, path=True)

    def estimate(self, q: Distribution, evaluation: Evaluation) -> Float[Array, "*logits"]:
        r"""Return :math:`\frac{1}{K} \sum_k (f_k - \bar f_{-k}) s_k`."""
        return score_gradient(q, evaluation.x, evaluation.f - leave_one_out(evaluation.f))


@final
@dataclass(frozen=True)
class RStar(FixedEstimator):
    r"""Estimate with REINFORCE and the exact mean of f as the baseline.

    .. math:: g = \frac{1}{K} \sum_k (f(x_k) - E_q f) \, s(x_k)

    (Titsias and Shi, 2022, Proposition 1: its variance is at most that of RLOO). The mean is rarely known, so this
    estimator serves as a reference on small problems.

    >>> RStar(samples=2).needs.expected_f
    True

    Attributes:
        samples: K >= 1.
        expected_f: a function from q to :math:`E_q f`, shape `[*batch]`. If None, the mean is found by enumerating
            every value of x, which is possible for few variables only.
    """

    expected_f: Callable[[Distribution], Array] | None = None

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: f at the samples and its exact mean."""
        return Needs(expected_f=self.expected_f or True)

    def estimate(self, q: Distribution, evaluation: Evaluation) -> Float[Array, "*logits"]:
        r"""Return :math:`\frac{1}{K} \sum_k (f_k - E f) s_k`."""
        return score_gradient(q, evaluation.x, subtract_from_samples(evaluation.f, evaluation.expected_f))
