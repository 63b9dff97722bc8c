"""The engine of a sweep: hand runs to workers, follow them, and stop them on request.

Workers are processes on this machine, one per core, or tasks of a Ray cluster, which another node resumes from their
last checkpoints when a worker dies. Both return futures, so that order, failures, interruption and the display are the
same. The nodes of a cluster must see the sweep's folder under the same path and have doublecv installed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import write_atomically
from doublecv.lab.sweep import worker
from doublecv.lab.sweep.plan import FAILURE, LOG, Sweep, SweepRun, load
from doublecv.lab.sweep.progress import SweepProgress
from doublecv.lab.sweep.worker import STOPPED, single_threaded

LOCAL = "local"
"""The address for a cluster that is started on this machine."""

RETRIES = 20
"""How often a run may lose its worker; a run that fails by itself is not tried again."""

TIMEOUT = 10.0
"""Seconds that a cluster has to answer."""

STOP = "stop"
"""The file in the sweep's folder that asks all tasks to save and stop."""


def run(
    runs: Sequence[SweepRun], workers: LocalWorkers | RayWorkers, progress: SweepProgress, stop: Callable[[], bool]
) -> None:
    """Run all runs that are not done, whether others fail or not, until `stop` returns True; then let them save."""
    submitted = {} if stop() else {workers.submit(each): each for each in runs if not each.is_done()}
    while submitted:
        ended, _ = wait(submitted, timeout=0.2, return_when=FIRST_COMPLETED)
        for future in ended:
            try:
                status, reason = future.result()
            except Exception as error:  # Ray's own: the task lost its worker too often
                status, reason = 1, str(error).partition("\n")[0]
            stopped = stop() and (status == STOPPED or status < 0)
            progress.end(submitted.pop(future), "stopped" if stopped else "failed" if status else "done", reason)
        progress.show(submitted.values())
        if stop():
            progress.stopping()
            workers.request_stop()


class LocalWorkers:
    """Processes that are started when they are needed and used for many runs, each served by a thread of this one."""

    def __init__(self, sweep: Sweep, cores: int, environment: dict[str, str]) -> None:
        self._sweep, self._environment = sweep, os.environ | environment
        self._threads, self._own = ThreadPoolExecutor(cores), threading.local()
        self._processes: list[subprocess.Popen[str]] = []
        self._is_stopping = False

    def submit(self, run: SweepRun) -> Future[tuple[int, str]]:
        """Queue the run; the result is its exit status, 0 for success, and the reason of a failure."""
        return self._threads.submit(self._run, run)

    def request_stop(self) -> None:
        """Ask all runs to save and stop, and start no others; may be called repeatedly."""
        self._is_stopping = True
        for process in self._processes:
            process.terminate()

    def close(self) -> None:
        """End all processes."""
        self._is_stopping = True
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()

    def _run(self, run: SweepRun) -> tuple[int, str]:
        if self._is_stopping:
            return STOPPED, ""
        process = self._process()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # if it has ended, there is no answer
            process.stdin.write(f"{run.name}\n")
            process.stdin.flush()
        if answer := process.stdout.readline():
            status, reason = json.loads(answer)
            return status, reason
        del self._own.process
        status = process.wait() or 1
        reason = f"killed by signal {-status}" if status < 0 else f"the worker ended with status {status}"
        if (run.folder / LOG).exists():
            write_atomically(run.folder / FAILURE, f"{reason}\n".encode())
        return status, reason

    def _process(self) -> subprocess.Popen[str]:
        """Return the process of this thread."""
        if not hasattr(self._own, "process"):
            command = [sys.executable, "-m", "doublecv.lab.sweep.worker", str(self._sweep.folder)]
            pipe = subprocess.PIPE
            self._own.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=self._environment)
            self._processes.append(self._own.process)
        process: subprocess.Popen[str] = self._own.process
        return process


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
    return worker.run(load(Path(folder)).run(name), stop_file.exists, note)
