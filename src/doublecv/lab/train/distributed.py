"""The processes of one run, on one host or on several: all of them read, the first alone writes, and all stop together.

What one process does and another does not leaves the others waiting for it, so what may differ is agreed upon first.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils

from doublecv.lab.common.errors import InputError


@contextmanager
def joined(coordinator: str | None, processes: int, process: int) -> Iterator[None]:
    """This process as one of several that train together, from before JAX starts; without a coordinator it is alone.

    Args:
        coordinator: HOST:PORT, where process 0 can be reached.
        processes: how many there are.
        process: the number of this one, from 0 on.
    """
    _check(coordinator, processes, process)
    if coordinator is None:
        yield
        return
    try:
        jax.distributed.initialize(coordinator, processes, process)
        yield
    except JaxRuntimeError as error:
        _leave_alone()
        first_line = str(error).partition("\n")[0]
        raise InputError(
            f"process {process} of {processes} lost the others, or did not find them: {first_line}"
        ) from error
    except Exception:
        _leave_alone()
        raise


def _check(coordinator: str | None, processes: int, process: int) -> None:
    if processes < 1:
        raise InputError(f"--processes must be at least 1, got {processes}")
    if not 0 <= process < processes:
        raise InputError(f"--process must be from 0 to {processes - 1}, below --processes; got {process}")
    if coordinator is None:
        if processes > 1:
            raise InputError(f"--processes {processes} needs --coordinator HOST:PORT, where process 0 can be reached")
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"--coordinator must be HOST:PORT, where process 0 can be reached; got {coordinator}")


def _leave_alone() -> None:
    """Let this process end without the others: as it ends JAX waits for them, and they wait for its part of a sum."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)

    atexit.register(leave)


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return jax.process_index() == 0


def asked_of_any(asked: bool) -> bool:
    """Whether any process was asked; each must call this at the same place."""
    if jax.process_count() == 1:
        return asked
    return bool(multihost_utils.process_allgather(np.array(asked)).any())


def check_same(facts: Mapping[str, Any]) -> None:
    """Raise an `InputError`, in every process, unless the facts, as JSON, are the same in all of them."""
    if jax.process_count() == 1:
        return
    digests = np.array([zlib.crc32(json.dumps(fact).encode()) for fact in facts.values()], np.uint32)
    different = (np.asarray(multihost_utils.process_allgather(digests)) != digests).any(axis=0)
    if different.any():
        name = list(facts)[int(different.argmax())].replace("_", " ")
        raise InputError(
            f"the processes of a run must have the same arguments and see the same folder and data; "
            f"their {name} is not the same"
        )
