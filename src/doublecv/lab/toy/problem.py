"""The toy problem: maximise E_q f with f(x) = 1/D sum_i (x_i - p0)^2 over the logits of q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from doublecv.arrays import Array
from doublecv.distributions import Bernoulli, Distribution

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class ToyProblem:
    """f(x) = 1/D sum_i (x_i - p0)^2 (Titsias and Shi, 2022, section 5.1; Tucker et al., 2017, for D = 1).

    With p0 just under 1/2 the best x_i is 1, by a hair: f gains (1 - 2 p0) / D with every x_i that goes from 0 to 1,
    while its gradient in x is about 1 / D in size and points away from p0 on both sides.

    Attributes:
        target: p0.
    """

    target: float = 0.499

    def f(self, x: Float[Array, "*shape D"]) -> Float[Array, "*shape"]:
        """1/D sum_i (x_i - p0)^2."""
        return ((x - self.target) ** 2).mean(-1)

    def df(self, x: Float[Array, "*shape D"]) -> Float[Array, "*shape D"]:
        """The gradient of f in x, 2/D (x - p0)."""
        return 2 / x.shape[-1] * (x - self.target)

    def expected_f(self, q: Distribution) -> Float[Array, "*batch"]:
        """E_q f = 1/D sum_i mu_i (1 - p0)^2 + (1 - mu_i) p0^2."""
        return (q.mean * (1 - self.target) ** 2 + (1 - q.mean) * self.target**2).mean(-1)

    def slope(self, q: Bernoulli) -> float:
        """w with f(x) = E_q f + sum_i w (x_i - mu_i) for every binary x, (1 - 2 p0) / D."""
        return (1 - 2 * self.target) / q.event_shape[0]

    def gradient(self, q: Bernoulli) -> Float[Array, "*batch D"]:
        """d/dlogits E_q f = (1 - 2 p0) / D mu (1 - mu)."""
        return q.covariance(self.slope(q) * q.xp.ones_like(q.logits))
