"""Execute runs of a sweep: `python -m doublecv.lab.sweep.worker SWEEP` runs those that standard input names.

One process serves one core for the whole sweep, so that Python and JAX start once per core and not once per run; a
cache on disk spares the compilation of programs that differ only in their seed. A training run resumes from its last
checkpoint; a toy problem or a benchmark starts again. SIGTERM asks a training run to save and stop and ends others.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from doublecv.lab.bench.problem import BenchSettings
from doublecv.lab.common.files import locked, write_atomically
from doublecv.lab.data.fetch import cache_folder
from doublecv.lab.sweep.plan import BENCH, FAILURE, LOG, SweepRun, load, processor
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.train import settings as train_settings

STOPPED = 130
"""The exit status of a run that was asked to stop, and did."""

LOCK_TIMEOUT = 120.0
"""Seconds to wait for a run's lock: a worker that lost its parent may take a while to stop."""


def single_threaded(cached: bool = True) -> dict[str, str]:
    """Return the environment variables that keep JAX on one core and, if `cached`, its programs on disk."""
    flags = os.environ.get("XLA_FLAGS", "")
    threads = "--xla_cpu_multi_thread_eigen=false"
    return {
        "XLA_FLAGS": flags if threads in flags else f"{flags} {threads}".strip(),
        "NPROC": "1",
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
        "COLUMNS": "120",
    } | (_compilation_cache() if cached else {})


def _compilation_cache() -> dict[str, str]:
    """Return where JAX keeps compiled programs: one folder per processor, as the programs are for one."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return {}
    folder = cache_folder() / f"compiled-{hashlib.sha256(processor().encode()).hexdigest()[:12]}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(1 << 30),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def run(run: SweepRun, stop: Callable[[], bool], note: str = "") -> tuple[int, str]:
    """Execute the run, or what is left of it, until `stop`, with its output, after a note, in log.txt.

    Return its exit status and why it failed.
    """
    try:
        if run.kind != "train":
            run.folder.mkdir(parents=True, exist_ok=True)
        elif not train_settings.is_started(run.folder):
            train_settings.write(run.folder, train_settings.TrainSettings.from_json(run.settings))
        (run.folder / FAILURE).unlink(missing_ok=True)
        with _output_to(run.folder / LOG), locked(run.folder, LOCK_TIMEOUT):
            if note:
                print(note, flush=True)
            try:
                _execute(run, stop)
            except Exception:
                traceback.print_exc()
                raise
    except KeyboardInterrupt:
        return STOPPED, ""
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if (run.folder / LOG).exists():
            write_atomically(run.folder / FAILURE, f"{reason}\n".encode())
        return 1, reason
    return 0, ""


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Append all output, also that of compiled libraries, to a file, without following a link."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o644)
    before = os.dup(1), os.dup(2)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(before, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(log)


def _execute(run: SweepRun, stop: Callable[[], bool]) -> None:
    from rich.console import Console

    from doublecv.lab.bench import command as bench
    from doublecv.lab.toy.run import run_and_show
    from doublecv.lab.train import loop, results

    if run.kind == "toy":
        run_and_show(ToySettings.from_json(run.settings), run.folder)
    elif run.kind == "bench":
        bench.main(replace(BenchSettings.from_json(run.settings), out=run.folder / BENCH))
    else:
        settings = train_settings.TrainSettings.from_json(run.settings)
        callbacks = results.Callbacks(notice=partial(print, flush=True), stop=stop)
        Console().print(results.table(loop.run(settings, run.folder, callbacks=callbacks)))


def main(folder: str) -> None:
    """Run the runs that standard input names, one per line, and answer each with its status and reason as JSON."""
    # Ctrl-C reaches all processes of the terminal; the parent then says what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sweep, parent, requested = load(Path(folder)), os.getppid(), False

    def request(*_: object) -> None:
        nonlocal requested
        requested = True

    while name := sys.stdin.readline().strip():
        each = sweep.run(name)
        signal.signal(signal.SIGTERM, request if each.kind == "train" else signal.SIG_DFL)
        print(json.dumps(run(each, lambda: requested or os.getppid() != parent)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
