"""Share a run among several devices: each has its part of every batch, and everything else is replicated.

The K samples of an image stay on its device, so that an estimator's formula needs nothing from another one; the
devices exchange only sums over the batch: gradients, the loss and the averages. Every random number is a function of
its position in the complete batch, so the numbers are those of one device, up to the rounding of these sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from doublecv.lab.common.errors import InputError

Tree = TypeVar("Tree")

BATCH = "batch"
"""The one axis of the mesh."""

SHARDED = PartitionSpec(BATCH)  # type: ignore[no-untyped-call]
REPLICATED = PartitionSpec()  # type: ignore[no-untyped-call]


class Devices(NamedTuple):
    """The devices of a run: those of all processes along the batch, or None for one device, which JAX chooses."""

    mesh: Mesh | None = None

    @property
    def sharding(self) -> NamedSharding | None:
        """The sharding of a replicated array."""
        return None if self.mesh is None else NamedSharding(self.mesh, REPLICATED)

    def compile(self, function: Callable[..., Any], donate_argnums: tuple[int, ...] | int = ()) -> Callable[..., Any]:
        """Compile a function that may use `shard_batch` and `replicated`; its results are replicated."""
        mesh = self.mesh
        if mesh is None:
            return jax.jit(function, donate_argnums=donate_argnums)

        def on_mesh(*arguments: Any) -> Any:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return function(*arguments)

        return jax.jit(on_mesh, donate_argnums=donate_argnums, out_shardings=self.sharding)

    def replicate(self, tree: Tree) -> Tree:
        """Copy arrays that every process has to every device."""
        copied: Tree = tree if self.mesh is None else jax.device_put(tree, self.sharding)
        return copied

    def local(self, tree: Tree) -> Tree:
        """Return replicated arrays as those of this process's first device."""
        if self.mesh is None:
            return tree
        local: Tree = jax.tree.map(lambda array: array.addressable_data(0), tree)
        return local


ONE = Devices()
"""One device."""


def is_sharded() -> bool:
    """Return whether a program is being compiled for several devices."""
    return BATCH in jax.sharding.get_abstract_mesh().axis_names


def shard_batch(array: Tree) -> Tree:
    """Split the first axis, the batch, over the devices that the program is compiled for."""
    return _constrained(array, SHARDED)


def replicated(array: Tree) -> Tree:
    """Replicate on all devices (cheaper to recompute than to communicate)."""
    return _constrained(array, REPLICATED)


def _constrained(array: Tree, spec: PartitionSpec) -> Tree:
    if not is_sharded():
        return array
    constrained: Tree = jax.lax.with_sharding_constraint(array, spec)  # type: ignore[no-untyped-call]
    return constrained


def request_cpu_devices(count: int) -> None:
    """Ask for `count` virtual devices on a CPU; call it before JAX starts."""
    if count > 1:
        try:
            jax.config.update("jax_num_cpu_devices", count)  # type: ignore[no-untyped-call]
        except RuntimeError:
            return  # JAX has started: `devices_for` counts what there is


def devices_for(count: int) -> Devices:
    """Return the first `count` devices of every process."""
    processes = jax.process_count()
    if count * processes == 1:
        return ONE
    found: list[jax.Device] = []
    for process in range(processes):
        own = [device for device in jax.devices() if device.process_index == process]
        if len(own) < count:
            owner = "" if processes == 1 else f" of process {process}"
            raise InputError(
                f"--devices must be at most {len(own)}, the {jax.default_backend()} devices{owner}; got {count}"
            )
        found += own[:count]
    return Devices(Mesh(np.array(found), (BATCH,), axis_types=(AxisType.Auto,)))
