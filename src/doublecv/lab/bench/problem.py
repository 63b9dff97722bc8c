"""Define the problem on which both libraries are timed: binary images, and a VAE of dense layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from doublecv.estimators import Estimator

if TYPE_CHECKING:
    from jaxtyping import Float


class Workload(NamedTuple):
    """Describe what is timed.

    Attributes:
        make: a function from an estimator to the call that is timed.
        floor: a function from K to a call with only the matrix products, if there is one.
        steps: the number of steps per call.
    """

    make: Callable[[Estimator], Callable[[], object]]
    floor: Callable[[int], Callable[[], object]] | None = None
    steps: int = 1


BATCH, PIXELS, LATENTS, HIDDEN = 100, 784, 200, 200

GRADIENT_DECODER = (LATENTS, HIDDEN, PIXELS)
"""The widths of the decoder in the "gradient" workload."""

STEP_ENCODER, STEP_DECODER = (PIXELS, HIDDEN, HIDDEN, LATENTS), (LATENTS, HIDDEN, HIDDEN, PIXELS)
"""The widths of the VAE in the "step" workload: the nonlinear network of the paper."""

FEATURES = HIDDEN + LATENTS
"""The number of features of the context: the last hidden layer of the encoder and the logits."""

NEGATIVE_SLOPE = 0.3
"""The slope of LeakyReLU below 0."""

LEARNING_RATE = 1e-3

STEPS = 10
"""The number of training steps per timed call in JAX, where training runs them in compiled chunks."""


def images() -> Float[np.ndarray, "batch pixels"]:
    """Return a batch of random binary images."""
    return (np.random.default_rng(0).random((BATCH, PIXELS)) < 0.5).astype(np.float32)


def logits() -> Float[np.ndarray, "batch latents"]:
    """Return logits like those of an encoder early in training."""
    return np.random.default_rng(1).normal(size=(BATCH, LATENTS)).astype(np.float32)
