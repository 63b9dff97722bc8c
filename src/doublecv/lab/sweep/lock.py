"""One process a folder: a lock that goes with the process that holds it, also when that is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from doublecv.lab.common.errors import InputError

FILE = "lock"


@contextmanager
def locked(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the folder's lock; an `InputError` if another process still holds it after `patience` seconds."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    deadline = time.monotonic() + patience
    with (folder / FILE).open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise InputError(
                        f"another process works in {folder}; wait for it, or name another folder"
                    ) from error
                time.sleep(0.1)
        yield


def is_locked(folder: Path) -> bool:
    """Whether a living process holds the folder's lock."""
    try:
        import fcntl

        with (folder / FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False
