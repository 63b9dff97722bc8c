"""The problem that the site's tables and figures are measured on: a small binary autoencoder of 8 x 8 digits.

It is trained for a moment and then frozen, so that all estimators meet the same f and the same logits.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import doublecv as dcv
from doublecv.diagnostics.exact import support
from doublecv.estimators import make
from doublecv.jax import estimate, expect

LATENTS, HIDDEN, BATCH = 12, 32, 20
IMAGES = jnp.asarray(load_digits().data > 7, jnp.float32)


def dense(key, inputs, outputs):
    """The start of one layer."""
    return jax.random.normal(key, (inputs, outputs)) / inputs**0.5, jnp.zeros(outputs)


def start(key):
    """Two layers on each side."""
    sizes = [(64, HIDDEN), (HIDDEN, LATENTS), (LATENTS, HIDDEN), (HIDDEN, 64)]
    return [dense(k, *size) for k, size in zip(jax.random.split(key, 4), sizes, strict=True)]


def apply(layer, v):
    """One layer."""
    return v @ layer[0] + layer[1]


def features(parameters, y):
    """The encoder's hidden layer."""
    return jnp.tanh(apply(parameters[0], y))


def encode(parameters, y):
    """q(x | y)."""
    return dcv.Bernoulli(logits=apply(parameters[1], features(parameters, y)))


def loss_at(parameters, y, q):
    """f: the negative ELBO as a function of the latent x, with a uniform prior; q's logits are held constant."""

    def f(x):
        logits = apply(parameters[3], jnp.tanh(apply(parameters[2], x)))
        surprise = optax.sigmoid_binary_cross_entropy(logits, y).sum(-1)
        return surprise + q.detach().log_prob(x) + LATENTS * jnp.log(2.0)

    return f


def batch_of(key):
    """Some images."""
    return jax.random.choice(key, IMAGES, (BATCH,), replace=False)


def trained(steps=300):
    """The model after some steps of Adam with RLOO."""
    estimator, optimiser = dcv.RLOO(4), optax.adam(3e-3)

    def loss(parameters, key):
        batch_key, sample_key = jax.random.split(key)
        y = batch_of(batch_key)
        q = encode(parameters, y)
        return expect(loss_at(parameters, y, q), q, estimator, {}, sample_key).mean()

    def step(state, key):
        parameters, moments = state
        updates, moments = optimiser.update(jax.grad(loss)(parameters, key), moments)
        return (optax.apply_updates(parameters, updates), moments), None

    parameters = start(jax.random.key(1))
    keys = jax.random.split(jax.random.key(2), steps)
    return jax.jit(lambda state: jax.lax.scan(step, state, keys)[0][0])((parameters, optimiser.init(parameters)))


def on_batch(estimator, parameters, y):
    """The estimator with what it must be told about the batch."""
    match estimator:
        case dcv.Surrogate():
            directions = min(estimator.directions, LATENTS)
            sizes = {"variables": LATENTS, "features": HIDDEN, "directions": directions}
            return replace(estimator, **sizes, context=features(parameters, y))
        case dcv.Relax():
            key = jax.random.key(3)
            network = {"hidden": dense(key, LATENTS, HIDDEN), "out": dense(key, HIDDEN, 1)}
            return replace(
                estimator,
                network=network,
                apply=lambda network, z: apply(network["out"], jnp.tanh(apply(network["hidden"], z)))[..., 0],
            )
        case dcv.RStar():
            q = encode(parameters, y)
            points, probabilities = support(q)
            exact = jnp.sum(probabilities * loss_at(parameters, y, q)(points), axis=0)
            return replace(estimator, expected_f=lambda q: exact)
    return estimator


def learned(name, samples, parameters, steps=500):
    """The coefficients after some steps on fresh batches: Adam, and running averages where the estimator has them."""
    first = on_batch(make(name, samples=samples), parameters, IMAGES[:BATCH])
    kinds = {part: "averages" if part in first.averaged else "learned" for part in first.coefficients()}
    optimiser = optax.multi_transform({"averages": optax.sgd(0.01), "learned": optax.adam(3e-3)}, kinds)

    def step(state, key):
        coefficients, moments = state
        batch_key, sample_key = jax.random.split(key)
        y = batch_of(batch_key)
        estimator, q = on_batch(first, parameters, y), encode(parameters, y)
        found = estimate(loss_at(parameters, y, q), q, estimator, coefficients, sample_key)
        updates, moments = optimiser.update(found.coefficient_gradient, moments)
        return (optax.apply_updates(coefficients, updates), moments), None

    coefficients = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), first.coefficients())
    keys = jax.random.split(jax.random.key(4), steps)
    return jax.jit(lambda state: jax.lax.scan(step, state, keys)[0][0])((coefficients, optimiser.init(coefficients)))
