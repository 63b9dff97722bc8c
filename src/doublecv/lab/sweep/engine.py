"""The engine of a sweep: hand runs to workers, follow them, and stop them on request.

Workers are processes on this machine, one per core, or tasks of a Ray cluster (`doublecv.lab.sweep.ray`). Both
implement `Workers`, so that order, failures, interruption and the display are the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from typing import NamedTuple, Protocol

from doublecv.lab.common.files import write_atomically
from doublecv.lab.sweep.plan import FAILURE, LOG, Sweep, SweepRun
from doublecv.lab.sweep.progress import SweepProgress
from doublecv.lab.sweep.worker import STOPPED, single_threaded


class Ended(NamedTuple):
    """A run that is no longer running, its exit status, 0 for success, and the reason of a failure."""

    run: SweepRun
    status: int
    reason: str = ""


class Workers(Protocol):
    """Run the runs of one sweep."""

    def has_room(self, run: SweepRun) -> bool:
        """Return whether the run may be submitted now."""

    def submit(self, run: SweepRun) -> None:
        """Start the run, or queue it."""

    def wait(self, seconds: float) -> Sequence[Ended]:
        """Return the runs that have ended, after at most so many seconds."""

    def request_stop(self) -> None:
        """Ask all runs to save and stop; may be called repeatedly."""


def run(
    runs: Sequence[SweepRun], workers: Workers, progress: SweepProgress, stop: Callable[[], bool], pause: float = 0.2
) -> None:
    """Run all runs that are not done; when `stop` returns True, let those that are running save, and return.

    A run that fails does not keep the others from running.
    """
    waiting = [each for each in runs if not each.is_done()]
    submitted: dict[str, SweepRun] = {}
    while submitted or (waiting and not stop()):
        while waiting and not stop() and workers.has_room(waiting[0]):
            each = waiting.pop(0)
            submitted[each.name] = each
            workers.submit(each)
        for ended in workers.wait(pause):
            del submitted[ended.run.name]
            stopped = stop() and (ended.status == STOPPED or ended.status < 0)
            how = "done" if ended.status == 0 else "stopped" if stopped else "failed"
            progress.end(ended.run, how, ended.reason if how == "failed" else "")
        progress.show(submitted.values())
        if stop():
            progress.stopping()
            workers.request_stop()


@dataclass
class _Process:
    """A worker process and the run that it executes, if any."""

    popen: subprocess.Popen[str]
    threads: str
    run: SweepRun | None = None


class LocalWorkers:
    """Processes that are started when they are needed and used for many runs."""

    def __init__(self, sweep: Sweep, cores: int) -> None:
        self._sweep, self._cores = sweep, cores
        self._processes: list[_Process] = []

    def has_room(self, run: SweepRun) -> bool:
        """Return whether a core is free; a benchmark has the machine for itself."""
        running = [process.run for process in self._processes if process.run is not None]
        if any("bench" in (run.kind, other.kind) for other in running):
            return False
        return len(running) < self._cores

    def submit(self, run: SweepRun) -> None:
        """Hand the run to an idle process, or to a new one; a benchmark uses all threads."""
        threads = "all" if run.kind == "bench" else "one"
        idle = (each for each in self._processes if each.run is None and each.threads == threads)
        process = next(idle, None) or self._start(threads)
        process.run = run
        assert process.popen.stdin is not None
        try:
            process.popen.stdin.write(f"{run.name}\n")
            process.popen.stdin.flush()
        except OSError:
            return  # it has ended, which `wait` finds

    def wait(self, seconds: float) -> list[Ended]:
        """Return the runs that have ended."""
        busy = {each.popen.stdout: each for each in self._processes if each.run is not None}
        with DefaultSelector() as selector:
            for pipe in busy:
                selector.register(pipe, EVENT_READ)  # type: ignore[arg-type]
            if not busy:
                time.sleep(seconds)
                return []
            return [self._ended(busy[key.fileobj]) for key, _ in selector.select(seconds)]  # type: ignore[index]

    def request_stop(self) -> None:
        """Send SIGTERM to the processes that are running something."""
        for process in self._processes:
            if process.run is not None:
                process.popen.terminate()

    def close(self) -> None:
        """End all processes: idle ones at the end of their input, others at once."""
        for process in self._processes:
            if process.run is not None:
                process.popen.kill()
            process.popen.communicate()
        self._processes = []

    def _start(self, threads: str) -> _Process:
        environment = os.environ | (single_threaded() if threads == "one" else {"COLUMNS": "120"})
        command = [sys.executable, "-m", "doublecv.lab.sweep.worker", str(self._sweep.folder)]
        pipe = subprocess.PIPE
        process = _Process(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment), threads)
        self._processes.append(process)
        return process

    def _ended(self, process: _Process) -> Ended:
        assert process.popen.stdout is not None
        assert process.run is not None
        run, process.run = process.run, None
        if answer := process.popen.stdout.readline():
            status, reason = json.loads(answer)
            return Ended(run, status, reason)
        self._processes.remove(process)
        process.popen.communicate()
        status = process.popen.returncode or 1
        reason = f"killed by signal {-status}" if status < 0 else f"the worker ended with status {status}"
        if (run.folder / LOG).exists():
            write_atomically(run.folder / FAILURE, f"{reason}\n".encode())
        return Ended(run, status, reason)
