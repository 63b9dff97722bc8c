"""Define the settings, the problem and the rows of the benchmark, and show the rows as a table.

This module imports neither JAX nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import numpy as np
from msgspec import Meta

from doublecv.estimators import Estimator
from doublecv.lab.common.options import Option, ProgramSettings
from doublecv.lab.common.tables import Table, number, words
from doublecv.lab.train.settings import trainable

if TYPE_CHECKING:
    from jaxtyping import Float

BASELINE = "rloo"
"""The estimator that the others are compared with."""

FLOOR = "floor"
"""The name of the row with the matrix products only."""

BATCH, PIXELS, LATENTS, HIDDEN = 100, 784, 200, 200

GRADIENT_DECODER = (LATENTS, HIDDEN, PIXELS)
"""The widths of the decoder in the "gradient" workload."""

STEP_ENCODER, STEP_DECODER = (PIXELS, HIDDEN, HIDDEN, LATENTS), (LATENTS, HIDDEN, HIDDEN, PIXELS)
"""The widths of the VAE in the "step" workload: the nonlinear network of the paper."""

FEATURES = HIDDEN
"""The number of features of the context: the last hidden layer of the encoder."""

NEGATIVE_SLOPE = 0.3
"""The slope of LeakyReLU below 0."""

LEARNING_RATE = 1e-3

Positive: TypeAlias = Annotated[float, Meta(gt=0)]

STEPS = 10
"""The number of training steps per timed call in JAX, where training runs them in compiled chunks."""


@dataclass(frozen=True)
class BenchSettings(ProgramSettings):
    """Time a gradient and a training step of every estimator, on a VAE with 200 binary latents and 784 pixels.

    Example: doublecv bench --estimators double-cv disarm --samples 2
    """

    torch: bool = False
    """Time PyTorch, not JAX."""
    harm: bool = False
    """Measure the variance relative to RLOO along short training runs of many small problems, instead of times."""
    estimators: Annotated[tuple[str, ...], Option(metavar="NAME", names=trainable, what="estimator")] = ()
    """Names of registered estimators; if none is given, all. RLOO is always timed."""
    samples: Annotated[tuple[int, ...], Option(minimum=1, maximum=1000)] = (2, 4)
    """The numbers of samples K."""
    rounds: Annotated[int, Option(minimum=1, maximum=100_000)] = 7
    """The number of rounds; medians over the rounds are reported."""
    calls: Annotated[int, Option(minimum=1, maximum=100_000)] = 10
    """The number of calls of each estimator per round, interleaved; the fastest is the time of the round."""
    threads: Annotated[int | None, Option(minimum=1, maximum=1024)] = None
    """The number of threads of PyTorch; if not given, PyTorch decides."""
    out: Annotated[Path | None, Option(metavar="FILE")] = None
    """A JSON file for the times of all rounds."""


class Workload(NamedTuple):
    """Make the call that is timed, of so many steps, and, if there is one, that with only the matrix products."""

    make: Callable[[Estimator], Callable[[], object]]
    floor: Callable[[int], Callable[[], object]] | None = None
    steps: int = 1


def images() -> Float[np.ndarray, "batch pixels"]:
    """Return a batch of random binary images."""
    return (np.random.default_rng(0).random((BATCH, PIXELS)) < 0.5).astype(np.float32)


def logits() -> Float[np.ndarray, "batch latents"]:
    """Return logits like those of an encoder early in training."""
    return np.random.default_rng(1).normal(size=(BATCH, LATENTS)).astype(np.float32)


@dataclass(frozen=True)
class Row:
    """Hold one row of the table: the gradient of the expectation, or a complete training step.

    `baseline_samples` is the K of RLOO, which the row is relative to, `samples` the estimator's own: 1 for REBAR and
    RELAX, as in the paper. Times and ratios are medians over the rounds, a ratio of times in the same round. Of the
    matrix products only, the estimator is "floor".
    """

    workload: str
    baseline_samples: int
    estimator: str
    samples: int
    evaluations: int
    milliseconds: Positive
    ratio: Positive
    floor_ratio: float | None
    rounds: tuple[Positive, ...]


def table(rows: list[Row], library: str) -> Table:
    """Return the rows as a table for the terminal."""
    shown = [
        {
            "workload": words(row.workload),
            "K": words(str(row.samples)),
            "estimator": words(row.estimator),
            "evals\nof f": number(row.evaluations or None, 0),
            "ms": number(row.milliseconds),
            "/ RLOO": number(row.ratio),
            "/ floor": number(row.floor_ratio),
        }
        for row in rows
    ]
    caption = (
        "medians over rounds; gradient: of the expectation; step: a complete training step; "
        "floor: only the matrix products of a step"
    )
    return Table.of("bench", f"milliseconds in {library}", caption, shown)
