"""RODEO: leave-one-out with control variates that the Gibbs Stein operator makes of a learned surrogate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from doublecv.arrays import Array, sum_over_samples
from doublecv.distributions import Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.leave_one_out import leave_one_out
from doublecv.estimators.reinforce import score_gradient
from doublecv.estimators.stein import Around, constant_around, gibbs_stein, gibbs_stein_of_score, linear_around

if TYPE_CHECKING:
    from jaxtyping import Float

FURTHEST_BIAS = 4.0
"""The biases of the hidden units start spread between minus and plus this, in units of the inputs."""


@dataclass(frozen=True)
class Rodeo(Estimator):
    """RODEO, with the equation

        g = 1/K sum_k [(f(x_k) - 1/(K-1) sum_{j != k} (f(x_j) + (A h_j)(x_j))) s(x_k) + (A h~_k s)(x_k)],
        h_k(y) = D/(K-1) sum_{j != k} H(f(x_j), grad f(x_j)^T (y - x_j))        and h~_k the same with H~

    (Shi, Zhou, Hwang, Titsias and Mackey, 2022), where A is the Gibbs Stein operator of `stein.py`. Both control
    variates have mean zero whatever H and H~ are: h_j and h~_k do not contain the sample at which the operator is
    evaluated, so that E[(A h_j)(x_j)] = 0 given all samples but x_j, s(x_k) among them, and E[(A h~_k s)(x_k)] = 0
    given all samples but x_k. f is evaluated at the samples alone, and the products grad f(x_j)^T (y - x_j) with all
    neighbours y of x_k follow from the one with x_k: time and memory are linear in D.

    The surrogate's network has one hidden layer, which H and H~ share:

        H(a, b) = n_j sum_u others_u tanh(value_u a / n_j + slope_u b / n_j + bias_u),      H~ with current_u

    with n_j^2 = grad f(x_j)^T M grad f(x_j), the variance of b under q, so that neither the start nor the learned
    coefficients depend on the scale of f; the factor D does the same for the 1/D of the operator. `others` and
    `current` start at 0, where the estimate is that of RLOO.

    Attributes:
        samples: K >= 2.
        units: the hidden units.
    """

    units: int = 8

    minimum_samples: ClassVar[int] = 2

    def check_options(self) -> None:
        """Raise where there are no hidden units."""
        if isinstance(self.units, bool) or not isinstance(self.units, int) or self.units < 1:
            raise ValueError(f"units must be an integer of at least 1, got {self.units!r}")

    @property
    def name(self) -> str:
        """The registry's name."""
        return "rodeo"

    @property
    def needs_df(self) -> bool:
        """The surrogate is made of the gradients at the samples."""
        return True

    def coefficients(self) -> dict[str, Any]:
        """The network's parameters: hidden units that differ, and outputs 0, whose gradient is not 0."""
        return {
            "network": {
                "value": np.zeros(self.units),
                "slope": np.ones(self.units),
                "bias": FURTHEST_BIAS * ((2 * np.arange(self.units) + 1) / self.units - 1),
                "current": np.zeros(self.units),
                "others": np.zeros(self.units),
            }
        }

    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*logits"]:
        """1/K sum_k (f_k - loo(f + A h)_k) s_k + (A h~_k s)(x_k), A h being the mean over j of A D H_j."""
        x, f, scale = evaluation.x, evaluation.f, q.event_shape[0] / (self.samples - 1)
        stein, stein_of_score = q.xp.zeros_like(f), q.xp.zeros_like(x)
        # Shifted against each other the samples meet in pairs, and none meets itself.
        for shift in range(1, self.samples):
            current, others = _surrogates(q, evaluation, coefficients["network"], shift)
            stein = stein + scale * gibbs_stein(q, x, others)
            stein_of_score = stein_of_score + scale * gibbs_stein_of_score(q, x, current)
        baseline = leave_one_out(f + stein)
        return score_gradient(q, x, f - baseline) + sum_over_samples(stein_of_score) / self.samples


def _surrogates(
    q: Distribution, evaluation: Evaluation, network: Mapping[str, Any], shift: int
) -> tuple[Around, Around]:
    """H~ and H of the sample j = k - shift, around x_k, for every k."""
    xp, x = q.xp, evaluation.x
    x_j, f_j, df_j = (xp.roll(array, shift, axis=0) for array in (x, evaluation.f, evaluation.df))
    variance = q.dot(df_j, q.covariance(df_j))
    # With the smallest number added an f that does not vary under q is not divided by 0.
    n = xp.sqrt(variance + float(xp.finfo(variance.dtype).smallest_normal))
    outer = xp.stack([network["current"], network["others"]], axis=-1)

    def outputs(a: Any, b: Any, n: Any) -> tuple[Any, Any]:
        inner = network["value"] * (a / n)[..., None] + network["slope"] * (b / n)[..., None] + network["bias"]
        hidden = xp.tanh(inner)
        both = hidden @ xp.astype(outer, hidden.dtype)
        return n * both[..., 0], n * both[..., 1]

    a, b, n = constant_around(q, f_j), linear_around(q, x, df_j, q.dot(df_j, x - x_j)), constant_around(q, n)
    here, neighbours = outputs(a.here, b.here, n.here), outputs(a.neighbours, b.neighbours, n.neighbours)
    return Around(here[0], neighbours[0]), Around(here[1], neighbours[1])
