"""A folder that holds one run and is never written over."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from doublecv.lab.common.errors import InputError

CONFIG = "config.json"
"""Written last: a folder that has it holds a whole run."""

PACKAGES = ("doublecv", "jax", "numpy", "optax", "matplotlib")


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Make the folder, or raise an `InputError` unless it is empty and can be written to."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; name a new folder")
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(
                f"--out {folder} {_what_it_holds(folder, settings)}; name a new folder, or remove this one"
            )
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"--out {folder} cannot be written to ({error.strerror}); name a folder that you may write to"
        ) from error


def _what_it_holds(folder: Path, settings: Mapping[str, Any]) -> str:
    try:
        held = json.loads((folder / CONFIG).read_text())["settings"]
        different = [name for name, value in settings.items() if held.get(name) != value]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "is not empty"
    if not different:
        return "holds this run already"
    first = different[0].replace("_", "-")
    return f"holds another run, with --{first} {_as_arguments(held.get(different[0]))}"


def _as_arguments(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def write_config(folder: Path, command: str, settings: Mapping[str, Any]) -> None:
    """The settings, and the versions of all that had a part in the numbers."""
    config = {
        "command": command,
        "settings": settings,
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "platform": platform.platform(),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
