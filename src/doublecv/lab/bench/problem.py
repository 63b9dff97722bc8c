"""The problem that both libraries are timed on: binary images, and a VAE of dense layers for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from doublecv.estimators import Estimator

if TYPE_CHECKING:
    from jaxtyping import Float

Workloads: TypeAlias = Mapping[str, Callable[[Estimator], Callable[[], None]]]
"""For each workload by name: from an estimator to the call that is timed."""

StepsACall: TypeAlias = Mapping[str, int]
"""For a workload by name: how many steps one call makes, where that is not 1."""

Floors: TypeAlias = Mapping[str, Callable[[int], Callable[[], None]]]
"""For a workload by name: from K to a call that does its matrix products and nothing else."""

BATCH, PIXELS, LATENTS, HIDDEN = 100, 784, 200, 200

GRADIENT_DECODER = (LATENTS, HIDDEN, PIXELS)
"""The layers of the decoder whose expectation is differentiated by itself."""

STEP_ENCODER, STEP_DECODER = (PIXELS, HIDDEN, HIDDEN, LATENTS), (LATENTS, HIDDEN, HIDDEN, PIXELS)
"""The layers of the VAE that is trained: the paper's nonlinear one."""

FEATURES = HIDDEN + LATENTS
"""The context of a learned surrogate: the encoder's last hidden layer and the logits."""

NEGATIVE_SLOPE = 0.3
"""The slope of LeakyReLU below 0."""

LEARNING_RATE = 1e-3
RELAX_HIDDEN = 137
"""The units of the network that RELAX learns."""


def images() -> Float[np.ndarray, "batch pixels"]:
    """A batch of random binary images."""
    return (np.random.default_rng(0).random((BATCH, PIXELS)) < 0.5).astype(np.float32)


def logits() -> Float[np.ndarray, "batch latents"]:
    """Logits as an encoder has them early in training."""
    return np.random.default_rng(1).normal(size=(BATCH, LATENTS)).astype(np.float32)
