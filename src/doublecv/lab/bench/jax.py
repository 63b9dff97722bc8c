"""The workloads of the benchmark in JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise, repeat
from math import sqrt
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from doublecv.distributions import Bernoulli
from doublecv.estimators import Estimator, Relax, Surrogate
from doublecv.jax import expect
from doublecv.lab.bench import problem
from doublecv.lab.bench.problem import Workloads
from doublecv.lab.data import Dataset
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import make_step
from doublecv.lab.vae.relax_network import RelaxNetwork, relax_with_input

if TYPE_CHECKING:
    from jaxtyping import Array, Float


STEPS = 10
"""Steps of one timed call: training runs them in compiled chunks, and so they are timed."""

IMAGES = 5000
"""Random images in the shape of Fashion-MNIST: fewer than there are, which a step does not notice."""


def workloads() -> Workloads:
    """Return the gradient of an expectation, and steps of `doublecv train`."""
    return {"gradient": gradient, "step": step}


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


def step(estimator: Estimator) -> Callable[[], None]:
    """`STEPS` steps of the nonlinear autoencoder on batches that are gathered and binarised in the same program."""
    settings = TrainSettings(dataset="fashion-mnist", estimator=estimator.name, samples=estimator.samples)
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, problem.PIXELS), dtype=np.uint8)
    program = make_step(settings, Dataset("fashion-mnist", 28, 28, pixels, pixels[:1], pixels[:1]))
    state, numbers = program.start(), count(step=STEPS)

    def call() -> None:
        nonlocal state
        state, report = program.chunk(state, next(numbers), STEPS)
        jax.block_until_ready((state, report))  # type: ignore[no-untyped-call]

    return call


def floor(samples: int) -> Callable[[], None]:
    """The matrix products of `STEPS` steps with RLOO: forward, weight and input gradients of every layer.

    The input gradients of the two first layers are left out, since nothing in such a step uses them.
    """
    products = [
        (_random(rows, inputs), _random(inputs, outputs), _random(rows, outputs), index > 0)
        for sizes, rows in (
            (problem.STEP_ENCODER, problem.BATCH),
            (problem.STEP_DECODER, problem.BATCH * samples),
        )
        for index, (inputs, outputs) in enumerate(pairwise(sizes))
    ]
    input_gradients = [wanted for *_, wanted in products]

    @jax.jit
    def multiply(layers: list[tuple[Any, Any, Any]]) -> Any:
        return [
            (x @ weights, x.T @ cotangent, cotangent @ weights.T if wanted else None)
            for (x, weights, cotangent), wanted in zip(layers, input_gradients, strict=True)
        ]

    layers = [(x, weights, cotangent) for x, weights, cotangent, _ in products]
    return lambda: jax.block_until_ready([*map(multiply, repeat(layers, STEPS))])  # type: ignore[no-untyped-call]


def _random(rows: int, columns: int) -> Float[Array, "rows columns"]:
    return jax.random.normal(jax.random.key(rows * columns), (rows, columns))
