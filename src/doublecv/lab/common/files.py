"""Files that a crash cannot spoil and that nobody can redirect: atomic writes, locks, and paths that stay inside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from doublecv.lab.common.errors import InputError

LOCK = "lock"
"""The name of the lock file in a folder."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely or not at all.

    A link at `path` is replaced, and one at the partial file removed: neither is followed.
    """
    partial = path.with_name(f".{path.name}-partial")
    try:
        partial.unlink(missing_ok=True)
        write_new(partial, content)
        partial.replace(path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet, and wait until it is on disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable; only POSIX can, and only POSIX needs to."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def inside(folder: Path, relative: str) -> Path:
    """Return `folder / relative`, or raise an `InputError` where that leads out of the folder.

    The path may be neither absolute nor contain `..`, and no part of it below the folder may be a symbolic link.
    """
    parts = PurePosixPath(relative)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\\" in relative or "\0" in relative:
        raise InputError(f"{relative!r} does not stay inside {folder}; remove it, or name another folder")
    path = folder
    for part in parts.parts:
        path = path / part
        if path.is_symlink():
            raise InputError(f"{path} is a symbolic link, which is not followed; remove it, or name another folder")
    return path


@contextmanager
def locked(folder: Path, timeout: float = 0.0) -> Iterator[None]:
    """Hold a folder's lock, which the operating system releases when the process ends, however it ends.

    Raises an `InputError` if another process still holds it after `timeout` seconds.
    """
    try:
        with FileLock(folder / LOCK, timeout=timeout):
            yield
    except Timeout as error:
        raise InputError(f"another process works in {folder}; wait for it, or name another folder") from error


def is_locked(folder: Path) -> bool:
    """Return whether a living process holds the folder's lock."""
    path = folder / LOCK
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False
