"""`doublecv toy`: the toy experiment on the command line."""

from __future__ import annotations

import csv
import json
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from doublecv.lab import run_folder
from doublecv.lab.toy_settings import ToySettings

if TYPE_CHECKING:
    from doublecv.lab.toy import ToyResults

METRICS = "metrics.csv"


@dataclass(frozen=True)
class ToyCommand(ToySettings):
    """Maximise E_q 1/D sum_i (x_i - p0)^2 over D logits with each estimator, and follow its variance.

    The defaults are the setting of Figure 1 of Titsias and Shi (2022).
    """

    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """A new folder for metrics.csv, config.json and the figures. Without it only the table is printed."""

    @property
    def settings(self) -> ToySettings:
        """The settings without the folder."""
        return ToySettings(**{field.name: getattr(self, field.name) for field in fields(ToySettings)})


def main(command: ToyCommand) -> None:
    """Run, with a progress bar, then print the table and write the folder."""
    settings = command.settings
    settings.check()
    # All imports come first: what is not installed must not show after the run.
    from rich.console import Console

    from doublecv.lab import toy_figures, toy_table

    if command.out is not None:
        run_folder.claim(command.out, _as_json(settings))
    wall, cpu = time.perf_counter(), time.process_time()
    results = run_with_progress(settings)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if command.out is not None:
        with (command.out / METRICS).open("w", newline="") as file:
            write_metrics(results, file)
        toy_figures.write_figures(results, command.out)
        run_folder.write_config(command.out, "toy", _as_json(settings))
    console = Console()
    console.print(toy_table.table(results))
    console.print(f"{wall:.0f} s, {cpu:.0f} s of CPU time", highlight=False)
    if command.out is not None:
        console.print(f"written to {command.out}", highlight=False, soft_wrap=True)


def run_with_progress(settings: ToySettings) -> ToyResults:
    """`toy.run` with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from doublecv.lab import toy
    from doublecv.lab.appearance import appearance

    records = len(toy.record_iterations(settings)) * settings.seeds
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=records * len(settings.estimators))
        return toy.run(settings, lambda name: bar.update(task, advance=1, description=appearance(name).label))


def write_metrics(results: ToyResults, file: Any) -> None:
    """One line a seed, estimator and record; a number that is not known is left empty."""
    from doublecv.lab.toy import Curves

    curves_written = [field.name for field in fields(Curves)]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["seed", "estimator", "iteration", *curves_written])
    for row, seed in enumerate(results.seeds):
        for name, curves in results.curves.items():
            columns = [getattr(curves, curve)[row].tolist() for curve in curves_written]
            for iteration, *values in zip(results.iterations.tolist(), *columns, strict=True):
                writer.writerow([seed, name, iteration, *("" if math.isnan(value) else value for value in values)])


def _as_json(settings: ToySettings) -> Any:
    """The settings as they come back from a JSON file."""
    return json.loads(json.dumps(asdict(settings)))
