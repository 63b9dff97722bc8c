"""The likelihoods against plain formulas in float64, in the tails, and differentiated twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from doublecv.lab.vae.likelihoods import bernoulli_log_likelihood, gaussian_log_likelihood


def drawn(pixels, scale=3.0):
    random = np.random.RandomState(pixels)
    return scale * random.randn(2, 5, pixels), (random.rand(5, pixels) < 0.4).astype(float)


def plain(logits, y):
    return (y * logits - np.logaddexp(0, logits)).sum(-1)


@pytest.mark.parametrize("pixels", [1, 7, 64, 784])
def test_bernoulli_is_the_plain_sum(pixels, x64):
    logits, y = drawn(pixels)
    np.testing.assert_allclose(bernoulli_log_likelihood(jnp.array(logits), jnp.array(y)), plain(logits, y), rtol=1e-12)


def test_bernoulli_in_float32_loses_next_to_nothing():
    logits, y = drawn(784)
    logits = logits.astype(np.float32)
    found = bernoulli_log_likelihood(jnp.asarray(logits), jnp.asarray(y, jnp.float32))
    np.testing.assert_allclose(found, plain(logits.astype(float), y), rtol=2e-6)


def test_bernoulli_in_the_tails():
    logits = jnp.array([[1e4, -1e4, 1e4, -1e4, 88.0, -88.0, 0.0, 0.0]])
    y = jnp.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(bernoulli_log_likelihood(logits, y), [-2e4 - 2 * np.log(2)], rtol=1e-6)
    gradient = jax.grad(lambda logits: bernoulli_log_likelihood(logits, y).sum())(logits)
    np.testing.assert_allclose(gradient, [[0, 0, -1, 1, 0, 0, 0.5, -0.5]], atol=1e-30)


def test_bernoulli_derivative_is_y_minus_sigmoid(x64):
    logits, y = map(jnp.array, drawn(784))
    weights = jnp.arange(10.0).reshape(2, 5)
    gradient = jax.grad(lambda logits: (weights * bernoulli_log_likelihood(logits, y)).sum())(logits)
    np.testing.assert_allclose(gradient, weights[..., None] * (y - jax.nn.sigmoid(logits)), rtol=1e-12, atol=1e-14)


def test_bernoulli_differentiated_twice_in_reverse_as_relaxed_points_want_it(x64):
    logits, y = map(jnp.array, drawn(8))
    logits = logits.at[0, 0, 0].set(0.0)

    def gradient_norm(logits):
        values, pullback = jax.vjp(lambda logits: bernoulli_log_likelihood(logits, y), logits)
        return (pullback(jnp.ones_like(values))[0] ** 2).sum() + values.sum()

    sigmoid = jax.nn.sigmoid(logits)
    wanted = -2 * (y - sigmoid) * sigmoid * (1 - sigmoid) + y - sigmoid
    np.testing.assert_allclose(jax.grad(gradient_norm)(logits), wanted, rtol=1e-12, atol=1e-14)


def test_gaussian_is_the_sum_of_normal_log_densities(x64):
    random = np.random.RandomState(1)
    mean, variance, y = random.randn(3, 4, 7), 0.1 + random.rand(7), random.randn(4, 7)
    wanted = stats.norm.logpdf(y, mean, np.sqrt(variance)).sum(-1)
    np.testing.assert_allclose(gaussian_log_likelihood(*map(jnp.array, (mean, variance, y))), wanted, rtol=1e-12)
