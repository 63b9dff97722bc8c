"""REBAR: f at relaxed points as control variate, whose gradient is estimated by reparameterisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

from doublecv.arrays import Array, sum_over_samples
from doublecv.distributions import Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.concrete import Concrete, conditional_sample, relax, relaxed_sample
from doublecv.estimators.couplings import Coupling
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.reinforce import score_gradient

if TYPE_CHECKING:
    from jaxtyping import Float

START = {"log_temperature": log(0.1), "scale": 1.0}
"""The start of the coefficients: temperature 0.1, scale 1."""


def relaxed_gradient(q: Distribution, evaluation: Evaluation) -> Float[Array, "*logits"]:
    """1/K sum_k (f(x_k) - c(z~_k)) s(x_k) + d/dlogits c(z_k) - d/dlogits c(z~_k)."""
    score_part = score_gradient(q, evaluation.x, evaluation.f - conditional_control(evaluation))
    return score_part + reparameterised_gradient(evaluation)


def conditional_control(evaluation: Evaluation) -> Float[Array, "K *batch"]:
    """c(z~_k)."""
    assert evaluation.control is not None
    return evaluation.control[evaluation.x.shape[0] :]


def reparameterised_gradient(evaluation: Evaluation) -> Float[Array, "*logits"]:
    """1/K sum_k d/dlogits c(z_k) - d/dlogits c(z~_k), which has the mean of c(z~) s(x)."""
    assert evaluation.dcontrol is not None
    samples = evaluation.x.shape[0]
    return sum_over_samples(evaluation.dcontrol[:samples] - evaluation.dcontrol[samples:]) / samples


def relaxed_points(
    q: Distribution, noise: Float[Array, "2 K *logits"], x: Float[Array, "K *logits"]
) -> Float[Array, "2*K *logits"]:
    """z_1, ..., z_K, then z~_1, ..., z~_K, each from the logits of its own that q has."""
    samples = x.shape[0]
    z = relaxed_sample(type(q)(logits=q.logits[:samples]), noise[0])
    conditional = conditional_sample(type(q)(logits=q.logits[samples:]), noise[1], x)
    return q.xp.concat([z, conditional], axis=0)


@dataclass(frozen=True)
class Rebar(Estimator):
    """REBAR, with the equation

        g = 1/K sum_k [(f(x_k) - c(z~_k)) s(x_k) + d/dlogits c(z_k) - d/dlogits c(z~_k)],
        c(z) = scale f(sigmoid(z / temperature))        (softmax for Categorical)

    where z is the concrete relaxation whose hard threshold is x, and z~ is drawn from z given x (Tucker et al., 2017,
    with one temperature and one scale). It is unbiased at any temperature and scale: given x the score of z
    is that of x plus that of z~, so the last two terms make up for what the first subtracts. f must be defined inside
    the cube or simplex, and is differentiated twice there for the coefficients' gradient.

    Attributes:
        samples: K >= 1; f is evaluated at 3K points.
    """

    samples: int = 1

    @property
    def name(self) -> str:
        """The registry's name."""
        return "rebar"

    @property
    def relaxed_points(self) -> int:
        """z and z~ of every sample."""
        return 2 * self.samples

    @property
    def sampler(self) -> Coupling:
        """Independent samples, with the noise of z and z~."""
        return Concrete()

    def coefficients(self) -> dict[str, Any]:
        """The logarithm of the temperature, which keeps it positive, and the scale."""
        return dict(START)

    def control(
        self,
        f: Callable[[Array], Array],
        q: Distribution,
        noise: Float[Array, "2 K *logits"],
        x: Float[Array, "K *logits"],
        coefficients: Mapping[str, Any],
    ) -> Float[Array, "2*K *batch"]:
        """c at z and z~."""
        return coefficients["scale"] * f(relax(q, relaxed_points(q, noise, x), coefficients))

    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*logits"]:
        """1/K sum_k (f_k - c(z~_k)) s_k + d/dlogits c(z_k) - d/dlogits c(z~_k)."""
        return relaxed_gradient(q, evaluation)
