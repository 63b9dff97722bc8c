"""Write metrics.jsonl: one JSON object per line, in the order of the steps, cut back to the checkpoint on resuming.

Every line has `kind`, `step` (the number of steps done), `seed`, and a `checksum` of all lines up to it
(`doublecv.lab.common.records`):

- "train", after each chunk: `elbo`, the mean over the steps since the line before; `encoder_variance` and
  `logits_variance` (see `variance_tracker`); the estimator's scalar coefficients, such as `alpha`;
- "evaluation": `train_elbo` and `validation_elbo` over the whole sets; `variance`, by name, of compared estimators;
- "final": `test_elbo`, and the bounds with K and with 100 samples.

It holds no time of day and no speed: two runs of the same seed write the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.records import LineReader, seal_line

FILE = "metrics.jsonl"


class Metrics:
    """The records of a run, in memory and, where there is a folder, in its file.

    Args:
        folder: the run's folder; None for memory alone.
        length: the bytes of the file that hold; what comes after them is cut off.
    """

    def __init__(self, folder: Path | None, length: int = 0) -> None:
        self.records: list[dict[str, Any]] = []
        self._file = None
        self._checksum, self._sealed = 0, True
        if folder is None:
            return
        path = folder / FILE
        self._file = path.open("r+b" if path.exists() else "w+b")
        try:
            _lock(self._file, folder)
            if (size := os.fstat(self._file.fileno()).st_size) < length:
                raise InputError(f"{path} has {size} bytes, and the checkpoint says {length}: it was cut off")
            if length:
                reader = LineReader(path, length)
                self.records = list(reader)
                self._checksum, self._sealed = reader.checksum, reader.sealed
            self._file.seek(length)
            self._file.truncate()
        except BaseException:
            self._file.close()
            raise

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add records."""
        for record in records:
            line, checksum = seal_line(record, self._checksum, self._sealed)
            self._checksum = checksum
            if self._file is not None:
                self._file.write(line)
            self.records.append(dict(record))
        if self._file is not None:
            self._file.flush()

    def sync(self) -> int:
        """Bring all records to the disk, and tell how many bytes they are."""
        if self._file is None:
            return 0
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file; the records stay."""
        if self._file is not None:
            self._file.close()


def _lock(file: Any, folder: Path) -> None:
    """Keep a second process out of the folder; the lock goes with the process, also when it is killed."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(f"another process is training in {folder}; wait for it, or name another folder") from error
