"""The evidence lower bound as the f of `expect`, and the part of it that has a closed form."""

from __future__ import annotations

from math import log, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from doublecv.distributions import Distribution
from doublecv.jax import Function
from doublecv.lab.vae.model import VAE

if TYPE_CHECKING:
    from jaxtyping import Array, Float


class Objective(NamedTuple):
    """ELBO = E_q f + outside.

    Attributes:
        f: what is averaged over samples of q.
        outside: what is not, for every batch element; 0 where there is no such part.
    """

    f: Function
    outside: Float[Array, "*batch"] | float


def elbo(model: VAE, y: Float[Array, "*batch pixels"], q: Distribution, kl: str) -> Objective:
    """The ELBO of y with q(x | y).

    kl="sampled", as in the paper:  f(x) = log p(y | x) + log p(x) - log q(x | y), with q held constant
    kl="analytic":                  f(x) = log p(y | x), and -KL(q | p) outside
    """
    if kl == "analytic":
        return Objective(lambda x: model.log_likelihood(y, x), q.entropy() + log_prior(q))
    return Objective(lambda x: log_weight(model, y, q.detach(), x), 0.0)


def log_weight(model: VAE, y: Any, q: Distribution, x: Float[Array, "K *logits"]) -> Float[Array, "K *batch"]:
    """log p(y | x) + log p(x) - log q(x | y)."""
    weight: Array = model.log_likelihood(y, x) - q.log_prob(x) + log_prior(q)
    return weight


def log_prior(q: Distribution) -> float:
    """log p(x) of the uniform prior over the values that q's variables can take."""
    return -prod(q.event_shape[:1]) * log(q.variable_values().shape[0])
