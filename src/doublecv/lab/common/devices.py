"""Share a run among several devices: each has its part of every batch, and everything else is replicated.

The K samples of an image stay on its device, so that an estimator's formula needs nothing from another one; the
devices exchange only sums over the batch: gradients, the loss and the averages. Every random number is a function of
its position in the complete batch, so the numbers are those of one device, up to the rounding of these sums. The
devices may belong to several processes, on one host or on several: all read, the first writes, all stop together.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Timer
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from doublecv.lab.common.errors import InputError

Tree = TypeVar("Tree")

SECONDS_TO_CONNECT = 60
"""How long a process waits for the others at the start."""

BATCH = "batch"
"""The one axis of the mesh."""

SHARDED = PartitionSpec(BATCH)  # type: ignore[no-untyped-call]
REPLICATED = PartitionSpec()  # type: ignore[no-untyped-call]


class Devices(NamedTuple):
    """The devices of a run: those of all processes along the batch, or None for one device, which JAX chooses."""

    mesh: Mesh | None = None

    def compile(self, function: Callable[..., Any], donate_argnums: tuple[int, ...] | int = ()) -> Callable[..., Any]:
        """Compile a function that may use `shard_batch` and `replicated`; its results are replicated."""
        mesh = self.mesh
        if mesh is None:
            return jax.jit(function, donate_argnums=donate_argnums)

        def on_mesh(*arguments: Any) -> Any:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return function(*arguments)

        return jax.jit(on_mesh, donate_argnums=donate_argnums, out_shardings=NamedSharding(mesh, REPLICATED))

    def replicate(self, tree: Any) -> Any:
        """Copy arrays that every process has to every device."""
        return tree if self.mesh is None else jax.device_put(tree, NamedSharding(self.mesh, REPLICATED))

    def local(self, tree: Any) -> Any:
        """Return replicated arrays as those of this process's first device."""
        return tree if self.mesh is None else jax.tree.map(lambda array: array.addressable_data(0), tree)


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
        with suppress(RuntimeError):  # JAX has started: `devices_for` counts what there is
            jax.config.update("jax_num_cpu_devices", count)  # type: ignore[no-untyped-call]


def devices_for(count: int) -> Devices:
    """Return the first `count` devices of every process."""
    processes = jax.process_count()
    if count * processes == 1:
        return ONE
    found: list[jax.Device] = []
    for process in range(processes):
        own = [device for device in jax.devices() if device.process_index == process]
        if len(own) < count:
            owner = f"{jax.default_backend()} devices{'' if processes == 1 else f' of process {process}'}"
            raise InputError(f"--devices must be at most {len(own)}, the {owner}; got {count}")
        found += own[:count]
    return Devices(Mesh(np.array(found), (BATCH,), axis_types=(AxisType.Auto,)))


@contextmanager
def distributed_session(coordinator: str | None, processes: int, process: int) -> Iterator[None]:
    """Join the other processes of the run before JAX starts; do nothing without a coordinator."""
    if coordinator is None:
        yield
        return
    name = f"process {process} of {processes}"
    late = f"did not find the others at {coordinator} within {SECONDS_TO_CONNECT} s; start them, or correct the address"
    # JAX itself would abort with a trace of the machine's stack.
    timer = Timer(SECONDS_TO_CONNECT, _leave, [f"doublecv train: {name} {late}\n"])
    timer.start()
    try:
        jax.distributed.initialize(coordinator, processes, process)
        timer.cancel()
        yield
    except Exception as error:
        # JAX's shutdown barrier would deadlock with processes that wait in a collective.
        atexit.register(_leave)
        if isinstance(error, JaxRuntimeError):
            reason = str(error).partition("\n")[0]
            raise InputError(f"{name} lost the others: {reason}") from error
        raise
    finally:
        timer.cancel()


def _leave(message: str = "") -> None:
    sys.stderr.write(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2)


def is_first() -> bool:
    """Return whether this is the process that writes and prints."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Return whether `flag` is set on any process. Collective: every process must call it."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def check_same(facts: Mapping[str, Any]) -> None:
    """Raise an `InputError` in every process unless the facts are equal in all: otherwise some would wait forever."""
    if jax.process_count() == 1:
        return
    digests = np.array([zlib.crc32(json.dumps(fact).encode()) for fact in facts.values()], np.uint32)
    different = (np.asarray(multihost_utils.process_allgather(digests)) != digests).any(axis=0)
    if different.any():
        name = list(facts)[int(different.argmax())].replace("_", " ")
        raise InputError(f"the processes must have the same arguments, folder and data, but their {name} differs")
