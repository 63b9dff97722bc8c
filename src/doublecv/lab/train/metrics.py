"""Write metrics.jsonl, one JSON object per line in the order of the steps.

Every line has `kind`, `step` (the number of steps done), `seed`, and a `checksum` of all lines up to it
(`doublecv.lab.common.records`):

- "train", after each chunk: `elbo` (`bound` for the importance weighted bound), the mean over the steps since the
  previous line; `encoder_variance` and `logits_variance` (see `optimizers.Tracker`); the estimator's scalar
  coefficients, such as `alpha`;
- "evaluation": `train_elbo` and `validation_elbo` over the complete sets, and for the importance weighted bound with S
  samples `train_bound_S` and `validation_bound_S`;
- "final": `test_elbo`, and the multi-sample bounds.

The file contains no times, so that two runs with the same seed write the same bytes. When a run is resumed, the file is
cut back to the length that it had at the checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.records import LineReader, seal_line

FILE = "metrics.jsonl"
LOCK = ".metrics.lock"


class Metrics:
    """Keep the records of a run in memory and, if there is a folder, in its file.

    Args:
        folder: the folder of the run; None to keep the records in memory only.
        length: the number of bytes of the file to keep; the rest is cut off. None keeps all.
    """

    def __init__(self, folder: Path | None, length: int | None = 0) -> None:
        self.records: list[dict[str, Any]] = []
        self._file = None
        self._checksum, self._sealed = 0, True
        if folder is None:
            return
        path = folder / FILE
        self._lock = FileLock(folder / LOCK, timeout=0)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise InputError(f"another process is training in {folder}; wait for it, or name another folder") from error
        self._file = path.open("r+b" if path.exists() else "w+b")
        try:
            size = os.fstat(self._file.fileno()).st_size
            length = size if length is None else length
            if size < length:
                raise InputError(f"{path} has {size} bytes, the checkpoint says {length}: it was cut off")
            if length:
                reader = LineReader(path, length)
                self.records = list(reader)
                self._checksum, self._sealed = reader.checksum, reader.sealed
            self._file.seek(length)
            self._file.truncate()
        except BaseException:
            self.close()
            raise

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
            self._file.close()
            self._lock.release()


def has_end(folder: Path) -> bool:
    """Return whether the last line of a run's metrics is that of a complete run; without it the run is resumed."""
    kind = None
    for record in LineReader(folder / FILE) if (folder / FILE).exists() else ():
        kind = record["kind"]
    return kind == "final"
