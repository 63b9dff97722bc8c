"""Define the variational autoencoder of the paper, with discrete latents, linear or nonlinear."""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.jax.drawing import uniform
from doublecv.lab.common.devices import is_sharded
from doublecv.lab.vae.likelihoods import bernoulli_log_likelihood, gaussian_log_likelihood
from doublecv.sequential import Layers

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

HIDDEN = (200, 200)
"""The widths of the hidden layers of the nonlinear network, on both sides."""

NEGATIVE_SLOPE = 0.3
"""The slope of LeakyReLU below 0."""

RAW_VARIANCE = -0.5
"""The start of a pixel's variance, before softplus."""

LEAST_VARIANCE = 0.001
"""The floor of a pixel's variance."""


class Dense(eqx.Module):
    r"""Map x to :math:`x W + b`; W starts Glorot uniform (Glorot and Bengio, 2010) and b at 0."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, "outputs"]

    def __init__(self, inputs: int, outputs: int, key: PRNGKeyArray) -> None:
        self.weight = jax.nn.initializers.glorot_uniform()(key, (inputs, outputs), jnp.float32)
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """Return the outputs at every x."""
        return x @ self.weight + self.bias


class Network(eqx.Module):
    """Stack dense layers with LeakyReLU(0.3) between them."""

    layers: tuple[Dense, ...]

    def __init__(self, widths: tuple[int, ...], key: PRNGKeyArray) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        self.layers = tuple(
            Dense(inputs, outputs, key) for (inputs, outputs), key in zip(pairwise(widths), keys, strict=True)
        )

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.layers[0].weight.shape[0]

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return self.layers[-1].weight.shape[1]

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """Return the outputs at every x."""
        # With one axis of points the compiler needs no transposition for the gradient of a weight. An axis that is
        # split over devices must stay separate, because merging it with another would gather it first.
        points = x if is_sharded() else x.reshape(-1, x.shape[-1])
        return self.layers[-1](self.hidden(points)).reshape(*x.shape[:-1], -1)

    def hidden(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch hidden"]:
        """Return the last hidden layer, or x if there is none."""
        for layer in self.layers[:-1]:
            x = jax.nn.leaky_relu(layer(x), NEGATIVE_SLOPE)
        return x


Posterior: TypeAlias = Distribution | Layers
"""q(x | y): one layer of independent latents, or two layers."""


class Upper(eqx.Module):
    """Hold the second stochastic layer: q(x2 | x1) and p(x1 | x2), each with one dense layer to its logits."""

    encoder: Network
    decoder: Network

    def __init__(self, latents: int, key: PRNGKeyArray) -> None:
        encoder_key, decoder_key = jax.random.split(key)
        self.encoder = Network((latents, latents), encoder_key)
        self.decoder = Network((latents, latents), decoder_key)


class VAE(eqx.Module):
    r"""Hold q(x | y), p(y | x) and the uniform prior p(x) of Titsias and Shi (2022, section 5.2).

    The Gaussian likelihood has one learned variance per pixel,
    :math:`v_i = \max(\mathrm{softplus}(r_i), 0.001)`, with :math:`r_i` starting at -0.5.

    With two layers, x is the pair (x1, x2), q(x1, x2 | y) = q(x1 | y) q(x2 | x1), and the model is p(x2) p(x1 | x2)
    p(y | x1), as in the multi-layer experiments of Dong, Mnih and Tucker (2020).

    The encoder is the network from y to the logits of q, or of its first layer, the decoder that from x, or from its
    first layer, to the logits of the pixels, or to their means. `hidden` has the widths of the hidden layers of both,
    () for the linear network; `categories` is None for binary latents, and `raw_variance` is r.
    """

    encoder: Network
    decoder: Network
    upper: Upper | None
    raw_variance: Float[Array, "pixels"] | None
    categories: int | None = eqx.field(static=True)

    def __init__(
        self,
        pixels: int,
        latents: int,
        key: PRNGKeyArray,
        *,
        categories: int | None = None,
        hidden: tuple[int, ...] = HIDDEN,
        likelihood: str = "bernoulli",
        two_layers: bool = False,
    ) -> None:
        encoder_key, decoder_key = jax.random.split(key)
        self.upper = Upper(latents, jax.random.fold_in(key, 2)) if two_layers else None
        self.categories = categories
        coordinates = latents * (categories or 1)
        self.encoder = Network((pixels, *hidden, coordinates), encoder_key)
        self.decoder = Network((coordinates, *hidden, pixels), decoder_key)
        self.raw_variance = jnp.full(pixels, RAW_VARIANCE) if likelihood == "gaussian" else None

    @property
    def likelihood(self) -> str:
        """The likelihood of the pixels, "bernoulli" or "gaussian"."""
        return "bernoulli" if self.raw_variance is None else "gaussian"

    @property
    def inference(self) -> Any:
        """The parameters of q(x | y): those of the encoder, and of the second layer's if there is one."""
        return self.encoder if self.upper is None else (self.encoder, self.upper.encoder)

    @property
    def coordinates(self) -> int:
        """The number of logits of q(x | y), those of all layers."""
        return self.encoder.outputs * (1 if self.upper is None else 2)

    @property
    def log_prior(self) -> float:
        """The logarithm of the uniform prior of x, or of the last layer of x."""
        latents = self.encoder.outputs // (self.categories or 1)
        return -latents * log(self.categories or 2)

    def posterior(
        self,
        logits: Float[Array, "*batch logits"],
        upper_shift: Float[Array, "*#batch upper"] | Float[Array, ""] | float = 0.0,
        copies: int = 1,
    ) -> Any:
        """Return q(x | y), a `Posterior`, of so many independent copies of x, from the output of the encoder at y.

        `upper_shift` is added to the logits of the second layer, if there is one.
        """
        logits = jnp.concatenate([logits] * copies, axis=-1)
        if (upper := self.upper) is None:
            return self._independent(logits)

        def second(x1: Any) -> Bernoulli:
            x = x1.reshape(*x1.shape[:-1], copies, -1)
            shift = jnp.asarray(upper_shift)
            shifted = upper.encoder(x) + (shift[..., None, :] if shift.ndim else shift)
            return Bernoulli(logits=shifted.reshape(x1.shape))

        return Layers(Bernoulli(logits=logits), second)

    def _independent(self, logits: Float[Array, "*batch logits"]) -> Distribution:
        if self.categories is None:
            return Bernoulli(logits=logits)
        return Categorical(logits=logits.reshape(*logits.shape[:-1], -1, self.categories))

    def draw(self, q: Posterior, key: PRNGKeyArray, samples: int) -> Any:
        """Draw independent samples of q(x | y)."""
        if isinstance(q, Layers):
            visit = q.visit(samples, uniform(key))
            return visit.structure(visit.x)
        return q.sample(jax.random.uniform(key, (samples, *q.noise_shape)))

    def draw_prior(self, key: PRNGKeyArray, samples: int) -> Any:
        """Draw independent samples of p(x)."""
        upper_key, key = jax.random.split(key)
        prior = self._independent(jnp.zeros((samples, self.encoder.outputs)))
        x = prior.sample(jax.random.uniform(upper_key, prior.noise_shape))
        if self.upper is None:
            return x
        lower = Bernoulli(logits=self.upper.decoder(x))
        return lower.sample(jax.random.uniform(key, lower.noise_shape)), x

    def decode(self, x: Any) -> Float[Array, "*samples pixels"]:
        """Return the logits or means of the pixels, from binary or one-hot latents."""
        x = x if self.upper is None else x[0]
        return self.decoder(x if self.categories is None else x.reshape(*x.shape[:-2], -1))

    def log_likelihood(self, y: Float[Array, "*#points pixels"], x: Any) -> Float[Array, "*points"]:
        """Return log p(y | x), or log p(y, x1 | x2) with two layers."""
        if self.raw_variance is None:
            found = bernoulli_log_likelihood(self.decode(x), y)
        else:
            variance = jnp.maximum(jax.nn.softplus(self.raw_variance), LEAST_VARIANCE)
            found = gaussian_log_likelihood(self.decode(x), variance, y)
        if self.upper is None:
            return found
        lower, upper = x
        of_both: Array = found + Bernoulli(logits=self.upper.decoder(upper)).log_prob(lower)
        return of_both
