"""One run of a sweep, in a process of its own: `python -m doublecv.lab.sweep.worker SWEEP NAME`.

A training run goes on from its last checkpoint; a toy problem or a benchmark begins anew. SIGTERM asks a training run
to save and stop, and ends the others.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from doublecv.lab.common import run_folder
from doublecv.lab.common.files import locked
from doublecv.lab.sweep.sweep import BENCH, FAILURE, SweepRun, load
from doublecv.lab.sweep.targets import train_settings
from doublecv.lab.train import settings as train_folder

STOPPED = 130
"""The exit status of a run that was asked to stop, and did."""

PATIENCE = 120.0
"""Seconds to wait for the lock: a worker that was cut off from those who started it may take a while to stop."""


def single_threaded() -> dict[str, str]:
    """What a process's environment must hold for JAX to keep to one core."""
    flags = os.environ.get("XLA_FLAGS", "")
    threads = "--xla_cpu_multi_thread_eigen=false"
    return {
        "XLA_FLAGS": flags if threads in flags else f"{flags} {threads}".strip(),
        "NPROC": "1",
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
    }


def prepare(run: SweepRun) -> None:
    """Make the run's folder, so that there is a place for its log."""
    if run.kind != "train":
        run.folder.mkdir(parents=True, exist_ok=True)
    elif not train_folder.is_started(run.folder):
        train_folder.write(run.folder, train_settings(run.settings))
    (run.folder / FAILURE).unlink(missing_ok=True)


def failure(run: SweepRun) -> str:
    """Why it failed, in one line."""
    try:
        return (run.folder / FAILURE).read_text().strip()
    except OSError:
        return "no reason was given"


def carry_out(run: SweepRun, stop: Callable[[], bool]) -> int:
    """Do the run, or what is left of it, in a folder that is prepared; the exit status, 0 if it is done now."""
    try:
        with locked(run.folder, PATIENCE):
            {"train": _train, "toy": _toy, "bench": _bench}[run.kind](run, stop)
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        traceback.print_exc()
        sentence = f"{type(error).__name__}: {error}".replace("\n", " ")
        (run.folder / FAILURE).write_text(f"{sentence}\n")
        return 1
    return 0


def _train(run: SweepRun, stop: Callable[[], bool]) -> None:
    from rich.console import Console

    from doublecv.lab.train.loop import run as train
    from doublecv.lab.train.results import Callbacks, table

    def notice(sentence: str) -> None:
        print(sentence, flush=True)

    settings = train_settings(run.settings)
    Console().print(table(train(settings, run.folder, callbacks=Callbacks(notice=notice, stop=stop))))


def _toy(run: SweepRun, stop: Callable[[], bool]) -> None:
    from rich.console import Console

    from doublecv.lab.toy import run as toy
    from doublecv.lab.toy.figures import write_figures
    from doublecv.lab.toy.problem import ToySettings
    from doublecv.lab.toy.results import METRICS, table, write_metrics

    settings = ToySettings.from_json(run.settings)
    results = toy.run(settings)
    with (run.folder / METRICS).open("w", newline="") as file:
        write_metrics(results, file)
    write_figures(results, run.folder)
    run_folder.write_config(run.folder, "toy", run.settings, [METRICS])
    Console().print(table(results))


def _bench(run: SweepRun, stop: Callable[[], bool]) -> None:
    from doublecv.lab.bench.command import main as bench
    from doublecv.lab.bench.results import BenchSettings

    lists = {name: tuple(run.settings[name]) for name in ("estimators", "samples")}
    bench(BenchSettings(**{**run.settings, **lists, "out": run.folder / BENCH}))


def main(sweep: str, name: str) -> None:
    """Do the run of that name; standard output and standard error are its log."""
    # Ctrl-C reaches all processes of the terminal; the one that started this one then says what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = load(Path(sweep)).run(name)
    parent, asked = os.getppid(), False

    def request(*_: object) -> None:
        nonlocal asked
        asked = True

    if run.kind == "train":
        signal.signal(signal.SIGTERM, request)
    sys.exit(carry_out(run, lambda: asked or os.getppid() != parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
