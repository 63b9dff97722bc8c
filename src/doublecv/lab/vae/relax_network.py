"""The network that RELAX learns in the laboratory: from the input y and the relaxed z to one number."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp

from doublecv.estimators import Relax

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

HIDDEN = 137
"""The units of the one hidden layer."""

NEGATIVE_SLOPE = 0.3
"""The slope of LeakyReLU below 0."""


class RelaxNetwork(eqx.Module):
    """r(y, z): (y, z) -> 137 LeakyReLU(0.3) -> 1, with Glorot uniform weights and zero biases.

    (Titsias and Shi, 2022, after Grathwohl et al., 2018.) All its leaves are arrays, so that it is its own parameters.
    The weights of y and of z are two blocks of one matrix: what y contributes is computed once for all points z.

    Args:
        inputs: the number of coordinates of y.
        latents: the number of coordinates of z, D for Bernoulli and D C for Categorical.
        key: a JAX random key.
    """

    from_input: Float[Array, "inputs hidden"]
    from_latent: Float[Array, "latents hidden"]
    hidden_bias: Float[Array, "hidden"]
    to_output: Float[Array, "hidden"]
    output_bias: Float[Array, ""]

    def __init__(self, inputs: int, latents: int, key: PRNGKeyArray) -> None:
        hidden_key, output_key = jax.random.split(key)
        hidden = _glorot_uniform(hidden_key, inputs + latents, HIDDEN)
        self.from_input, self.from_latent = hidden[:inputs], hidden[inputs:]
        self.hidden_bias = jnp.zeros(HIDDEN)
        self.to_output = _glorot_uniform(output_key, HIDDEN, 1)[:, 0]
        self.output_bias = jnp.zeros(())

    def __call__(
        self, y: Float[Array, "*batch inputs"], z: Float[Array, "points *logits"]
    ) -> Float[Array, "points *batch"]:
        """r at every point z of every batch element."""
        flat_z = z.reshape(*z.shape[: y.ndim], -1)
        hidden = y @ self.from_input + flat_z @ self.from_latent + self.hidden_bias
        return jax.nn.leaky_relu(hidden, NEGATIVE_SLOPE) @ self.to_output + self.output_bias


def relax_with_input(network: RelaxNetwork, y: Float[Array, "*batch inputs"], samples: int = 1) -> Relax:
    """RELAX whose network reads y, which may be traced, besides z."""

    def apply(network: Any, z: Any) -> Any:
        return network(y, z)

    return Relax(samples, network=network, apply=apply)


def _glorot_uniform(key: PRNGKeyArray, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    limit = sqrt(6 / (inputs + outputs))
    return jax.random.uniform(key, (inputs, outputs), minval=-limit, maxval=limit)
