"""RELAX: REBAR with a learned function of z added to its control variate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from doublecv.arrays import Array
from doublecv.distributions import Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.concrete import Concrete, relax
from doublecv.estimators.couplings import Coupling
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.rebar import START, relaxed_gradient, relaxed_points

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Relax(Estimator):
    """RELAX, with the equation

        g = 1/K sum_k [(f(x_k) - c(z~_k)) s(x_k) + d/dlogits c(z_k) - d/dlogits c(z~_k)],
        c(z) = scale f(sigmoid(z / temperature)) + r(z)        (softmax for Categorical)

    (Grathwohl et al., 2018), where z, z~ and all else are those of `Rebar` and r is a network, learned
    with the temperature and the scale. It is unbiased whatever the network.

    The network is a function and its parameters, which are the coefficient "network". A function that reads more than
    z closes over it, also over arrays that are being traced:

        estimator = Relax(network=parameters, apply=lambda parameters, z: network(parameters, y, z))

    A torch module, or an equinox module all of whose leaves are arrays, is its own parameters, with
    `apply=lambda module, z: module(z)`. From any other equinox module take the arrays out first:

        parameters, static = equinox.partition(module, equinox.is_inexact_array)
        estimator = Relax(network=parameters, apply=lambda parameters, z: equinox.combine(parameters, static)(z))

    Attributes:
        samples: K >= 1; f is evaluated at 3K points.
        network: the parameters that the network starts with, any tree of arrays. It takes no part in comparing
            estimators.
        apply: r as a function of the parameters and of z, `[2K, *batch, *event]`, to `[2K, *batch]`. Network and apply
            may be left out when the estimator is made and given later with `dataclasses.replace`, but neither
            coefficients nor a gradient exist without them.
    """

    samples: int = 1
    network: Any = field(default=None, compare=False, repr=False)
    apply: Callable[[Any, Array], Array] | None = field(default=None, repr=False)

    def check_options(self) -> None:
        """Raise where `apply` cannot be called."""
        if self.apply is not None and not callable(self.apply):
            raise TypeError(f"apply must be a function of the parameters and z, got {type(self.apply).__name__}")

    @property
    def name(self) -> str:
        """The registry's name."""
        return "relax"

    @property
    def relaxed_points(self) -> int:
        """z and z~ of every sample."""
        return 2 * self.samples

    @property
    def sampler(self) -> Coupling:
        """Independent samples, with the noise of z and z~."""
        return Concrete()

    def coefficients(self) -> dict[str, Any]:
        """The logarithm of the temperature, which keeps it positive, the scale, and the network's parameters."""
        self._given_apply()
        return {**START, "network": self.network}

    def control(
        self,
        f: Callable[[Array], Array],
        q: Distribution,
        noise: Float[Array, "2 K *logits"],
        x: Float[Array, "K *logits"],
        coefficients: Mapping[str, Any],
    ) -> Float[Array, "2*K *batch"]:
        """c at z and z~."""
        z = relaxed_points(q, noise, x)
        values = f(relax(q, z, coefficients))
        r = self._given_apply()(coefficients["network"], z)
        for what, returned in (("f", values), ("apply", r)):
            if tuple(returned.shape) != q.batch_shape:
                raise ValueError(
                    f"{what} must return shape {q.batch_shape} at the relaxed points, one number for each point (in "
                    f"front) and batch element, got shape {tuple(returned.shape)} from z of shape {tuple(z.shape)}"
                )
        return coefficients["scale"] * values + r

    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*logits"]:
        """1/K sum_k (f_k - c(z~_k)) s_k + d/dlogits c(z_k) - d/dlogits c(z~_k)."""
        return relaxed_gradient(q, evaluation)

    def _given_apply(self) -> Callable[[Any, Array], Array]:
        if self.network is None or self.apply is None:
            missing = "network" if self.network is None else "apply"
            raise ValueError(
                f"{missing} of Relax is None, but its control variate has a network; give its parameters and the "
                f"function that applies them: Relax(samples, network=parameters, apply=lambda parameters, z: ...)"
            )
        return self.apply
