"""metrics.jsonl: one JSON object a line, in the order of the steps, cut back to the checkpoint when a run goes on.

Every line has `kind`, `step` (how many steps were done) and `seed`:

- "train", after each chunk: `elbo`, the mean over the steps since the line before; `encoder_variance` and
  `logits_variance` (see `variance_tracker`); the estimator's scalar coefficients, such as `alpha`;
- "evaluation": `train_elbo` and `validation_elbo` over the whole sets; `variance`, by name, of compared estimators;
- "final": `test_elbo`, and the bounds with K and with 100 samples.

No time of day and no speed is in it: two runs of the same seed write the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from doublecv.lab.common.errors import InputError

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
        if folder is None:
            return
        path = folder / FILE
        self._file = path.open("r+b" if path.exists() else "w+b")
        try:
            _lock(self._file, folder)
            content = self._file.read(length)
            if len(content) < length:
                raise InputError(f"{path} has {len(content)} bytes, and the checkpoint says {length}: it was cut off")
            self.records = [json.loads(line) for line in content.splitlines()]
            self._file.truncate(length)
        except BaseException:
            self._file.close()
            raise

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add records."""
        new = [dict(record) for record in records]
        if self._file is not None:
            self._file.write("".join(f"{json.dumps(record)}\n" for record in new).encode())
            self._file.flush()
        self.records += new

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
