"""Several devices for one run: each has its part of every batch, and all else is whole on every one of them.

The K samples of an image stay together on its device, so an estimator's formula needs nothing from another one; what
the devices exchange are the sums over the batch: gradients, the loss and the averages. Every random number is a
function of its place in the whole batch, so the numbers are those of one device, up to the rounding of these sums.
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

SPLIT = PartitionSpec(BATCH)  # type: ignore[no-untyped-call]
WHOLE = PartitionSpec()  # type: ignore[no-untyped-call]


class Devices(NamedTuple):
    """Where the arrays of a run are.

    Attributes:
        mesh: the devices of all processes along the batch; None for one device, where JAX decides.
    """

    mesh: Mesh | None = None

    @property
    def whole(self) -> NamedSharding | None:
        """The sharding of an array that is whole on every device."""
        return None if self.mesh is None else NamedSharding(self.mesh, WHOLE)

    def compile(self, function: Callable[..., Any], donate_argnums: tuple[int, ...] | int = ()) -> Callable[..., Any]:
        """The function compiled for these devices: it may `split` what it computes, and its results are whole."""
        mesh = self.mesh
        if mesh is None:
            return jax.jit(function, donate_argnums=donate_argnums)

        def on_mesh(*arguments: Any) -> Any:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return function(*arguments)

        return jax.jit(on_mesh, donate_argnums=donate_argnums, out_shardings=self.whole)

    def place(self, tree: Tree) -> Tree:
        """Arrays that every process has, put whole on every device."""
        placed: Tree = tree if self.mesh is None else jax.device_put(tree, self.whole)
        return placed

    def here(self, tree: Tree) -> Tree:
        """Arrays that are whole on every device, as those of this process's first device."""
        if self.mesh is None:
            return tree
        local: Tree = jax.tree.map(lambda array: array.addressable_data(0), tree)
        return local


ONE = Devices()
"""One device, and nothing to share."""


def is_split() -> bool:
    """Whether what is being compiled is for several devices."""
    return BATCH in jax.sharding.get_abstract_mesh().axis_names


def split(array: Tree) -> Tree:
    """The array with its first axis, the batch, split over the devices for which it is being compiled."""
    return _constrained(array, SPLIT)


def whole(array: Tree) -> Tree:
    """The array whole on every device: what each makes for itself sooner than they could exchange it."""
    return _constrained(array, WHOLE)


def _constrained(array: Tree, spec: PartitionSpec) -> Tree:
    if not is_split():
        return array
    constrained: Tree = jax.lax.with_sharding_constraint(array, spec)  # type: ignore[no-untyped-call]
    return constrained


def provide(count: int) -> None:
    """Ask for `count` devices before JAX starts: a CPU then has so many virtual ones."""
    if count < 1:
        raise InputError(f"--devices must be at least 1, got {count}")
    if count > 1:
        try:
            jax.config.update("jax_num_cpu_devices", count)  # type: ignore[no-untyped-call]
        except RuntimeError:
            return  # JAX has started: `devices_for` counts what there is


def devices_for(batch: int, count: int) -> Devices:
    """The first `count` devices of every process, for batches of that size."""
    if count < 1:
        raise InputError(f"--devices must be at least 1, got {count}")
    processes = jax.process_count()
    if count * processes == 1:
        return ONE
    found: list[jax.Device] = []
    for process in range(processes):
        its_own = [device for device in jax.devices() if device.process_index == process]
        if len(its_own) < count:
            whose = "" if processes == 1 else f" of process {process}"
            raise InputError(
                f"--devices must be at most {len(its_own)}, the {jax.default_backend()} devices{whose}; got {count}"
            )
        found += its_own[:count]
    if batch % len(found):
        each = "" if processes == 1 else f", --devices {count} in each of {processes} processes"
        raise InputError(f"--batch must be a multiple of {len(found)}, the number of devices{each}; got {batch}")
    return Devices(Mesh(np.array(found), (BATCH,), axis_types=(AxisType.Auto,)))
