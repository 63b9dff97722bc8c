"""Run `doublecv train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from doublecv.lab.common.devices import request_cpu_devices
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.signals import interruption
from doublecv.lab.train import distributed
from doublecv.lab.train import settings as train_settings
from doublecv.lab.train.loop import run
from doublecv.lab.train.results import Callbacks, TrainResult, table
from doublecv.lab.train.settings import EXECUTION, TrainSettings


def main(settings: TrainSettings) -> None:
    """Train with a progress bar, then print the table.

    Where `settings.resume` names a run, the options that were not given must already have that run's values
    (`TrainSettings.defaults`).
    """
    settings.check()
    folder = _new_folder(settings) if settings.resume is None else _resumed_folder(settings)
    request_cpu_devices(settings.devices)
    with distributed.distributed_session(settings):
        _train(settings, folder)


def _train(settings: TrainSettings, folder: Path) -> None:
    if settings.resume is None and distributed.is_first():
        _check_unused(folder)
    resume = f"doublecv train --resume {shlex.quote(str(folder))}"
    if settings.devices > 1:
        resume += f" --devices {settings.devices}"
    try:
        results = run_with_progress(settings, folder)
    except KeyboardInterrupt:
        if distributed.is_first() and train_settings.is_started(folder):
            print(f"to resume: {resume}", file=sys.stderr)
        raise
    if distributed.is_first():
        console = Console()
        console.print(table(results))
        console.print(f"written to {folder}", highlight=False, soft_wrap=True, markup=False)


def _new_folder(settings: TrainSettings) -> Path:
    if settings.process == 0:
        _check_unused(settings.folder)
    return settings.folder


def _check_unused(folder: Path) -> None:
    if train_settings.is_finished(folder):
        raise InputError(
            f"{folder} holds a finished run; name a new folder with --out, or extend the run: "
            f"doublecv train --resume {folder} --steps MORE"
        )
    if train_settings.is_started(folder):
        raise InputError(
            f"{folder} holds a run that is not finished; to resume it: doublecv train --resume {folder}; "
            f"or name a new folder with --out"
        )


def _resumed_folder(settings: TrainSettings) -> Path:
    """Return the folder to resume in; a setting that was given must be that of the folder, except more steps."""
    assert settings.resume is not None
    if settings.out is not None:
        raise InputError("--out and --resume exclude each other: a run is resumed in its own folder")
    held = train_settings.read(settings.resume)
    for field in fields(settings):
        given, wanted = getattr(settings, field.name), getattr(held, field.name)
        if field.name in EXECUTION or given == wanted or (field.name == "steps" and given > wanted):
            continue
        flag = f"--{field.name.replace('_', '-')}"
        remedy = "only more steps can be made" if field.name == "steps" else "leave it out, or start a new run"
        raise InputError(f"{settings.resume} was started with {flag} {_text(wanted)}, got {_text(given)}; {remedy}")
    return settings.resume


def _text(value: Any) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def run_with_progress(settings: TrainSettings, folder: Path | None) -> tuple[TrainResult, ...]:
    """Call `run` with a progress bar on standard error; Ctrl-C completes the chunk, saves and stops."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not (console.is_terminal and distributed.is_first())
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar, interruption() as requested:
        task = bar.add_task("compiling", total=settings.steps)

        def progress(seed: int, step: int, record: Mapping[str, Any], speed: float) -> None:
            alpha = f"  alpha {record['alpha']:.3f}" if "alpha" in record else ""
            several = f"seed {seed}  " if settings.seeds > 1 else ""
            bar.update(
                task,
                completed=step,
                description=f"{several}ELBO {record['elbo']:.2f}  variance {record['encoder_variance']:.3g}{alpha}  "
                f"{speed:.0f} steps/s",
            )

        def notice(text: str) -> None:
            if distributed.is_first():
                console.print(text, highlight=False, soft_wrap=True, markup=False)

        return run(replace(settings, resume=None), folder, callbacks=Callbacks(progress, notice, requested))
