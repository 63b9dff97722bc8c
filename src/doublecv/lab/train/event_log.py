"""The metrics as TensorBoard events, for those who want to watch them there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"


class EventLog:
    """A writer of the records' numbers; it writes nothing without a folder.

    Args:
        folder: the run's folder, or None.
        step: where the run goes on: TensorBoard then drops what an earlier part of it wrote after this step.
    """

    def __init__(self, folder: Path | None, step: int) -> None:
        self._writer: Any = None
        if folder is None:
            return
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

        self._writer = SummaryWriter(str(folder / FOLDER), purge_step=step + 1)

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write every number of the records."""
        if self._writer is None:
            return
        for record in records:
            for name, value in _numbers(record):
                self._writer.add_scalar(f"seed-{record['seed']}/{name}", value, record["step"])
        self._writer.flush()

    def close(self) -> None:
        """Close the writer."""
        if self._writer is not None:
            self._writer.close()


def _numbers(record: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in value.items())
        elif name not in ("kind", "step", "seed"):
            yield name, value
