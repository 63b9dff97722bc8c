"""Files that a crash cannot spoil and that nobody can redirect, and folders that hold one run each."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import Any

from filelock import FileLock, Timeout

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.records import file_checksum, seal_document

LOCK = "lock"
"""The name of the lock file in a folder."""

CONFIG = "config.json"
"""Written last: a folder that has it holds a complete run."""

PACKAGES = ("doublecv", "jax", "numpy", "optax", "matplotlib")
"""The packages whose versions are written into config.json."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely or not at all; a link at `path` is replaced and not followed."""
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
    """Make renames in a folder durable on POSIX systems; on others a rename is durable without it."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def inside(folder: Path, relative: str) -> Path:
    """Return `folder / relative`, or raise an `InputError` where that, or a symbolic link, leads out of the folder."""
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
def locked(folder: Path, timeout: float = 0.0, name: str = LOCK) -> Iterator[None]:
    """Hold a folder's lock, or raise an `InputError` if another living process holds it after `timeout` seconds."""
    try:
        with FileLock(folder / name, timeout=timeout):
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


def claim(folder: Path, *allowed: str) -> None:
    """Make the folder, or raise an `InputError` unless it can be written to and is empty but for these files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(path.name not in (LOCK, *allowed) for path in folder.iterdir()):
            raise InputError(f"--out {folder} is not empty; name a new folder, or remove this one")
        with TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written to ({error.strerror}); name a new folder") from error


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Claim the folder and hold its lock, so that no other process fills it meanwhile."""
    claim(folder)
    with locked(folder):
        claim(folder)  # again: another process may have filled it in between
        yield


def write_config(folder: Path, command: str, settings: Mapping[str, Any], files: Sequence[str] = ()) -> None:
    """Write the settings of a run of `command`, the versions of packages, and checksums of `files` that have none."""
    config = {
        "command": command,
        "settings": settings,
        "versions": versions(),
        "platform": platform.platform(),
        "files": {name: file_checksum(folder / name) for name in files},
    }
    write_atomically(folder / CONFIG, seal_document(config))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the numbers depend on, and the commit of a checkout."""
    found = {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}
    return found | _commit()


def _commit() -> dict[str, str]:
    """Return the commit of doublecv's source; nothing where it is not a checkout, or there is no git."""
    source = Path(__file__).parents[3]
    try:
        done = subprocess.run(
            ["git", "-C", str(source), "rev-parse", "--show-prefix", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    prefix, _, commit = done.stdout.strip().partition("\n")
    # A package that is installed inside somebody else's checkout has another prefix.
    return {"commit": commit} if done.returncode == 0 and prefix == "src/" else {}
