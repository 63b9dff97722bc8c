"""Random bits, binarisation and the order of the images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from doublecv.lab.train.random_bits import GENERATOR, permutation, stable_order, threefry
from doublecv.lab.train.step import order_of_epoch
from doublecv.lab.vae.likelihoods import observe


def test_the_rounds_are_those_of_jax():
    key = jnp.array([123456789, 987654321], jnp.uint32)
    counter = jnp.arange(10, dtype=jnp.uint32) * 77777777
    found = jnp.concatenate(threefry(key, counter[:5], counter[5:]))
    np.testing.assert_array_equal(found, threefry_2x32(key, counter))


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
def test_all_bits_are_even_and_no_number_comes_twice_in_a_row(dtype):
    bits = np.asarray(jax.random.bits(jax.random.key(3, impl=GENERATOR), (7, 4001), dtype))
    assert bits.shape == (7, 4001)
    width = bits.dtype.itemsize * 8
    share = [((bits >> place) & 1).mean() for place in range(width)]
    assert np.abs(np.array(share) - 0.5).max() < 5 * 0.5 / np.sqrt(bits.size)
    flat = bits.ravel() / 2.0**width
    for lag in (1, 2, 4, bits.size // 4, bits.size // 2):
        correlation = np.corrcoef(flat[:-lag], flat[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(bits.size - lag)


def test_the_words_of_a_block_are_split_from_the_low_bits_up():
    key, counter = jnp.array([5, 6], jnp.uint32), jnp.arange(5, dtype=jnp.uint32)
    words = threefry(key, counter, jnp.zeros_like(counter))
    expected = np.concatenate([[word & 0xFFFF, word >> 16] for word in np.asarray(words)]).ravel()
    bits = jax.random.bits(jax.random.wrap_key_data(key, impl=GENERATOR), (19,), jnp.uint16)
    np.testing.assert_array_equal(bits, expected[:19])


@pytest.mark.parametrize("size", [1, 2, 3, 500, 5000, 70_000])
def test_the_order_is_that_of_jax(size):
    key = jax.random.key(4, impl=GENERATOR)
    np.testing.assert_array_equal(permutation(key, size), jax.random.permutation(key, size))


@pytest.mark.parametrize("size", [1, 2, 300, 70_000])
def test_equal_words_keep_their_order(size):
    words = np.random.default_rng(0).integers(0, 5, size).astype(np.uint32) * np.uint32(0x40010001)
    np.testing.assert_array_equal(stable_order(jnp.asarray(words)), np.argsort(words, stable=True))


def test_keys_can_be_split_folded_and_mapped_over():
    keys = jax.random.split(jax.random.key(5, impl=GENERATOR), 3)
    mapped = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, 2), (4,)))(keys)
    one = jax.random.uniform(jax.random.fold_in(keys[1], 2), (4,))
    np.testing.assert_array_equal(mapped[1], one)
    assert len(np.unique(mapped)) == 12


def test_binarised_pixels_have_the_probability_of_their_byte():
    draws = 40_000
    pixels = jnp.broadcast_to(jnp.arange(256, dtype=jnp.uint8), (draws, 256))
    y = np.asarray(observe(jax.random.key(1, impl=GENERATOR), pixels, "bernoulli"))
    assert set(np.unique(y)) == {0.0, 1.0}
    assert (y[:, 0] == 0).all()
    assert (y[:, 255] == 1).all()
    probability = np.arange(256) / 255
    error = np.sqrt(probability * (1 - probability) / draws)
    assert (np.abs(y.mean(0) - probability) <= 4.5 * error).all()


def test_continuous_pixels_lie_between_minus_one_and_one():
    y = observe(jax.random.key(1), jnp.array([[0, 51, 255]], jnp.uint8), "gaussian")
    np.testing.assert_allclose(y, [[-1, -0.6, 1]], rtol=1e-6)


def test_each_epoch_has_an_order_of_its_own_with_every_image_once():
    key = jax.random.key(2, impl=GENERATOR)
    orders = [np.asarray(order_of_epoch(key, epoch, 500)) for epoch in range(3)]
    assert all((np.sort(order) == np.arange(500)).all() for order in orders)
    assert all((orders[i] == orders[j]).mean() < 0.05 for i, j in ((0, 1), (0, 2), (1, 2)))
    assert (np.asarray(order_of_epoch(key, 1, 500)) == orders[1]).all()
