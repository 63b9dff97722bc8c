"""Make observations from bytes, and compute log p(y | x) from the output of the decoder, for both likelihoods."""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from doublecv.lab.common.devices import replicated

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray, UInt8

MOST_FACTORS = 64
"""The number of factors between 1 and 2 that are multiplied before a logarithm is taken; 2^64 does not overflow."""


def observe(key: PRNGKeyArray, pixels: UInt8[Array, "*batch pixels"], likelihood: str) -> Float[Array, "*batch pixels"]:
    """Return y from bytes: for Bernoulli, 1 with probability byte / 255; for Gaussian, the byte scaled to [-1, 1].

    16 random bits per pixel represent the probability to 1 / 65536; the bytes 0 and 255 are certain.
    """
    if likelihood == "gaussian":
        return pixels.astype(jnp.float32) * (2 / 255) - 1
    noise = replicated(jax.random.bits(key, pixels.shape, jnp.uint16))
    return (noise.astype(jnp.int32) * 255 < pixels.astype(jnp.int32) * 65536).astype(jnp.float32)


@jax.custom_vjp
def bernoulli_log_likelihood(
    logits: Float[Array, "*points pixels"], y: Float[Array, "*#points pixels"]
) -> Float[Array, "*points"]:
    r"""Return :math:`\sum_i y_i l_i - \log(1 + e^{l_i})`.

    With :math:`\log(1 + e^l) = \max(l, 0) + \log(1 + e^{-|l|})`, the sum of the last logarithms is the logarithm of a
    product, so that an image needs few logarithms. The derivative in l, :math:`y - \mathrm{sigmoid}(l)`, uses the same
    exponentials, which XLA then computes only once.
    """
    linear, factors = y * logits - jnp.maximum(logits, 0), 1 + _decay(logits)
    folds = 1
    while factors.shape[-1] % 2 == 0 and folds < MOST_FACTORS:
        linear, factors, folds = _fold(jnp.add, linear), _fold(jnp.multiply, factors), 2 * folds
    return jnp.sum(linear - jnp.log(factors), axis=-1)


def _bernoulli_forward(logits: Any, y: Any) -> tuple[Any, tuple[Any, Any]]:
    # Calling the function, not its body, keeps the rule when it is differentiated twice, as at relaxed points.
    return bernoulli_log_likelihood(logits, y), (logits, y)


def _bernoulli_backward(saved: tuple[Any, Any], cotangent: Any) -> tuple[Any, None]:
    logits, y = saved
    decay = _decay(logits)
    numerator = jnp.where(logits >= 0, (y - 1) + y * decay, y + (y - 1) * decay)
    # The division comes last because XLA does not repeat a division for every use of its result.
    return cotangent[..., None] * numerator / (1 + decay), None


bernoulli_log_likelihood.defvjp(_bernoulli_forward, _bernoulli_backward)


def _decay(logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return exp(-|l|); at 0 its derivative is the one from the right."""
    return jnp.exp(jnp.where(logits >= 0, -logits, logits))


def _fold(combine: Callable[[Any, Any], Any], values: Float[Array, "*shape pixels"]) -> Any:
    """Combine the first half of the pixels with the second half, which vector units do well."""
    half = values.shape[-1] // 2
    return combine(values[..., :half], values[..., half:])


def gaussian_log_likelihood(
    mean: Float[Array, "*points pixels"], variance: Float[Array, "pixels"], y: Float[Array, "*#points pixels"]
) -> Float[Array, "*points"]:
    r"""Return :math:`-\frac12 \sum_i (y_i - m_i)^2 / v_i + \log(2 \pi v_i)`, with one variance per pixel."""
    squares = jnp.sum((y - mean) ** 2 * (1 / variance), axis=-1)
    return -(squares + jnp.sum(jnp.log(variance)) + variance.shape[0] * log(2 * pi)) / 2
