"""The mean of an estimator with relaxed points, exactly: integrals over the uniform noise in place of draws.

Given the hard samples x such an estimate is a sum, g = B(u) + A(x, v), of the gradient of the control variate at z(u)
and of a rest in which u counts only through x; and both are sums over the samples of functions of the noise of each.
So E g = E_u B + sum_x q(x) E_v A(x, v): integrals of functions that are analytic in the logistic or Gumbel noise, which
the trapezoidal rule takes to nearly all digits. `full_mean` assumes nothing of the kind, and integrates over all the
noise together.
"""

from __future__ import annotations

import dataclasses
from itertools import product
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import doublecv as dcv
from doublecv.exact import support
from doublecv.jax import Expectation

CHUNK = 2**14
"""How many nodes are computed at once."""


def given_noise(noise):
    """Let the front-end draw the given noise."""

    def uniform(key, shape, dtype):
        assert shape == noise.shape, (shape, noise.shape)
        return jnp.asarray(noise, dtype)

    return mock.patch.object(jax.random, "uniform", uniform)


def estimate_at(estimator, f, q, learned, noise, **options):
    """Return the explicit estimate, with noise in place of a key."""
    with given_noise(noise):
        return Expectation(estimator).estimate(f, q, learned, jax.random.key(0), **options)


def value_at(estimator, f, q, learned, noise, **options):
    """Return the differentiable mean, with noise in place of a key."""
    with given_noise(noise):
        return Expectation(estimator)(f, q, learned, jax.random.key(0), **options)


def quadrature_mean(estimator, f, q, learned, step, reach=25.0):
    """E g for no batch axes."""
    nodes, weights = _grid(*_trapezoid(q, step, reach), q.event_shape)
    anywhere = np.full((estimator.samples, *q.event_shape), 0.5)
    parts = _parts(estimator, f, q, learned)

    total = _mean_of_sum(lambda u: parts(u, anywhere)[0], anywhere, nodes, weights)
    values, probabilities = support(type(q)(logits=np.asarray(q.logits)))
    for chosen in product(range(len(values)), repeat=estimator.samples):
        u = np.stack([_noise_of(q, values[k]) for k in chosen])
        mean = _mean_of_sum(lambda v, u=u: parts(u, v)[1], anywhere, nodes, weights)
        total += np.prod(probabilities[list(chosen)]) * mean
    return total


def full_mean(estimator, f, q, learned, order):
    """E g for Bernoulli and no batch axes, by Gauss-Legendre over u, split at mu, and over v."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    nodes, weights = (nodes + 1) / 2, weights / 2
    one_dimensional = []
    for mean in np.tile(np.asarray(q.mean), estimator.samples):
        u = np.concatenate([mean * nodes, mean + (1 - mean) * nodes])
        one_dimensional.append((u, np.concatenate([mean * weights, (1 - mean) * weights])))
    one_dimensional += [(nodes, weights)] * len(one_dimensional)
    noise = np.array(list(product(*(points for points, _ in one_dimensional))))
    weight = np.prod(list(product(*(weights for _, weights in one_dimensional))), axis=-1)
    parts = _parts(estimator, f, q, learned)
    noise = noise.reshape(len(noise), 2, estimator.samples, *q.event_shape)
    return _integral(lambda noise: sum(parts(noise[:, 0], noise[:, 1])), noise, weight)


def _parts(estimator, f, q, learned):
    """The two parts of the estimate at nodes of the noise, B(u) and A(x, v)."""
    assert q.batch_shape == ()
    samples = estimator.samples
    repeated = q.broadcast_to((CHUNK,))

    @jax.jit
    def parts(noise):
        evaluation = estimate_at(estimator, f, repeated, learned, noise).evaluation
        without = dataclasses.replace(evaluation, dcontrol=evaluation.dcontrol.at[:samples].set(0))
        whole, rest = (estimator.apply(repeated, each, learned).gradient for each in (evaluation, without))
        return whole - rest, rest

    def at_nodes(u, v):
        shape = (CHUNK, samples, *q.event_shape)
        return parts(np.moveaxis(np.stack([np.broadcast_to(noise, shape) for noise in (u, v)]), 1, 2))

    return at_nodes


def _mean_of_sum(function, anywhere, nodes, weights):
    """The mean of a sum over the samples of functions of the noise of each, the noise of the others being anywhere."""
    there = np.asarray(function(anywhere))[0]
    total = there
    for sample in range(len(anywhere)):

        def of_sample(noise, sample=sample):
            moved = np.repeat(anywhere[None], len(noise), axis=0)
            moved[:, sample] = noise
            return function(moved)

        total = total + _integral(of_sample, nodes, weights) - there
    return total


def _integral(values, nodes, weights):
    """The weighted sum of `values` at the nodes, in chunks of one size so that one compiled program does."""
    missing = -len(nodes) % CHUNK
    nodes = np.concatenate([nodes, np.full((missing, *nodes.shape[1:]), 0.5)])
    weights = np.concatenate([weights, np.zeros(missing)])
    return sum(
        np.tensordot(weights[start : start + CHUNK], np.asarray(values(nodes[start : start + CHUNK])), axes=1)
        for start in range(0, len(nodes), CHUNK)
    )


def _trapezoid(q, step, reach):
    """Nodes u and weights of the trapezoidal rule in the logistic or Gumbel noise."""
    if isinstance(q, dcv.Bernoulli):
        s = np.arange(-reach, reach + step / 2, step)
        return 1 / (1 + np.exp(-s)), step / (2 + np.exp(s) + np.exp(-s))
    g = np.arange(-4.0, reach, step)
    return np.exp(-np.exp(-g)), step * np.exp(-g - np.exp(-g))


def _grid(nodes, weights, event_shape):
    variables = int(np.prod(event_shape))
    points = np.stack(np.meshgrid(*[nodes] * variables, indexing="ij"), axis=-1).reshape(-1, *event_shape)
    weight = np.prod(np.stack(np.meshgrid(*[weights] * variables, indexing="ij"), axis=-1), axis=-1).reshape(-1)
    return points, weight


def _noise_of(q, x):
    """Noise u of which x is the hard sample."""
    mean = np.asarray(q.mean)
    if isinstance(q, dcv.Bernoulli):
        return np.where(x == 1, mean / 2, (1 + mean) / 2)
    return np.where(x == 1, 1 - 1e-6, 1e-3)
