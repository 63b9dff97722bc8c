"""The workloads of the benchmark in JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from doublecv.distributions import Bernoulli
from doublecv.estimators import Estimator, Relax, Surrogate
from doublecv.jax import expect
from doublecv.lab.bench import problem
from doublecv.lab.bench import training as bench_training
from doublecv.lab.bench.problem import Workloads
from doublecv.lab.vae.relax_network import RelaxNetwork, relax_with_input

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def workloads() -> Workloads:
    """The gradient of the expectation alone, and a step of `doublecv train`."""
    return {"gradient": gradient, "step": bench_training.step}


def gradient(estimator: Estimator) -> Callable[[], None]:
    """The gradient in the decoder's parameters, the logits and the coefficients."""
    y = jnp.asarray(problem.images())
    estimator = _complete(estimator, y)
    decoder = _layers(problem.GRADIENT_DECODER, jax.random.key(0))

    @jax.jit
    def gradients(decoder: Any, logits: Any, coefficients: Any, key: Any) -> Any:
        def loss(decoder: Any, logits: Any, coefficients: Any) -> Any:
            q = Bernoulli(logits=logits)
            return expect(lambda x: -_log_likelihood(decoder, x, y), q, estimator, coefficients, key).mean()

        return jax.grad(loss, argnums=(0, 1, 2))(decoder, logits, coefficients)

    arguments = decoder, jnp.asarray(problem.logits()), _coefficients(estimator), jax.random.key(1)
    return lambda: jax.block_until_ready(gradients(*arguments))  # type: ignore[no-untyped-call]


def _complete(estimator: Estimator, y: Float[Array, "batch pixels"]) -> Estimator:
    if isinstance(estimator, Surrogate):
        context = jax.random.normal(jax.random.key(3), (problem.BATCH, problem.FEATURES))
        return replace(estimator, variables=problem.LATENTS, features=problem.FEATURES, context=context)
    if not isinstance(estimator, Relax):
        return estimator
    network = RelaxNetwork(problem.PIXELS, problem.LATENTS, jax.random.key(2))
    return relax_with_input(network, y, estimator.samples)


def _coefficients(estimator: Estimator) -> Any:
    return jax.tree.map(lambda start: jnp.asarray(start, jnp.float32), estimator.coefficients())


def _layers(sizes: tuple[int, ...], key: Any) -> list[tuple[Any, Any]]:
    """Glorot uniform weights and zero biases."""

    def layer(inputs: int, outputs: int, key: Any) -> tuple[Any, Any]:
        limit = sqrt(6 / (inputs + outputs))
        return jax.random.uniform(key, (inputs, outputs), minval=-limit, maxval=limit), jnp.zeros(outputs)

    keys = jax.random.split(key, len(sizes) - 1)
    return [layer(*shape, key) for shape, key in zip(pairwise(sizes), keys, strict=True)]


def _apply(layers: list[tuple[Any, Any]], x: Any) -> Any:
    for weights, bias in layers[:-1]:
        x = jax.nn.leaky_relu(x @ weights + bias, problem.NEGATIVE_SLOPE)
    weights, bias = layers[-1]
    return x @ weights + bias


def _log_likelihood(decoder: list[tuple[Any, Any]], x: Any, y: Float[Array, "batch pixels"]) -> Any:
    return Bernoulli(logits=_apply(decoder, x)).log_prob(jnp.broadcast_to(y, (*x.shape[:-1], problem.PIXELS)))
