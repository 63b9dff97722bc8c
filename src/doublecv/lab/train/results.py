"""Define what a training run returns and reports, and show results as a table.

This module imports neither JAX nor the training program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.tables import Table, number, significant, words
from doublecv.lab.train.settings import TrainSettings

if TYPE_CHECKING:
    from doublecv.lab.vae.model import VAE


class Interrupted(KeyboardInterrupt):
    """Signal that a run was asked to stop and saved its state in a checkpoint."""


class NotFinite(InputError):
    """Signal that a loss or a gradient was infinite or not a number."""


def _ignore(*_: Any) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Callbacks:
    """Hold the functions that are called during training.

    `progress` is called after each chunk with the seed, the number of steps done, the last record, and steps per
    second; `notice` with a sentence that the user should read; `stop` after each chunk, to save and stop if it is True.
    """

    progress: Callable[[int, int, Mapping[str, Any], float], None] = _ignore
    notice: Callable[[str], None] = _ignore
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class TrainResult:
    """Hold the trained model of one seed and its records of `metrics.jsonl`.

    `seconds_per_step` is without compilation and evaluation; NaN if no step was made.
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
    settings = results[0].settings
    metrics = {"train\nELBO": "train_elbo", "test\nELBO": "test_elbo"}
    counts = (settings.evaluation_samples, settings.bound_samples)
    metrics |= {f"bound\nS = {count}": f"test_bound_{count}" for count in counts}
    rows = [
        {
            "estimator": words(one.settings.estimator),
            "seed": words(str(one.seed)),
            **{heading: number(one.final[key]) for heading, key in metrics.items()},
            "variance": significant(one.final["encoder_variance"]),
            "alpha": number(one.final.get("alpha"), 3),
            "ms per\nstep": number(1000 * one.seconds_per_step),
        }
        for one in results
    ]
    title = f"{settings.dataset}, {settings.likelihood} likelihood, {settings.network}, K = {settings.samples}"
    title += (
        "" if settings.objective == "elbo" else f", trained on the bound with {settings.bound_samples_train} samples"
    )
    caption = "nats per image; variance of the encoder's gradient"
    return Table.of("train", f"{title}, {settings.steps} steps", caption, rows)
