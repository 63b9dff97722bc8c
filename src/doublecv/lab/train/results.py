"""What a training run gives back, what it tells while it goes on, and the two ways in which it can stop early."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from doublecv.lab.common.errors import InputError
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.vae.model import VAE


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and all that it had done is in its last checkpoint."""


class NotFinite(InputError):
    """A loss or a gradient was infinite or not a number."""


def _nothing(*_: Any) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Watch:
    """What looks on while a run goes its way.

    Attributes:
        progress: called after each chunk with the seed, the number of steps done, the last record, and steps a second.
        notice: called with a sentence that the user should read.
        stop: asked after each chunk whether to save and stop.
    """

    progress: Callable[[int, int, Mapping[str, Any], float], None] = _nothing
    notice: Callable[[str], None] = _nothing
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What one seed came to.

    Attributes:
        settings: what was run.
        seed: the seed.
        records: all records of `metrics.jsonl` that are of this seed.
        model: the trained autoencoder.
        seconds_a_step: of the steps that this call did, without compilation and evaluation; NaN if it did none.
    """

    settings: TrainSettings
    seed: int
    records: Sequence[Mapping[str, Any]]
    model: VAE
    seconds_a_step: float

    @property
    def final(self) -> dict[str, Any]:
        """The last values of all metrics."""
        last: dict[str, Any] = {}
        for record in self.records:
            last |= record
        return {name: value for name, value in last.items() if name not in ("kind", "seed")}

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """The steps at which a metric was recorded, and its values."""
        points = [(record["step"], record[name]) for record in self.records if name in record]
        return [step for step, _ in points], [value for _, value in points]
