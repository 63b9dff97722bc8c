"""Define the workloads of the benchmark in JAX: a gradient, a training step, and the floor of its matrix products."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise, repeat
from math import sqrt
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from doublecv.distributions import Bernoulli
from doublecv.estimators import Estimator, label
from doublecv.jax import Expectation
from doublecv.lab.bench import problem
from doublecv.lab.bench.problem import Workloads
from doublecv.lab.data import Dataset
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import make_step

if TYPE_CHECKING:
    from jaxtyping import Array, Float

STEPS = 10
"""The number of steps per timed call: training runs them in compiled chunks, and so does the benchmark."""

IMAGES = 5000
"""The number of random images in the shape of Fashion-MNIST; it does not influence the time of a step."""


def workloads() -> Workloads:
    """Return the gradient of an expectation, and steps of `doublecv train`."""
    return {"gradient": gradient, "step": step}


def gradient(estimator: Estimator) -> Callable[[], None]:
    """Return a call that computes the gradient in the parameters of the decoder, the logits and the learned state."""
    y, logits = jnp.asarray(problem.images()), jnp.asarray(problem.logits())
    context = jax.random.normal(jax.random.key(3), (problem.BATCH, problem.FEATURES))
    expectation = Expectation(estimator)
    decoder = _layers(problem.GRADIENT_DECODER, jax.random.key(0))

    @jax.jit
    def gradients(decoder: Any, logits: Any, learned: Any, key: Any) -> Any:
        def loss(decoder: Any, logits: Any, learned: Any) -> Any:
            def f(x: Any) -> Any:
                return -_log_likelihood(decoder, x, y)

            return expectation(f, Bernoulli(logits=logits), learned, key, context=context).mean()

        return jax.grad(loss, argnums=(0, 1, 2))(decoder, logits, learned)

    state = expectation.init(Bernoulli(logits=logits), context=context)
    arguments = decoder, logits, state.learned, jax.random.key(1)
    return lambda: jax.block_until_ready(gradients(*arguments))  # type: ignore[no-untyped-call]


def step(estimator: Estimator) -> Callable[[], None]:
    """Return a call that makes `STEPS` training steps of the nonlinear autoencoder, with batches of random images."""
    settings = TrainSettings(dataset="fashion-mnist", estimator=label(estimator), samples=estimator.samples)
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, problem.PIXELS), dtype=np.uint8)
    program = make_step(settings, Dataset("fashion-mnist", 28, 28, pixels, pixels[:1], pixels[:1]))
    state, numbers = program.start(), count(step=STEPS)

    def call() -> None:
        nonlocal state
        state, report = program.chunk(state, next(numbers), STEPS)
        jax.block_until_ready((state, report))  # type: ignore[no-untyped-call]

    return call


def floor(samples: int) -> Callable[[], None]:
    """Return a call with only the matrix products of `STEPS` steps with RLOO.

    These are the forward pass, the weight gradients and the input gradients of every layer. The input gradients of the
    first layers of encoder and decoder are left out, because no such step uses them.
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


def _layers(sizes: tuple[int, ...], key: Any) -> list[tuple[Any, Any]]:
    """Return layers with Glorot uniform weights and zero biases."""

    def layer(inputs: int, outputs: int, key: Any) -> tuple[Any, Any]:
        limit = sqrt(6 / (inputs + outputs))
        return jax.random.uniform(key, (inputs, outputs), minval=-limit, maxval=limit), jnp.zeros(outputs)

    keys = jax.random.split(key, len(sizes) - 1)
    return [layer(*shape, key) for shape, key in zip(pairwise(sizes), keys, strict=True)]


def _log_likelihood(decoder: list[tuple[Any, Any]], x: Any, y: Float[Array, "batch pixels"]) -> Any:
    hidden = x
    for weights, bias in decoder[:-1]:
        hidden = jax.nn.leaky_relu(hidden @ weights + bias, problem.NEGATIVE_SLOPE)
    weights, bias = decoder[-1]
    q = Bernoulli(logits=hidden @ weights + bias)
    return q.log_prob(jnp.broadcast_to(y, (*x.shape[:-1], problem.PIXELS)))
