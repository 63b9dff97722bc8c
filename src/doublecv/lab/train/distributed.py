"""Run one training in several processes, on one host or on several: all read, the first writes, all stop together.

A process that does what another does not do leaves the other waiting in a collective, so the processes compare what may
differ before they start.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils

from doublecv.lab.common.errors import InputError
from doublecv.lab.train.settings import TrainSettings

SECONDS_TO_CONNECT = 60
"""How long a process waits for the others at the start."""


@contextmanager
def distributed_session(settings: TrainSettings) -> Iterator[None]:
    """Join the other processes of the run before JAX starts; do nothing without a coordinator."""
    if settings.coordinator is None:
        yield
        return
    process, processes = settings.process, settings.processes
    if process > 0:
        _wait_for(settings.coordinator)
    try:
        with _time_limit(f"process {process} of {processes} did not find the others at {settings.coordinator}"):
            jax.distributed.initialize(settings.coordinator, processes, process)
        yield
    except JaxRuntimeError as error:
        _exit_without_barrier()
        first_line = str(error).partition("\n")[0]
        raise InputError(
            f"process {process} of {processes} lost the others, or did not find them: {first_line}"
        ) from error
    except Exception:
        _exit_without_barrier()
        raise


def _wait_for(coordinator: str) -> None:
    """Wait until somebody listens at the address; JAX itself ends the program if nobody does."""
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + SECONDS_TO_CONNECT
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise InputError(
                    f"--coordinator {coordinator} did not answer within {SECONDS_TO_CONNECT} s ({error}); "
                    "start process 0 there, or correct the address"
                ) from error
        time.sleep(0.2)


@contextmanager
def _time_limit(failure: str) -> Iterator[None]:
    """Exit with a sentence if the body takes too long; JAX itself would abort with a trace of the machine's stack."""

    def leave() -> None:
        sys.stderr.write(
            f"doublecv train: {failure} within {SECONDS_TO_CONNECT} s; start them, or correct the address\n"
        )
        sys.stderr.flush()
        os._exit(2)

    timer = Timer(SECONDS_TO_CONNECT, leave)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _exit_without_barrier() -> None:
    """Exit without JAX's shutdown barrier, which would deadlock with processes that wait in a collective."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)

    atexit.register(leave)


def is_first() -> bool:
    """Return whether this is the process that writes and prints."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Return whether `flag` is set on any process. Collective: every process must call it."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def check_same(facts: Mapping[str, Any]) -> None:
    """Raise an `InputError` in every process unless the facts, as JSON, are equal in all of them."""
    if jax.process_count() == 1:
        return
    digests = np.array([zlib.crc32(json.dumps(fact).encode()) for fact in facts.values()], np.uint32)
    different = (np.asarray(multihost_utils.process_allgather(digests)) != digests).any(axis=0)
    if different.any():
        name = list(facts)[int(different.argmax())].replace("_", " ")
        raise InputError(
            f"the processes of a run must have the same arguments, folder and data, but their {name} differs"
        )
