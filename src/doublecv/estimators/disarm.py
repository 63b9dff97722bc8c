"""DisARM: antithetic pairs of binary samples, debiased by integrating the augmentation out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from doublecv.arrays import Array, sum_over_samples
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.couplings import Antithetic, Coupling
from doublecv.estimators.evaluation import Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class DisARM(Estimator):
    """DisARM over K/2 antithetic pairs (x, x'), with the equation

        g = mean over pairs of  1/2 (f(x) - f(x')) (x - x') sigmoid(|logits|)

    (Dong, Mnih and Tucker, 2020, section 3; Yin et al., 2020). Bernoulli alone: there is no antithetic partner of a
    one-hot sample.

    Attributes:
        samples: K, even; f is evaluated at exactly K points.
    """

    minimum_samples: ClassVar[int] = 2
    multiple_of: ClassVar[int] = 2
    families: ClassVar[tuple[type[Distribution], ...]] = (Bernoulli,)

    @property
    def name(self) -> str:
        """The registry's name."""
        return "disarm"

    @property
    def sampler(self) -> Coupling:
        """Samples k and k + K/2 are an antithetic pair."""
        return Antithetic()

    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*batch D"]:
        """mean over pairs of 1/2 (f - f') (x - x') sigmoid(|logits|)."""
        assert isinstance(q, Bernoulli)
        pairs = self.samples // 2
        f_difference = evaluation.f[:pairs] - evaluation.f[pairs:]
        x_difference = evaluation.x[:pairs] - evaluation.x[pairs:]
        return sum_over_samples(q.weigh(f_difference / self.samples, x_difference)) * (1 - q.rarer)
