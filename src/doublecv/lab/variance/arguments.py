"""The arguments of `doublecv variance`. No JAX here: the command line's help reads this."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class VarianceArguments:
    """Measure the variance of estimators at the parameters of trained models.

    Example: doublecv variance runs/double-cv --samples 2 4 --out variance
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN"), tyro.conf.Positional]
    """Folders of training runs; the newest checkpoint of each is taken."""
    out: Path
    """A folder for the numbers (variance.json) and the tables (variance.md)."""
    estimators: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ()
    """Names of registered estimators; all but r-star if none is given."""
    samples: tuple[int, ...] = (2, 3, 4)
    """The numbers of samples K."""
    draws: int = 256
    """Estimates from which each variance is computed, and as many for the best linear coefficients."""
    fit_steps: int = 2000
    """Steps in which other coefficients are learned on the frozen model."""
    data_dir: Path | None = None
    """Where to look for the data first."""
