"""DisARM: antithetic pairs of binary samples, debiased by integrating the augmentation out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from doublecv.arrays import Array, namespace, sum_over_samples
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.couplings import Antithetic, Coupling
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.leave_one_out import leave_one_out

if TYPE_CHECKING:
    from jaxtyping import Float


def antithetic_gradient(
    q: Distribution, x: Float[Array, "K *batch D"], f: Float[Array, "K *batch"]
) -> Float[Array, "*batch D"]:
    """mean over pairs of 1/2 (f - f') (x - x') sigmoid(|logits|), sample k and sample k + K/2 being a pair."""
    assert isinstance(q, Bernoulli)
    samples, pairs = x.shape[0], x.shape[0] // 2
    return sum_over_samples(q.weigh((f[:pairs] - f[pairs:]) / samples, x[:pairs] - x[pairs:])) * (1 - q.rarer)


def leave_pair_out(v: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
    """For both samples of a pair 1/(K-2) sum of v over the samples of the other pairs, which are independent of it."""
    pairs = v.shape[0] // 2
    of_others = leave_one_out((v[:pairs] + v[pairs:]) / 2)
    return namespace(v).concat([of_others, of_others], axis=0)


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
        return antithetic_gradient(q, evaluation.x, evaluation.f)
