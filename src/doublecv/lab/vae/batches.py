"""Make minibatches inside the compiled program: a new order per epoch, and observations from bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from doublecv.lab.common.devices import replicated

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8


def order_of_epoch(key: PRNGKeyArray, epoch: Int[Array, ""] | int, images: int) -> Int[Array, "images"]:
    """Return the order of the images in an epoch, a function of the key and the epoch only."""
    return jax.random.permutation(jax.random.fold_in(key, epoch), images)


def observe(key: PRNGKeyArray, pixels: UInt8[Array, "*batch pixels"], likelihood: str) -> Float[Array, "*batch pixels"]:
    """Return y from bytes: for Bernoulli, 1 with probability byte / 255; for Gaussian, the byte scaled to [-1, 1].

    16 random bits per pixel represent the probability to 1 / 65536; the bytes 0 and 255 are certain.
    """
    if likelihood == "gaussian":
        return pixels.astype(jnp.float32) * (2 / 255) - 1
    noise = replicated(jax.random.bits(key, pixels.shape, jnp.uint16))
    return (noise.astype(jnp.int32) * 255 < pixels.astype(jnp.int32) * 65536).astype(jnp.float32)
