"""log p(y | x) from the decoder's output, summed over the pixels: Bernoulli with logits, Gaussian with means."""

from __future__ import annotations

from math import log, pi
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float

LARGEST_PRODUCT = 100
"""How many factors between 1 and 2 are multiplied before a logarithm is taken; 2^100 is far from overflow."""


@jax.custom_vjp
def bernoulli_log_likelihood(
    logits: Float[Array, "K *batch pixels"], y: Float[Array, "*batch pixels"]
) -> Float[Array, "K *batch"]:
    """sum_i y_i l_i - log(1 + exp(l_i)), with log(1 + exp(l)) = max(l, 0) + log(1 + exp(-|l|)).

    The sum of the last logarithms is the logarithm of a product, so an image takes few of them. The derivative in l,
    y - sigmoid(l), is made of the same exponentials, which the compiler then computes once for both.
    """
    linear = jnp.sum(y * logits - jnp.maximum(logits, 0), axis=-1)
    factors = 1 + _decay(logits)
    size = _divisor(factors.shape[-1])
    products = jnp.prod(factors.reshape(*factors.shape[:-1], size, -1), axis=-2)
    return linear - jnp.sum(jnp.log(products), axis=-1)


def _bernoulli_forward(logits: Any, y: Any) -> tuple[Any, tuple[Any, Any]]:
    # The function itself, and not its body: differentiated twice, as at relaxed points, it keeps its rule.
    return bernoulli_log_likelihood(logits, y), (logits, y)


def _bernoulli_backward(saved: tuple[Any, Any], cotangent: Any) -> tuple[Any, None]:
    logits, y = saved
    decay = _decay(logits)
    sigmoid = jnp.where(logits >= 0, 1, decay) / (1 + decay)
    return cotangent[..., None] * (y - sigmoid), None


bernoulli_log_likelihood.defvjp(_bernoulli_forward, _bernoulli_backward)


def _decay(logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """exp(-|l|), with the derivative that it has on the right of 0 also at 0."""
    return jnp.exp(jnp.where(logits >= 0, -logits, logits))


def _divisor(pixels: int) -> int:
    """The largest divisor of the number of pixels up to `LARGEST_PRODUCT`."""
    return max(size for size in range(1, LARGEST_PRODUCT + 1) if pixels % size == 0)


def gaussian_log_likelihood(
    mean: Float[Array, "K *batch pixels"], variance: Float[Array, "pixels"], y: Float[Array, "*batch pixels"]
) -> Float[Array, "K *batch"]:
    """-1/2 sum_i (y_i - m_i)^2 / v_i + log(2 pi v_i), with one variance a pixel."""
    squares = jnp.sum((y - mean) ** 2 * (1 / variance), axis=-1)
    return -(squares + jnp.sum(jnp.log(variance)) + variance.shape[0] * log(2 * pi)) / 2
