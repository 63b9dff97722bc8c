"""The mean of an estimator with relaxed points, exactly: integrals over the uniform noise in place of draws.

Given the hard sample x such an estimate is a sum, g = B(u) + A(x, v), of the gradient of the control variate at z(u)
and of a rest in which u counts only through x. So E g = E_u B + sum_x q(x) E_v A(x, v): integrals of functions that are
analytic in the logistic or Gumbel noise, which the trapezoidal rule takes to nearly all digits. `full_mean` assumes
nothing of the kind, and integrates over u and v together.
"""

from __future__ import annotations

from itertools import product
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import doublecv as dcv
from doublecv.diagnostics.exact import support
from doublecv.jax import estimate

CHUNK = 2**14
"""How many nodes are computed at once."""


def given_noise(noise):
    """Let the front-end draw the given noise."""

    def uniform(key, shape, dtype):
        assert shape == noise.shape, (shape, noise.shape)
        return jnp.asarray(noise, dtype)

    return mock.patch.object(jax.random, "uniform", uniform)


def estimate_at(estimator, f, q, coefficients, noise, **options):
    """`estimate`, with noise in place of a key."""
    with given_noise(noise):
        return estimate(f, q, estimator, coefficients, jax.random.key(0), **options)


def quadrature_mean(estimator, f, q, coefficients, step, reach=25.0):
    """E g for one sample and no batch axes."""
    nodes, weights = _grid(*_trapezoid(q, step, reach), q.event_shape)
    anywhere = np.full(q.event_shape, 0.5)
    parts = _parts(estimator, f, q, coefficients)

    total = _integral(lambda u: parts(u, anywhere)[0], nodes, weights)
    for x, probability in zip(*support(type(q)(logits=np.asarray(q.logits))), strict=True):
        u = _noise_of(q, x)
        total += probability * _integral(lambda v, u=u: parts(u, v)[1], nodes, weights)
    return total


def full_mean(estimator, f, q, coefficients, order):
    """E g for one sample of Bernoulli and no batch axes, by Gauss-Legendre over u, split at mu, and over v."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    nodes, weights = (nodes + 1) / 2, weights / 2
    one_dimensional = []
    for mean in np.asarray(q.mean):
        u = np.concatenate([mean * nodes, mean + (1 - mean) * nodes])
        one_dimensional.append((u, np.concatenate([mean * weights, (1 - mean) * weights])))
    one_dimensional += [(nodes, weights)] * len(one_dimensional)
    noise = np.array(list(product(*(points for points, _ in one_dimensional))))
    weight = np.prod(list(product(*(weights for _, weights in one_dimensional))), axis=-1)
    parts = _parts(estimator, f, q, coefficients)
    variables = q.event_shape[0]
    return _integral(lambda noise: sum(parts(noise[:, :variables], noise[:, variables:])), noise, weight)


def _parts(estimator, f, q, coefficients):
    """The two parts of the estimate at nodes of the noise, B(u) and A(x, v)."""
    assert estimator.samples == 1
    assert q.batch_shape == ()
    repeated = q.broadcast_to((CHUNK,))

    @jax.jit
    def parts(noise):
        result = estimate_at(estimator, f, repeated, coefficients, noise)
        first = result.evaluation.dcontrol[0]
        return first, result.gradient - first

    return lambda u, v: parts(np.stack([np.broadcast_to(w, repeated.logits.shape) for w in (u, v)])[:, None])


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
