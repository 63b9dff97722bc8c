"""The paper's variational autoencoder with discrete latents, linear or nonlinear, in one screen."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp

from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.lab.common.devices import is_split
from doublecv.lab.vae.likelihoods import bernoulli_log_likelihood, gaussian_log_likelihood

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

    from doublecv.lab.train.settings import TrainSettings

HIDDEN = (200, 200)
"""The units of the hidden layers of the nonlinear model, on both sides."""

NEGATIVE_SLOPE = 0.3
"""The slope of LeakyReLU below 0."""

RAW_VARIANCE = -0.5
"""Where a pixel's variance starts, before softplus."""

LEAST_VARIANCE = 0.001
"""The floor of a pixel's variance."""


class Dense(eqx.Module):
    """x -> x W + b, with Glorot uniform W and b = 0 at first (Glorot and Bengio, 2010)."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, "outputs"]

    def __init__(self, inputs: int, outputs: int, key: PRNGKeyArray) -> None:
        self.weight = jax.nn.initializers.glorot_uniform()(key, (inputs, outputs), jnp.float32)
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """The layer at every x."""
        return x @ self.weight + self.bias


class Network(eqx.Module):
    """Dense layers with LeakyReLU(0.3) between them."""

    layers: tuple[Dense, ...]

    def __init__(self, widths: tuple[int, ...], key: PRNGKeyArray) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        self.layers = tuple(
            Dense(inputs, outputs, key) for (inputs, outputs), key in zip(pairwise(widths), keys, strict=True)
        )

    @property
    def inputs(self) -> int:
        """The number of coordinates that it reads."""
        return self.layers[0].weight.shape[0]

    @property
    def outputs(self) -> int:
        """The number of coordinates that it returns."""
        return self.layers[-1].weight.shape[1]

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """The network at every x."""
        # One axis of points: the compiler would transpose what a weight's gradient sums over two axes. But an axis
        # that is split over devices would be gathered before it is joined with another.
        points = x if is_split() else x.reshape(-1, x.shape[-1])
        return self.layers[-1](self.hidden(points)).reshape(*x.shape[:-1], -1)

    def hidden(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch hidden"]:
        """What the last layer reads: the last hidden layer or, where there is none, x."""
        for layer in self.layers[:-1]:
            x = jax.nn.leaky_relu(layer(x), NEGATIVE_SLOPE)
        return x


class VAE(eqx.Module):
    """q(x | y) from the encoder, p(y | x) from the decoder, and the uniform prior p(x) (Titsias and Shi, 2022, 5.2).

    Attributes:
        encoder: from y to the logits of q.
        decoder: from x to the pixels' logits, or to their means.
        raw_variance: for the Gaussian likelihood, one number a pixel; its variance is softplus of it plus the floor.
        categories: the categories of a latent variable; None for binary ones.
    """

    encoder: Network
    decoder: Network
    raw_variance: Float[Array, "pixels"] | None
    categories: int | None = eqx.field(static=True)

    def __init__(self, settings: TrainSettings, pixels: int, key: PRNGKeyArray) -> None:
        encoder_key, decoder_key = jax.random.split(key)
        self.categories = settings.categories if settings.latent == "categorical" else None
        latents = settings.latents * (self.categories or 1)
        hidden = HIDDEN if settings.model == "nonlinear" else ()
        self.encoder = Network((pixels, *hidden, latents), encoder_key)
        self.decoder = Network((latents, *hidden, pixels), decoder_key)
        self.raw_variance = jnp.full(pixels, RAW_VARIANCE) if settings.likelihood == "gaussian" else None

    def posterior(self, logits: Float[Array, "*batch logits"]) -> Distribution:
        """q(x | y), from the encoder's output at y."""
        if self.categories is None:
            return Bernoulli(logits=logits)
        return Categorical(logits=logits.reshape(*logits.shape[:-1], -1, self.categories))

    def decode(self, x: Float[Array, "*points"]) -> Float[Array, "*samples pixels"]:
        """The pixels' logits or means, from binary or from one-hot latents."""
        return self.decoder(x if self.categories is None else x.reshape(*x.shape[:-2], -1))

    def log_likelihood(
        self, y: Float[Array, "*batch pixels"], x: Float[Array, "K *logits"]
    ) -> Float[Array, "K *batch"]:
        """log p(y | x)."""
        if self.raw_variance is None:
            return bernoulli_log_likelihood(self.decode(x), y)
        variance = jax.nn.softplus(self.raw_variance) + LEAST_VARIANCE
        return gaussian_log_likelihood(self.decode(x), variance, y)
