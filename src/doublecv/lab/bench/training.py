"""A step of `doublecv train`, and the floor under it: the time of its matrix products alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise, repeat
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from doublecv.estimators import Estimator
from doublecv.lab.bench import problem
from doublecv.lab.data import Dataset
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import make_step

if TYPE_CHECKING:
    from jaxtyping import Array, Float

STEPS = 10
"""Steps of one timed call: training runs them in compiled chunks, and so they are timed."""

IMAGES = 5000
"""Random images in the shape of Fashion-MNIST: fewer than there are, which a step does not notice."""


def step(estimator: Estimator) -> Callable[[], None]:
    """`STEPS` steps of the nonlinear autoencoder on batches that are gathered and binarised in the same program."""
    settings = TrainSettings(data="fashion-mnist", estimator=estimator.name, samples=estimator.samples)
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
