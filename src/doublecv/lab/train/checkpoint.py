"""Write checkpoints that a crash cannot damage, and read the newest intact one.

A checkpoint is a folder that is written under another name and renamed when it is complete::

    checkpoint-000002000/state.safetensors      every array of the state, by its path in the tree
    checkpoint-000002000/checkpoint.json        step, length of the metrics, identity of the run, checksums

The last two are kept, and one that does not match its checksums is skipped. Orbax does the same, and for many hosts,
but does not promise the same bytes for the same state, which the tests of interrupted runs compare.
"""

from __future__ import annotations

import hashlib
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
from doublecv.lab.common.files import sync_folder, write_new
from doublecv.lab.common.records import read_fields, seal_document

PREFIX = "checkpoint-"
PARTIAL = ".checkpoint-partial"
TENSORS = "state.safetensors"
DESCRIPTION = "checkpoint.json"
FIELDS = ["identity", "metrics_bytes", "state_sha256", "step"]
KEPT = 2
"""The number of checkpoints that are kept: the last one, and one to fall back on."""


class Checkpoint(NamedTuple):
    """Hold a checkpoint that was read: its folder, the next step, the length of the metrics, and the state."""

    path: Path
    step: int
    metrics_bytes: int
    state: Any


class Damaged(ValueError):
    """Signal that a checkpoint is not what was written."""


def save(folder: Path, state: Any, step: int, metrics_bytes: int, identity: Mapping[str, Any]) -> Path:
    """Write a checkpoint completely or not at all, and remove all but the last two.

    `step` is the next step, `metrics_bytes` the length of the metrics that belong to the state, and `identity` what is
    being run, as JSON: only the same run can be resumed from this checkpoint.
    """
    arrays = map(np.asarray, jax.tree.leaves(state))
    tensors = format_tensors(dict(zip(_names(state), arrays, strict=True)))
    description = {
        "step": step,
        "metrics_bytes": metrics_bytes,
        "state_sha256": hashlib.sha256(tensors).hexdigest(),
        "identity": identity,
    }
    partial, final = folder / PARTIAL, path_of(folder, step)
    remove(partial)
    try:
        partial.mkdir()
        write_new(partial / TENSORS, tensors)
        write_new(partial / DESCRIPTION, seal_document(description))
        sync_folder(partial)
        # A checkpoint of the same step is damaged or equal, and a rename cannot replace a folder that is not empty.
        remove(final)
        partial.rename(final)
        sync_folder(folder)
    except OSError:
        remove(partial)
        raise
    for old in paths(folder)[KEPT:]:
        remove(old)
    return final


def path_of(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after some steps."""
    return folder / f"{PREFIX}{step:09d}"


def paths(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, the newest first."""
    found = [path for path in folder.glob(f"{PREFIX}[0-9]*") if path.is_dir()]
    return sorted(found, key=lambda path: (len(path.name), path.name), reverse=True)


def load_newest(
    folder: Path, like: Any, identity: Mapping[str, Any], damaged: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest intact checkpoint of the run with this identity, or None if there is none at all.

    `like` is a tree with the shapes and types of the state. `damaged` is called with a sentence for every checkpoint
    that is skipped.
    """
    found = paths(folder)
    for path in found:
        try:
            return _load(path, like, identity)
        except Damaged as error:
            damaged(f"{path} is damaged ({error})")
    if found:
        names = ", ".join(path.name for path in found)
        raise InputError(f"no checkpoint in {folder} is intact: {names}; remove them to start again from step 0")
    return None


def _load(path: Path, like: Any, identity: Mapping[str, Any]) -> Checkpoint:
    try:
        description = read_fields(path / DESCRIPTION, sealed=True)
        content = (path / TENSORS).read_bytes()
    except FileNotFoundError as error:
        raise Damaged(f"{Path(error.filename).name} is missing") from error
    except InputError as error:
        raise Damaged(str(error)) from error
    if sorted(description) != FIELDS:
        raise Damaged(f"{DESCRIPTION} has the fields {', '.join(description)}, expected {', '.join(FIELDS)}")
    if path != path_of(path.parent, description["step"]):
        raise Damaged(f"it was renamed: {DESCRIPTION} says step {description['step']}")
    for name, wanted in identity.items():
        if (given := description["identity"].get(name)) != wanted:
            name = name.replace("_", " ")
            raise InputError(f"{path} belongs to a different run: {name} is {given} in the checkpoint, {wanted} here")
    if (found := hashlib.sha256(content).hexdigest()) != description["state_sha256"]:
        raise Damaged(f"{TENSORS} has sha256 {found[:12]}..., expected {description['state_sha256'][:12]}...")
    try:
        tensors = parse_tensors(content)
    except SafetensorError as error:
        raise Damaged(f"{TENSORS} cannot be read: {error}") from error
    return Checkpoint(path, description["step"], description["metrics_bytes"], _restore(like, tensors))


def _restore(like: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    leaves, structure = jax.tree.flatten(like)
    restored = []
    for name, leaf in zip(_names(like), leaves, strict=True):
        array = tensors.get(name)
        if array is None or array.shape != leaf.shape or array.dtype != leaf.dtype:
            found = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise Damaged(f"{name} must be {leaf.dtype}{list(leaf.shape)}, but is {found}")
        # JAX must own the memory, because the state is donated.
        restored.append(jnp.array(array, copy=True))
    return jax.tree.unflatten(structure, restored)


def _names(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(tree)]


def remove(folder: Path) -> None:
    """Remove a checkpoint if it exists."""
    if folder.exists():
        shutil.rmtree(folder)
