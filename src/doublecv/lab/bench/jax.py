"""Define the workloads of the benchmark in JAX: a gradient, and steps of `doublecv train`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from doublecv.distributions import Bernoulli
from doublecv.estimators import Estimator, label
from doublecv.jax.diagnostics import JaxProblem
from doublecv.lab.bench import problem
from doublecv.lab.bench.problem import STEPS
from doublecv.lab.data import Dataset
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import make_step
from doublecv.lab.vae.likelihoods import bernoulli_log_likelihood
from doublecv.lab.vae.model import Network

IMAGES = 5000
"""The number of random images in the shape of Fashion-MNIST; it does not influence the time of a step."""


def gradient(estimator: Estimator) -> Callable[[], object]:
    """Return a call that computes the gradients in the parameters of the decoder, the logits and the learned state."""
    decoder = Network(problem.GRADIENT_DECODER, jax.random.key(0))
    # Whole numbers, in which f is not differentiated.
    images = jnp.asarray(problem.images(), jnp.uint8)
    context = jax.random.normal(jax.random.key(3), (problem.BATCH, problem.FEATURES))

    def f(x: Any) -> Any:
        return -bernoulli_log_likelihood(decoder(x), images.astype(jnp.float32))

    q = Bernoulli(logits=jnp.asarray(problem.logits()))
    return JaxProblem.make(f, q, jax.random.key(1), context).step(estimator)


def step(estimator: Estimator) -> Callable[[], None]:
    """Return a call that makes `STEPS` training steps of the nonlinear autoencoder, with batches of random images."""
    settings = TrainSettings(
        dataset="fashion-mnist",
        latents=problem.LATENTS,
        batch=problem.BATCH,
        estimator=label(estimator),
        samples=estimator.samples,
    )
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, problem.PIXELS), dtype=np.uint8)
    program = make_step(settings, Dataset("fashion-mnist", 28, 28, pixels, pixels[:1], pixels[:1]))
    state, numbers = program.start(), count(step=STEPS)

    def call() -> None:
        nonlocal state
        state, report = program.chunk(state, next(numbers), STEPS)
        jax.block_until_ready((state, report))  # type: ignore[no-untyped-call]

    return call


def floor(samples: int) -> Callable[[], Any]:
    """Return a call with only the matrix products of `STEPS` steps with RLOO, which returns those of the last step.

    These are the forward pass, the weight gradients and the input gradients of every layer. The input gradients of the
    first layers of encoder and decoder are left out, because no such step uses them.
    """

    def network(widths: tuple[int, ...], rows: int) -> list[tuple[Any, Any, Any]]:
        return [
            (jnp.ones((rows, inputs)), jnp.ones((inputs, outputs)), jnp.ones((rows, outputs)))
            for inputs, outputs in pairwise(widths)
        ]

    networks = [network(problem.STEP_ENCODER, problem.BATCH), network(problem.STEP_DECODER, problem.BATCH * samples)]
    products = multiply(networks)

    def call() -> Any:
        nonlocal products
        products = jax.block_until_ready(multiply_repeatedly(networks, products))  # type: ignore[no-untyped-call]
        return products

    return call


def multiply(networks: Any) -> Any:
    """Return the matrix products of one step, from the inputs, the weights and the cotangents of every layer."""
    return [
        (x @ weights, x.T @ cotangent, cotangent @ weights.T if index else None)
        for layers in networks
        for index, (x, weights, cotangent) in enumerate(layers)
    ]


@partial(jax.jit, donate_argnums=1)
def multiply_repeatedly(networks: Any, products: Any) -> Any:
    """Return the matrix products of `STEPS` steps, which are the same in every step; `products` is donated.

    As in training, a compiled loop writes the results of every step to the same memory. With new memory for every step
    the floor would contain the time that the system needs to provide it.
    """

    def next_step(step: Any, carry: Any) -> Any:
        # Networks that every step passes to the next through a barrier are not constants of the loop; XLA would move
        # the products of constants out of it.
        networks, _ = carry
        _, networks = jax.lax.optimization_barrier((step, networks))  # type: ignore[no-untyped-call]
        return networks, multiply(networks)

    return jax.lax.fori_loop(0, STEPS, next_step, (networks, products))[1]


WORKLOADS = {"gradient": problem.Workload(gradient), "step": problem.Workload(step, floor, STEPS)}
