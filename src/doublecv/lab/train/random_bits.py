"""Define the random keys of the training program: Threefry-2x32 that uses all 64 bits of a block; and random orders.

JAX's own Threefry hashes one counter per number, in a loop over the rounds that passes through memory, and keeps only
as many of a block's 64 bits as the number has. Here a block makes two numbers of 32 bits or four of 16, and the rounds
are unrolled, so that XLA fuses them into one loop.

This generator exists for its speed: a training step with RLOO and K = 2 takes 1.12 times as much processor time with
JAX's "threefry2x32" and 1.19 times as much with "rbg" (one core, JAX 0.10.2, median of 8 interleaved rounds; measured
before the words of a block became one array, which made it faster). The tests compare it with known answers.
"""

from __future__ import annotations

from math import ceil, log, prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl, threefry_prng_impl

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PRNGKeyArray, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(
    key: UInt32[Array, "2"], first: UInt32[Array, "*shape"], second: UInt32[Array, "*shape"]
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """Return two words from a key and two words of counter: Threefry-2x32 with 20 rounds (Salmon et al., 2011)."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    first, second = first + schedule[0], second + schedule[1]
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            first = first + second
            second = first ^ ((second << distance) | (second >> (32 - distance)))
        first = first + schedule[(group + 1) % 3]
        second = second + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second


def _random_bits(key: Any, bit_width: int, shape: tuple[int, ...]) -> Any:
    """Return unsigned integers of 8, 16 or 32 bits; the words of a block are split from the low bits up."""
    size = prod(shape)
    numbers_a_word = 32 // bit_width
    blocks = -(-size // (2 * numbers_a_word))
    counter = jax.lax.iota(jnp.uint32, blocks)
    # One array of both words: XLA would fuse the rounds into every part of a concatenation and repeat them there.
    words = jnp.stack(threefry(key, counter, jnp.zeros_like(counter)))
    places = bit_width * jnp.arange(numbers_a_word, dtype=jnp.uint32)
    bits = (words[:, None] >> places[:, None]).astype(jnp.dtype(f"uint{bit_width}"))
    return bits.reshape(-1)[:size].reshape(shape)


GENERATOR = define_prng_impl(
    key_shape=threefry_prng_impl.key_shape,
    seed=threefry_prng_impl.seed,
    split=threefry_prng_impl.split,
    random_bits=_random_bits,
    fold_in=threefry_prng_impl.fold_in,
    name="doublecv_threefry2x32",
    tag="dcv",
)
"""The generator, to be used as `impl` of `jax.random.key` or `jax.random.wrap_key_data`."""


def permutation(key: PRNGKeyArray, size: int) -> Int[Array, "size"]:
    """Return the numbers below `size` in random order, the same order as that of `jax.random.permutation`.

    JAX sorts pairs, for which XLA on a CPU takes 2.7 times as long (60,000 numbers, one core, JAX 0.10.2).
    """
    order = jnp.arange(size)
    # Numbers that drew equal words keep their order, which matters less with each round; JAX makes as many.
    for _ in range(ceil(3 * log(max(1, size)) / log(2**32 - 1))):
        key, subkey = jax.random.split(key)
        order = order[stable_order(jax.random.bits(subkey, (size,), jnp.uint32))]
    return order


def stable_order(words: UInt32[Array, "size"]) -> Int[Array, "size"]:
    """Return the indices that sort the words; equal words keep their order.

    A radix sort from the low bits up: each pass sorts single words, made of the next bits and of the position.
    """
    positions = jnp.arange(words.size, dtype=jnp.uint32)
    position_bits = max(1, (words.size - 1).bit_length())
    order = jnp.arange(words.size)
    for place in range(0, 32, 32 - position_bits):
        # The shift to the left drops the bits of later passes.
        packed = jnp.sort((words[order] >> place << position_bits) | positions)
        order = order[packed & ((1 << position_bits) - 1)]
    return order
