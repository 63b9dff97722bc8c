"""REINFORCE: the score function estimator with no baseline or a constant one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from doublecv.arrays import Array, sum_over_samples
from doublecv.distributions import Distribution
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.linear import LinearEstimator
from doublecv.estimators.parts import Vectors

if TYPE_CHECKING:
    from jaxtyping import Float


def score_gradient(
    q: Distribution, x: Float[Array, "K *logits"], weight: Float[Array, "K *batch"]
) -> Float[Array, "*logits"]:
    """1/K sum_k weight_k s(x_k)."""
    return sum_over_samples(q.weigh(weight, q.score(x))) / x.shape[0]


@dataclass(frozen=True)
class Reinforce(LinearEstimator):
    """REINFORCE, with the equation

        g = 1/K sum_k (f(x_k) - c) s(x_k)

    (Williams, 1992; Glynn, 1990; Titsias and Shi, 2022, equation 2).

    Attributes:
        samples: K >= 1.
        learned_baseline: whether c is a coefficient, which starts at 0 and is learned by reducing the variance;
            otherwise c = 0.
    """

    learned_baseline: bool = False

    @property
    def name(self) -> str:
        """The registry's name."""
        return "reinforce"

    def starts(self) -> dict[str, float]:
        """The baseline c, where it is learned."""
        return {"baseline": 0.0} if self.learned_baseline else {}

    def parts(self, q: Distribution, evaluation: Evaluation) -> Vectors:
        """g0 = 1/K sum_k f_k s_k and h = -1/K sum_k s_k."""
        g0 = score_gradient(q, evaluation.x, evaluation.f)
        if not self.learned_baseline:
            return Vectors(q, g0, {})
        return Vectors(q, g0, {"baseline": -score_gradient(q, evaluation.x, q.xp.ones_like(evaluation.f))})
