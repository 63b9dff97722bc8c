"""The runs of a sweep on Ray: a task each, which another node takes up from its last checkpoint when a worker dies.

The sweep's folder must be the same path on all nodes, and doublecv be installed on them. JAX is imported in the tasks
alone, once their environment is set.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from doublecv.lab.common.errors import InputError
from doublecv.lab.sweep.progress import SweepProgress
from doublecv.lab.sweep.sweep import LOG, Sweep, SweepRun, load

RETRIES = 20
"""How often a run may lose its worker; an error of its own is not tried again."""

PAUSE = 0.5
"""Seconds from one look at the tasks to the next."""

PATIENCE = 10.0
"""Seconds that a cluster has to answer."""

STOP = "stop"
"""The file in the sweep's folder that asks all tasks to save and stop."""


@contextmanager
def joined(address: str | None, cores: int) -> Iterator[None]:
    """Join the cluster at the address, or start one on this machine that ends when it is left."""
    # Before the import: Ray is to send nothing to anybody, and to print no advice.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise InputError("--cluster needs Ray, which is not installed: pip install 'doublecv[cluster]'") from error
    local: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False} if address is None else {}
    if address is not None:
        _check_that_somebody_listens(address)
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"--cluster {address or ''}: Ray does not start ({reason})") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_that_somebody_listens(address: str) -> None:
    """Ray itself takes minutes to find out that nobody does."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise InputError(f"--cluster must be an address as `ray start` tells it, HOST:PORT; got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"--cluster {address}: nobody answers there ({error}); is the cluster running?") from error


def carry_out(sweep: Sweep, runs: Sequence[SweepRun], progress: SweepProgress, stop: Callable[[], bool]) -> None:
    """Do all runs that are not done; when `stop` says so, let the running ones save, and return."""
    import ray

    from doublecv.lab.sweep.worker import STOPPED, failure, single_threaded

    folder = sweep.folder.resolve()
    stop_file = folder / STOP
    stop_file.unlink(missing_ok=True)
    environment = single_threaded() | {"COLUMNS": "120"}
    environment |= {name: os.environ[name] for name in ("DOUBLECV_DATA",) if name in os.environ}
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_task)
    unfinished = {
        task.options(name=run.name).remote(str(folder), run.name, environment): run for run in runs if not run.is_done()
    }
    while unfinished:
        ended, _ = ray.wait(list(unfinished), timeout=PAUSE)
        for reference in ended:
            run = unfinished.pop(reference)
            try:
                status = ray.get(reference)
            except ray.exceptions.RayError as error:
                progress.end(run, "failed", str(error).splitlines()[0])
                continue
            how = {0: "done", STOPPED: "stopped"}.get(status, "failed")
            progress.end(run, how, failure(run) if how == "failed" else "")
        for run in unfinished.values():
            if run.name not in progress.running and run.state() == "running":
                progress.begin(run)
        if stop():
            progress.stopping()
            stop_file.touch()
    stop_file.unlink(missing_ok=True)


def _task(folder: str, name: str, environment: Mapping[str, str]) -> int:
    """One run, on whatever node; its exit status."""
    os.environ.update(environment)
    import ray

    from doublecv.lab.sweep.worker import STOPPED, carry_out, prepare

    stop_file = Path(folder) / STOP
    if stop_file.exists():
        return STOPPED
    run = load(Path(folder)).run(name)
    prepare(run)
    with (run.folder / LOG).open("a") as log, redirect_stdout(log), redirect_stderr(log):
        print(f"on the Ray node {ray.get_runtime_context().get_node_id()}", flush=True)
        return carry_out(run, stop_file.exists)
