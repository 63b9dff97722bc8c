"""Run `doublecv train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from doublecv.lab.common import devices
from doublecv.lab.common.errors import InputError, interruption
from doublecv.lab.train import settings as train_settings
from doublecv.lab.train.loop import run
from doublecv.lab.train.results import Callbacks, TrainResult, table
from doublecv.lab.train.settings import TrainSettings


def main(settings: TrainSettings) -> None:
    """Train with a progress bar, then print the table; to resume, with the settings of `TrainSettings.defaults`."""
    settings.check()
    folder = settings.resume or settings.folder
    if settings.resume is None and settings.process == 0 and train_settings.is_started(folder):
        state, more = ("is", " --steps MORE") if train_settings.is_finished(folder) else ("is not", "")
        resume = f"doublecv train --resume {folder}{more}"
        raise InputError(f"{folder} holds a run that {state} finished; to continue it: {resume}; or name another --out")
    devices.request_cpu_devices(settings.devices)
    with devices.distributed_session(settings.coordinator, settings.processes, settings.process):
        _train(settings, folder)


def _train(settings: TrainSettings, folder: Path) -> None:
    try:
        results = run_with_progress(settings, folder)
    except KeyboardInterrupt:
        if devices.is_first() and train_settings.is_started(folder):
            shared = f" --devices {settings.devices}" if settings.devices > 1 else ""
            print(f"to resume: doublecv train --resume {shlex.quote(str(folder))}{shared}", file=sys.stderr)
        raise
    if devices.is_first():
        Console().print(table(results))
        print(f"written to {folder}")


def run_with_progress(settings: TrainSettings, folder: Path | None) -> tuple[TrainResult, ...]:
    """Call `run` with a progress bar on standard error; Ctrl-C completes the chunk, saves and stops."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not (console.is_terminal and devices.is_first())
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar, interruption() as requested:
        task = bar.add_task("compiling", total=settings.steps)

        def progress(seed: int, step: int, record: Mapping[str, Any], speed: float) -> None:
            alpha = f"  alpha {record['alpha']:.3f}" if "alpha" in record else ""
            several = f"seed {seed}  " if settings.seeds > 1 else ""
            objective = "ELBO" if settings.objective == "elbo" else f"bound of {settings.bound_samples_train}"
            variance = f"variance {record['encoder_variance']:.3g}{alpha}"
            shown = f"{several}{objective} {record[settings.metric]:.2f}  {variance}  {speed:.0f} steps/s"
            bar.update(task, completed=step, description=shown)

        def notice(text: str) -> None:
            if devices.is_first():
                console.print(text, highlight=False, soft_wrap=True, markup=False)

        return run(replace(settings, resume=None), folder, callbacks=Callbacks(progress, notice, requested))
