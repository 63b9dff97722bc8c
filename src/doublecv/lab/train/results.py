"""Define what a training run returns and reports: metrics.jsonl, results, and a table.

metrics.jsonl has one JSON object per line, in the order of the steps, with `kind`, `step`, the number of steps done,
`seed`, and a `checksum` (`doublecv.lab.common.records`):

- "train", after each chunk: `elbo` (`bound` for the importance weighted bound), the mean over the steps of the chunk;
  `encoder_variance` and `logits_variance` (`optimizers.Tracker`); scalar coefficients, such as `alpha`;
- "evaluation": `train_elbo` and `validation_elbo` over the complete sets, and for the importance weighted bound with S
  samples `train_bound_S` and `validation_bound_S`;
- "final": `test_elbo`, and the multi-sample bounds.

The file contains no times, so that two runs with the same seed write the same bytes. When a run is resumed, the file is
cut back to the length that it had at the checkpoint.

This module imports neither JAX nor the training program.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import locked
from doublecv.lab.common.records import LineReader, seal_line
from doublecv.lab.common.tables import Table, number, significant, words
from doublecv.lab.train.settings import TrainSettings

if TYPE_CHECKING:
    from doublecv.lab.vae.model import VAE

METRICS = "metrics.jsonl"
LOCK = ".metrics.lock"


class Interrupted(KeyboardInterrupt):
    """Signal that a run was asked to stop and saved its state in a checkpoint."""


class NotFinite(InputError):
    """Signal that a loss or a gradient was infinite or not a number."""


@dataclass(frozen=True)
class Callbacks:
    """Hold functions that are called during training.

    `progress` gets the seed, the number of steps done, the last record, and steps per second after each chunk; `notice`
    a sentence that the user should read; `stop` returns after each chunk whether to save and stop.
    """

    progress: Callable[[int, int, Mapping[str, Any], float], None] = lambda *_: None
    notice: Callable[[str], None] = lambda _: None
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
        records = [record for record in self.records if name in record]
        return [record["step"] for record in records], [record[name] for record in records]


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
    if settings.objective == "iwae":
        title += f", trained on the bound with {settings.bound_samples_train} samples"
    caption = "nats per image; variance of the encoder's gradient"
    return Table.of("train", f"{title}, {settings.steps} steps", caption, rows)


class Metrics:
    """Keep the records of a run in memory and, if there is a folder, in its file, of which `length` bytes are kept."""

    def __init__(self, folder: Path | None, length: int | None = 0) -> None:
        self.records: list[dict[str, Any]] = []
        self._file: BinaryIO | None = None
        self._checksum, self._sealed = 0, True
        if folder is None:
            return
        self._open = ExitStack()
        with self._open as opened:
            path = folder / METRICS
            opened.enter_context(locked(folder, name=LOCK))
            file = opened.enter_context(path.open("r+b" if path.exists() else "w+b"))
            size = os.fstat(file.fileno()).st_size
            length = size if length is None else length
            if size < length:
                raise InputError(f"{path} has {size} bytes, the checkpoint says {length}: it was cut off")
            if length:
                reader = LineReader(path, length)
                self.records = list(reader)
                self._checksum, self._sealed = reader.checksum, reader.sealed
            file.seek(length)
            file.truncate()
            self._file, self._open = file, opened.pop_all()

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add records."""
        for record in records:
            line, self._checksum = seal_line(record, self._checksum, self._sealed)
            if self._file is not None:
                self._file.write(line)
            self.records.append(dict(record))
        if self._file is not None:
            self._file.flush()

    def of_seed(self, seed: int) -> list[dict[str, Any]]:
        """Return the records of one seed."""
        return [record for record in self.records if record["seed"] == seed]

    def sync(self) -> int:
        """Wait until all records are on disk, and return their length in bytes."""
        if self._file is None:
            return 0
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file; the records stay in memory."""
        if self._file is not None:
            self._open.close()


def has_end(folder: Path) -> bool:
    """Return whether the last line of a run's metrics is that of a complete run; without it the run is resumed."""
    path = folder / METRICS
    last = deque(LineReader(path), maxlen=1) if path.exists() else ()
    return any(record["kind"] == "final" for record in last)
