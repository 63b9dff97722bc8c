"""The problem that the site's tables and figures are measured on: a small binary autoencoder of 8 x 8 digits.

It is trained for a few hundred steps and then frozen, so that all estimators see the same f and the same logits.
"""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import doublecv as dcv
from doublecv.jax import Expectation

LATENTS, HIDDEN, BATCH = 12, 32, 20
IMAGES = jnp.asarray(load_digits().data > 7, jnp.float32)


def dense(key, inputs, outputs):
    """Return the initial weights and biases of one layer."""
    return jax.random.normal(key, (inputs, outputs)) / inputs**0.5, jnp.zeros(outputs)


def start(key):
    """Return two layers on each side."""
    sizes = [(64, HIDDEN), (HIDDEN, LATENTS), (LATENTS, HIDDEN), (HIDDEN, 64)]
    return [dense(k, *size) for k, size in zip(jax.random.split(key, 4), sizes, strict=True)]


def apply(layer, v):
    """Apply one layer."""
    return v @ layer[0] + layer[1]


def features(parameters, y):
    """Return the encoder's hidden layer."""
    return jnp.tanh(apply(parameters[0], y))


def encode(parameters, y):
    """Return q(x | y)."""
    return dcv.Bernoulli(logits=apply(parameters[1], features(parameters, y)))


def loss_at(parameters, y, q):
    """Return f, the negative ELBO as a function of the latent x, with a uniform prior and q's logits held constant."""

    def f(x):
        logits = apply(parameters[3], jnp.tanh(apply(parameters[2], x)))
        surprise = optax.sigmoid_binary_cross_entropy(logits, y).sum(-1)
        return surprise + q.detach().log_prob(x) + LATENTS * jnp.log(2.0)

    return f


def batch_of(key):
    """Return some images."""
    return jax.random.choice(key, IMAGES, (BATCH,), replace=False)


def trained(steps=300):
    """Return the model after some steps of Adam with RLOO."""
    expectation, optimizer = Expectation(dcv.RLOO(samples=4)), optax.adam(3e-3)
    parameters = start(jax.random.key(1))
    learned = expectation.init(encode(parameters, IMAGES[:BATCH])).learned

    def loss(parameters, key):
        batch_key, sample_key = jax.random.split(key)
        y = batch_of(batch_key)
        q = encode(parameters, y)
        return expectation(loss_at(parameters, y, q), q, learned, sample_key).mean()

    def step(state, key):
        parameters, moments = state
        updates, moments = optimizer.update(jax.grad(loss)(parameters, key), moments)
        return (optax.apply_updates(parameters, updates), moments), None

    keys = jax.random.split(jax.random.key(2), steps)
    return jax.jit(lambda state: jax.lax.scan(step, state, keys)[0][0])((parameters, optimizer.init(parameters)))
