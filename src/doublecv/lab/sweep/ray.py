"""Workers on a Ray cluster: one task per run, which another node resumes from its last checkpoint when a worker dies.

The sweep's folder must be the same path on all nodes, and doublecv be installed on them. JAX is imported only in the
tasks, after their environment is set.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from doublecv.lab.common.errors import InputError
from doublecv.lab.sweep.plan import Sweep, SweepRun, load
from doublecv.lab.sweep.worker import STOPPED, run, single_threaded

LOCAL = "local"
"""The address for a cluster that is started on this machine."""

RETRIES = 20
"""How often a run may lose its worker; a run that fails by itself is not tried again."""

TIMEOUT = 10.0
"""Seconds that a cluster has to answer."""

STOP = "stop"
"""The file in the sweep's folder that asks all tasks to save and stop."""


@contextmanager
def ray_session(address: str, cores: int) -> Iterator[None]:
    """Join the cluster at the address, or start one on this machine that ends with the session."""
    # Before the import: Ray must send no usage statistics and print no advice.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise InputError("--cluster needs Ray, which is not installed: pip install 'doublecv[cluster]'") from error
    options: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False} if address == LOCAL else {}
    if address != LOCAL:
        _check_reachable(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"--cluster {address}: Ray does not start ({reason})") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Fail fast where nobody listens; Ray itself waits for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise InputError(f"--cluster must be an address as `ray start` prints it, HOST:PORT; got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"--cluster {address}: nobody answers there ({error}); is the cluster running?") from error


class RayWorkers:
    """Tasks of the Ray session; Ray queues those for which no core is free."""

    def __init__(self, sweep: Sweep) -> None:
        import ray

        self._folder = sweep.folder.resolve()
        self._stop_file = self._folder / STOP
        self._stop_file.unlink(missing_ok=True)
        # A cache of compiled programs is for one machine, and nodes may differ.
        self._environment = single_threaded(cached=False)
        if "DOUBLECV_DATA" in os.environ:
            self._environment["DOUBLECV_DATA"] = os.environ["DOUBLECV_DATA"]
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES)(_task)

    def submit(self, run: SweepRun) -> Future[tuple[int, str]]:
        """Queue the run."""
        task = self._task.options(name=run.name).remote(str(self._folder), run.name, self._environment)
        future: Future[tuple[int, str]] = task.future()
        return future

    def request_stop(self) -> None:
        """Write the file that all tasks look at."""
        self._stop_file.touch()

    def close(self) -> None:
        """Remove the file."""
        self._stop_file.unlink(missing_ok=True)


def _task(folder: str, name: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Execute one run, on whatever node; return its exit status and why it failed."""
    os.environ.update(environment)
    import ray

    stop_file = Path(folder) / STOP
    if stop_file.exists():
        return STOPPED, ""
    note = f"on the Ray node {ray.get_runtime_context().get_node_id()}, process {os.getpid()}"
    return run(load(Path(folder)).run(name), stop_file.exists, note)
