"""log p(y | x) from the decoder's output, summed over the pixels: Bernoulli with logits, Gaussian with means."""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float

MOST_FACTORS = 64
"""How many factors between 1 and 2 are multiplied before a logarithm is taken; 2^64 is far from overflow."""


@jax.custom_vjp
def bernoulli_log_likelihood(
    logits: Float[Array, "K *batch pixels"], y: Float[Array, "*batch pixels"]
) -> Float[Array, "K *batch"]:
    """sum_i y_i l_i - log(1 + exp(l_i)), with log(1 + exp(l)) = max(l, 0) + log(1 + exp(-|l|)).

    The sum of the last logarithms is the logarithm of a product, so an image takes few of them. The derivative in l,
    y - sigmoid(l), is made of the same exponentials, which the compiler then computes once for both.
    """
    linear, factors = y * logits - jnp.maximum(logits, 0), 1 + _decay(logits)
    folds = 1
    while factors.shape[-1] % 2 == 0 and folds < MOST_FACTORS:
        linear, factors, folds = _fold(jnp.add, linear), _fold(jnp.multiply, factors), 2 * folds
    return jnp.sum(linear - jnp.log(factors), axis=-1)


def _bernoulli_forward(logits: Any, y: Any) -> tuple[Any, tuple[Any, Any]]:
    # The function itself, and not its body: differentiated twice, as at relaxed points, it keeps its rule.
    return bernoulli_log_likelihood(logits, y), (logits, y)


def _bernoulli_backward(saved: tuple[Any, Any], cotangent: Any) -> tuple[Any, None]:
    logits, y = saved
    decay = _decay(logits)
    numerator = jnp.where(logits >= 0, (y - 1) + y * decay, y + (y - 1) * decay)
    # The division comes last because the compiler computes one only once, however many use its result.
    return cotangent[..., None] * numerator / (1 + decay), None


bernoulli_log_likelihood.defvjp(_bernoulli_forward, _bernoulli_backward)


def _decay(logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """exp(-|l|), with the derivative that it has on the right of 0 also at 0."""
    return jnp.exp(jnp.where(logits >= 0, -logits, logits))


def _fold(combine: Callable[[Any, Any], Any], values: Float[Array, "*shape pixels"]) -> Any:
    """The first half of the pixels combined with the second, which vector units do well."""
    half = values.shape[-1] // 2
    return combine(values[..., :half], values[..., half:])


def gaussian_log_likelihood(
    mean: Float[Array, "K *batch pixels"], variance: Float[Array, "pixels"], y: Float[Array, "*batch pixels"]
) -> Float[Array, "K *batch"]:
    """-1/2 sum_i (y_i - m_i)^2 / v_i + log(2 pi v_i), with one variance a pixel."""
    squares = jnp.sum((y - mean) ** 2 * (1 / variance), axis=-1)
    return -(squares + jnp.sum(jnp.log(variance)) + variance.shape[0] * log(2 * pi)) / 2
