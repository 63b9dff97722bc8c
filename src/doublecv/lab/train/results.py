"""Define what a training run returns and reports, and show results as a table and as a figure.

This module imports neither JAX nor the training program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.style import appearance
from doublecv.lab.train.settings import TrainSettings

if TYPE_CHECKING:
    from rich.table import Table

    from doublecv.lab.vae.model import VAE

PANELS = {"encoder_variance": "variance of the encoder's gradient", "elbo": "training ELBO"}
"""The metrics that `write_overview` draws, with the labels of their axes."""


class Interrupted(KeyboardInterrupt):
    """Signal that a run was asked to stop and saved its state in a checkpoint."""


class NotFinite(InputError):
    """Signal that a loss or a gradient was infinite or not a number."""


def _ignore(*_: Any) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Callbacks:
    """Hold the functions that are called during training.

    Attributes:
        progress: called after each chunk with the seed, the number of steps done, the last record, and steps per
            second.
        notice: called with a sentence that the user should read.
        stop: called after each chunk; the run saves and stops if it returns True.
    """

    progress: Callable[[int, int, Mapping[str, Any], float], None] = _ignore
    notice: Callable[[str], None] = _ignore
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class TrainResult:
    """Hold the result of one seed.

    Attributes:
        settings: the settings of the run.
        seed: the seed.
        records: the records of `metrics.jsonl` that belong to this seed.
        model: the trained autoencoder.
        seconds_per_step: the time per step without compilation and evaluation; NaN if no step was made.
    """

    settings: TrainSettings
    seed: int
    records: Sequence[Mapping[str, Any]]
    model: VAE
    seconds_per_step: float

    @property
    def final(self) -> dict[str, Any]:
        """The last value of every metric."""
        last: dict[str, Any] = {}
        for record in self.records:
            last |= record
        return {name: value for name, value in last.items() if name not in ("kind", "seed")}

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return the steps at which a metric was recorded, and its values."""
        points = [(record["step"], record[name]) for record in self.records if name in record]
        return [step for step, _ in points], [value for _, value in points]


def table(results: Sequence[TrainResult]) -> Table:
    """Return a table for the terminal, one row per result; only the estimator and the seed may differ."""
    from rich import box
    from rich.table import Table

    settings = results[0].settings
    shown = Table(
        title=f"{settings.dataset}, {settings.likelihood} likelihood, {settings.network}, K = {settings.samples}, "
        f"{settings.steps} steps",
        caption="nats per image; variance of the encoder's gradient",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    columns = {"train\nELBO": "train_elbo", "test\nELBO": "test_elbo"}
    columns |= {
        f"bound\nS = {samples}": f"test_bound_{samples}" for samples in (settings.samples, settings.bound_samples)
    }
    shown.add_column("estimator", no_wrap=True)
    for heading in ("seed", *columns, "variance", "alpha", "ms per\nstep"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        final = result.final
        shown.add_row(
            result.settings.estimator,
            str(result.seed),
            *(f"{final[name]:.2f}" for name in columns.values()),
            f"{final['encoder_variance']:.3g}",
            f"{final['alpha']:.3f}" if "alpha" in final else "-",
            "-" if math.isnan(result.seconds_per_step) else f"{1000 * result.seconds_per_step:.2f}",
        )
    return shown


def write_overview(results: Sequence[TrainResult], path: Path) -> None:
    """Write a figure with the gradient's variance and the ELBO over the steps, one line per result."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    for axes, (metric, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for result in results:
            steps, values = result.curve(metric)
            style = appearance(result.settings.estimator)
            axes.plot(steps, values, color=style.colour, linestyle=style.line, label=style.label)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        if metric == "encoder_variance":
            axes.set_yscale("log")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    settings = results[0].settings
    figure.suptitle(f"{settings.dataset}, {settings.network} VAE, K = {settings.samples}")
    figure.savefig(path, dpi=150)
