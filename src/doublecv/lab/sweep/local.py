"""The runs of a sweep on this machine: one process a core, each with one thread."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from doublecv.lab.common.errors import InputError
from doublecv.lab.sweep.progress import SweepProgress
from doublecv.lab.sweep.sweep import FAILURE, LOG, Sweep, SweepRun
from doublecv.lab.sweep.worker import STOPPED, failure, prepare, single_threaded

PAUSE = 0.1
"""Seconds from one look at the processes to the next."""


def carry_out(
    sweep: Sweep, runs: Sequence[SweepRun], cores: int, progress: SweepProgress, stop: Callable[[], bool]
) -> None:
    """Do all runs that are not done; when `stop` says so, let the running ones save, and return.

    One that fails does not keep the others from their turn.
    """
    waiting = [run for run in runs if not run.is_done()]
    running: dict[str, tuple[SweepRun, subprocess.Popen[bytes]]] = {}
    try:
        while running or (waiting and not stop()):
            while waiting and not stop() and _has_room(waiting[0], [run for run, _ in running.values()], cores):
                run = waiting.pop(0)
                try:
                    running[run.name] = run, _start(sweep, run)
                except (InputError, OSError) as error:
                    progress.end(run, "failed", str(error))
                else:
                    progress.begin(run)
            time.sleep(PAUSE)
            if stop():
                progress.stopping()
                for _, process in running.values():
                    process.terminate()
            for run, process in list(running.values()):
                if (status := process.poll()) is not None:
                    del running[run.name]
                    progress.end(run, *_how_it_ended(run, status, stop()))
    finally:
        for _, process in running.values():
            process.kill()
            process.wait()


def _has_room(run: SweepRun, running: Sequence[SweepRun], cores: int) -> bool:
    """A benchmark has the machine for itself."""
    if any("bench" in (run.kind, other.kind) for other in running):
        return False
    return len(running) < cores


def _start(sweep: Sweep, run: SweepRun) -> subprocess.Popen[bytes]:
    prepare(run)
    environment = os.environ | ({} if run.kind == "bench" else single_threaded()) | {"COLUMNS": "120"}
    command = [sys.executable, "-m", "doublecv.lab.sweep.worker", str(sweep.folder), run.name]
    with (run.folder / LOG).open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


def _how_it_ended(run: SweepRun, status: int, stopping: bool) -> tuple[str, str]:
    """In a word, and the reason if it failed."""
    if status == 0:
        return "done", ""
    if stopping and (status == STOPPED or status < 0):
        return "stopped", ""
    if status < 0:
        (run.folder / FAILURE).write_text(f"killed by signal {-status}\n")
    return "failed", failure(run)
