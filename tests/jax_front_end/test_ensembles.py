"""Batches that only a part of the arguments has: the gradient of a shared part is the sum over the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.jax import expect
from problems import make_coefficients

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(11)
NAMES = ["rloo", "double-cv", "double-cv-mean", "muprop", "disarm", "arms", "quadratic-double-cv"]
LOGITS = np.random.default_rng(0).normal(size=(3, 4))
WEIGHTS = np.random.default_rng(1).normal(size=(5, 4))


def value(estimator, logits, weights, coefficients, key):
    q = dcv.Bernoulli(jnp.asarray(logits))
    return expect(lambda x: jnp.sin(x @ weights) ** 2, q, estimator, coefficients, key).mean()


@pytest.mark.parametrize("name", NAMES)
def test_an_ensemble_of_models_on_the_same_samples(name):
    """Only what f closes over has the batch, neither the logits nor the samples."""
    estimator = estimators.make(name, samples=2)
    coefficients = make_coefficients(estimator, -0.7)

    def together(logits, coefficients):
        each = jax.vmap(lambda w: value(estimator, logits, w, coefficients, KEY))(WEIGHTS)
        return each @ jnp.arange(5.0)

    def one_by_one(logits, coefficients):
        return sum(i * value(estimator, logits, w, coefficients, KEY) for i, w in enumerate(WEIGHTS))

    got = jax.jit(jax.grad(together, argnums=(0, 1)))(LOGITS, coefficients)
    wanted = jax.grad(one_by_one, argnums=(0, 1))(LOGITS, coefficients)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13), got, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_several_keys_for_the_same_logits(name):
    estimator = estimators.make(name, samples=2)
    coefficients = make_coefficients(estimator, -0.7)
    keys = jax.random.split(KEY, 5)

    def together(logits, weights):
        return jax.vmap(lambda key: value(estimator, logits, weights, coefficients, key))(keys).sum()

    def one_by_one(logits, weights):
        return sum(value(estimator, logits, weights, coefficients, key) for key in keys)

    got = jax.grad(together, argnums=(0, 1))(LOGITS, WEIGHTS[0])
    wanted = jax.grad(one_by_one, argnums=(0, 1))(LOGITS, WEIGHTS[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13), got, wanted)


def test_integers_and_keys_of_a_loop_inside_a_differentiated_scan():
    """What f closes over there is gone when JAX traces the backward rule, integers and random keys included."""
    labels = jnp.asarray([[0, 1, 2], [3, 0, 1]])

    def loss(logits, weights):
        def body(total, inputs):
            label, key = inputs
            mask = jax.random.bernoulli(key, 0.5, (4,))

            def f(x):
                return jnp.take_along_axis(x * weights * mask, label[None, :, None], axis=-1)[..., 0]

            return total + expect(f, dcv.Bernoulli(logits), dcv.DoubleCV(2), {"alpha": -1.0}, key).sum(), None

        return jax.lax.scan(body, 0.0, (labels, jax.random.split(KEY, 2)))[0]

    gradient, _ = jax.jit(jax.grad(loss, argnums=(0, 1)))(LOGITS, WEIGHTS[0])
    masks = [jax.random.bernoulli(key, 0.5, (4,)) for key in jax.random.split(KEY, 2)]
    # f is linear and alpha is -1: the estimate is the exact gradient.
    slope = dcv.Bernoulli(LOGITS).covariance(jnp.ones_like(LOGITS)) * WEIGHTS[0]
    wanted = sum(slope * mask * jax.nn.one_hot(label, 4) for label, mask in zip(labels, masks, strict=True))
    np.testing.assert_allclose(gradient, wanted, atol=1e-12)


def test_what_is_not_differentiated_needs_no_derivative():
    """A callback on data has no derivative rule: it must not be touched because the model's parameters are."""
    data = jnp.arange(3.0)

    def loss(logits, weights, data):
        def f(x):
            shape = jax.ShapeDtypeStruct(x.shape[:-1], x.dtype)
            reward = jax.pure_callback(lambda x, y: np.asarray(x).sum(-1) * np.asarray(y), shape, x, data)
            return jax.lax.stop_gradient(reward) + jnp.sum(weights)

        return expect(f, dcv.Bernoulli(logits), dcv.RLOO(2), {}, KEY).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))(LOGITS, WEIGHTS[0], data)
    assert np.all(np.isfinite(gradients[0]))
    np.testing.assert_allclose(gradients[1], 3.0)
