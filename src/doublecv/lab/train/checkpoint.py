"""Checkpoints that a crash cannot spoil: a folder with safetensors and JSON, written aside and renamed when whole.

    checkpoint-000002000/state.safetensors      every array of the state, by its path
    checkpoint-000002000/checkpoint.json        step, length of the metrics, what was run, sha256 of the arrays

The one before the last is kept. A folder whose content does not match its JSON is passed over.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as format_tensors

from doublecv.lab.common.errors import InputError

PREFIX = "checkpoint-"
PARTIAL = ".checkpoint-partial"
TENSORS = "state.safetensors"
DESCRIPTION = "checkpoint.json"
KEPT = 2
"""How many checkpoints stay: the last, and one to fall back on."""


class Checkpoint(NamedTuple):
    """What was read.

    Attributes:
        path: the folder that it was read from.
        step: the number of the next step.
        metrics_bytes: the length that the metrics had.
        state: the state.
    """

    path: Path
    step: int
    metrics_bytes: int
    state: Any


class Damaged(ValueError):
    """A checkpoint that is not what was written."""


def save(folder: Path, state: Any, step: int, metrics_bytes: int, identity: Mapping[str, Any]) -> Path:
    """Write a checkpoint into `folder`, whole or not at all, and remove those before the one before it.

    Args:
        folder: the run's folder.
        state: a tree of JAX arrays.
        step: the number of the next step.
        metrics_bytes: the length of the metrics that belong to the state.
        identity: what was run, as JSON; only a run of the same goes on from here.
    """
    arrays = map(np.asarray, jax.tree.leaves(state))
    tensors = format_tensors(dict(zip(_names(state), arrays, strict=True)))
    description = {
        "step": step,
        "metrics_bytes": metrics_bytes,
        "sha256": hashlib.sha256(tensors).hexdigest(),
        "identity": identity,
    }
    partial, final = folder / PARTIAL, folder / f"{PREFIX}{step:09d}"
    _remove(partial)
    try:
        partial.mkdir()
        _write(partial / TENSORS, tensors)
        _write(partial / DESCRIPTION, (json.dumps(description, indent=2) + "\n").encode())
        _sync_folder(partial)
        # One of the same step is either damaged or the same: a rename cannot replace a folder that is not empty.
        _remove(final)
        partial.rename(final)
        _sync_folder(folder)
    except OSError:
        _remove(partial)
        raise
    for old in paths(folder)[KEPT:]:
        _remove(old)
    return final


def paths(folder: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted((path for path in folder.glob(f"{PREFIX}*") if path.is_dir()), reverse=True)


def load_newest(
    folder: Path, like: Any, identity: Mapping[str, Any], damaged: Callable[[str], None]
) -> Checkpoint | None:
    """The newest checkpoint that is intact, or None if there is none at all.

    Args:
        folder: the run's folder.
        like: a tree with the shapes and types of the state.
        identity: what is being run; an `InputError` says what differs.
        damaged: called with a sentence for every checkpoint that is passed over.
    """
    found = paths(folder)
    for path in found:
        try:
            return _load(path, like, identity)
        except Damaged as error:
            damaged(f"{path} is damaged ({error})")
    if found:
        raise InputError(
            f"no checkpoint in {folder} is intact: {', '.join(path.name for path in found)}; "
            f"remove them to begin again from step 0"
        )
    return None


def _load(path: Path, like: Any, identity: Mapping[str, Any]) -> Checkpoint:
    try:
        description = json.loads((path / DESCRIPTION).read_bytes())
        content = (path / TENSORS).read_bytes()
        step, metrics_bytes = int(description["step"]), int(description["metrics_bytes"])
        digest, its_identity = description["sha256"], dict(description["identity"])
    except FileNotFoundError as error:
        raise Damaged(f"{Path(str(error.filename)).name} is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{DESCRIPTION} cannot be read") from error
    for name, wanted in identity.items():
        if (given := its_identity.get(name)) != wanted:
            raise InputError(
                f"{path} is of another run: its {name.replace('_', ' ')} is {_short(given)}, and that of this run "
                f"{_short(wanted)}"
            )
    if (found := hashlib.sha256(content).hexdigest()) != digest:
        raise Damaged(f"{TENSORS} has sha256 {found[:12]}..., expected {str(digest)[:12]}...")
    try:
        tensors = parse_tensors(content)
    except SafetensorError as error:
        raise Damaged(f"{TENSORS} cannot be read: {error}") from error
    return Checkpoint(path, step, metrics_bytes, _restore(like, tensors))


def _restore(like: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    leaves, structure = jax.tree.flatten(like)
    restored = []
    for name, leaf in zip(_names(like), leaves, strict=True):
        array = tensors.get(name)
        if array is None or array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise Damaged(f"{name} must be {leaf.dtype}{list(leaf.shape)}, and is not")
        # A copy that JAX owns: the state is donated.
        restored.append(jnp.array(array, copy=True))
    return jax.tree.unflatten(structure, restored)


def _names(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(tree)]


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}-partial")
    try:
        _write(partial, content)
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Make a rename last; only POSIX can, and needs to."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _short(value: Any) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
