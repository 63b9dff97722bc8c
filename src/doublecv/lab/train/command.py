"""`doublecv train`: a training run on the command line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from doublecv.lab.common.devices import provide
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.signals import interruption
from doublecv.lab.train import distributed as processes
from doublecv.lab.train import folder as train_folder
from doublecv.lab.train.arguments import TrainArguments
from doublecv.lab.train.folder import Plan
from doublecv.lab.train.run import TrainResult, Watch, run
from doublecv.lab.train.table import table

NOT_OF_THE_RUN = ("out", "resume", "data_dir", "devices", "coordinator", "processes", "process")
"""The arguments that may be others when a run goes on."""


def main(arguments: TrainArguments) -> None:
    """Train with a progress bar, then print the table."""
    provide(arguments.devices)
    with processes.joined(arguments.coordinator, arguments.processes, arguments.process):
        _train(arguments)


def _train(arguments: TrainArguments) -> None:
    folder, plan = _resumed(arguments) if arguments.resume is not None else _new(arguments)
    go_on = f"doublecv train --resume {shlex.quote(str(folder))}"
    if arguments.devices > 1:
        go_on += f" --devices {arguments.devices}"
    try:
        results = run_with_progress(plan, folder, arguments.devices)
    except KeyboardInterrupt:
        if processes.is_first() and train_folder.is_begun(folder):
            print(f"to go on: {go_on}", file=sys.stderr)
        raise
    if processes.is_first():
        console = Console()
        console.print(table(results))
        console.print(f"written to {folder}", highlight=False, soft_wrap=True)


def _new(arguments: TrainArguments) -> tuple[Path, Plan]:
    folder = arguments.folder
    data_dir = None if arguments.data_dir is None else str(arguments.data_dir)
    plan = Plan(arguments.settings, arguments.seeds, arguments.parallel_seeds, data_dir, arguments.tensorboard)
    plan.check()
    if not processes.is_first():
        # The first process may have begun to write there already.
        return folder, plan
    if train_folder.is_begun(folder) and not train_folder.is_finished(folder):
        raise InputError(
            f"{folder} holds a run that is not finished; to go on: doublecv train --resume {folder}; "
            f"or name a new folder with --out"
        )
    if train_folder.is_finished(folder):
        raise InputError(f"{folder} holds a finished run; name a new folder with --out, or remove this one")
    return folder, plan


def _resumed(arguments: TrainArguments) -> tuple[Path, Plan]:
    """The plan of the folder; a setting that was given besides must be the one of the folder."""
    folder = arguments.resume
    assert folder is not None
    if arguments.out is not None:
        raise InputError("--out and --resume exclude each other: a run goes on in its own folder")
    plan = train_folder.read(folder)
    for field in fields(type(arguments)):
        given = getattr(arguments, field.name)
        if field.name in NOT_OF_THE_RUN or field.default is MISSING or given == field.default:
            continue
        held = getattr(plan, field.name, None) if hasattr(plan, field.name) else getattr(plan.settings, field.name)
        if given != held:
            flag = f"--{field.name.replace('_', '-')}"
            raise InputError(f"{folder} was begun with {flag} {held}, got {given}; leave it out, or begin a new run")
    if arguments.data_dir is not None:
        plan = Plan(plan.settings, plan.seeds, plan.parallel_seeds, str(arguments.data_dir), plan.tensorboard)
    return folder, plan


def run_with_progress(plan: Plan, folder: Path | None, devices: int = 1) -> tuple[TrainResult, ...]:
    """`train.run` with a progress bar on standard error; Ctrl-C ends the chunk, saves and stops."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(
            *columns, console=console, transient=True, disable=not (console.is_terminal and processes.is_first())
        ) as bar,
        interruption() as asked,
    ):
        task = bar.add_task("compiling", total=plan.settings.steps)

        def progress(seed: int, step: int, record: Mapping[str, Any], speed: float) -> None:
            alpha = f"  alpha {record['alpha']:.3f}" if "alpha" in record else ""
            several = f"seed {seed}  " if plan.seeds > 1 else ""
            bar.update(
                task,
                completed=step,
                description=f"{several}ELBO {record['elbo']:.2f}  variance {record['encoder_variance']:.3g}{alpha}  "
                f"{speed:.0f} steps/s",
            )

        def notice(text: str) -> None:
            if processes.is_first():
                console.print(text, highlight=False, soft_wrap=True)

        return run(
            plan.settings,
            folder,
            seeds=plan.seeds,
            parallel_seeds=plan.parallel_seeds,
            devices=devices,
            data_dir=None if plan.data_dir is None else Path(plan.data_dir),
            tensorboard=plan.tensorboard,
            watch=Watch(progress, notice, asked),
        )
