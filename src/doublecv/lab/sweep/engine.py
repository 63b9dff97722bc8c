"""The engine of a sweep: hand runs to workers, follow them, and stop them on request.

Workers are processes on this machine, one per core, or tasks of a Ray cluster (`doublecv.lab.sweep.ray`). Both return
futures, so that order, failures, interruption and the display are the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from doublecv.lab.common.files import write_atomically
from doublecv.lab.sweep.plan import FAILURE, LOG, Sweep, SweepRun
from doublecv.lab.sweep.progress import SweepProgress
from doublecv.lab.sweep.worker import STOPPED


class Workers(Protocol):
    """Run the runs of one sweep."""

    def submit(self, run: SweepRun) -> Future[tuple[int, str]]:
        """Start the run, or queue it; the result is its exit status, 0 for success, and the reason of a failure."""

    def request_stop(self) -> None:
        """Ask all runs to save and stop, and start no others; may be called repeatedly."""


def run(runs: Sequence[SweepRun], workers: Workers, progress: SweepProgress, stop: Callable[[], bool]) -> None:
    """Run all runs that are not done; when `stop` returns True, let those that are running save, and return.

    A run that fails does not keep the others from running.
    """
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
    """Processes that are started when they are needed and used for many runs, each served by a thread of this one.

    Args:
        sweep: the sweep of the runs.
        cores: the number of processes at a time.
        environment: variables that are set in them.
    """

    def __init__(self, sweep: Sweep, cores: int, environment: dict[str, str]) -> None:
        self._sweep, self._environment = sweep, os.environ | environment
        self._threads, self._own = ThreadPoolExecutor(cores), threading.local()
        self._processes: list[subprocess.Popen[str]] = []
        self._is_stopping = False

    def submit(self, run: SweepRun) -> Future[tuple[int, str]]:
        """Queue the run for the next process that is idle."""
        return self._threads.submit(self._run, run)

    def request_stop(self) -> None:
        """Send SIGTERM to all processes."""
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
        try:
            process.stdin.write(f"{run.name}\n")
            process.stdin.flush()
        except OSError:
            answer = ""  # it has ended
        else:
            answer = process.stdout.readline()
        if answer:
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
