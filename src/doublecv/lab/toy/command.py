"""Run `doublecv toy`."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import matplotlib  # noqa: F401  (if it is missing, this is said before the run and not after it)
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from doublecv.lab.common import run_folder
from doublecv.lab.common.charts import appearance
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import METRICS, ToyResults, record_iterations, table, write_figures, write_metrics
from doublecv.lab.toy.run import run


def main(settings: ToySettings) -> None:
    """Run the experiment with a progress bar, write the folder and print the table."""
    settings.check()
    folder = settings.out
    with nullcontext() if folder is None else run_folder.claimed(folder, settings.as_json()):
        run_and_show(settings, folder)


def run_and_show(settings: ToySettings, folder: Path | None) -> None:
    """Run the experiment, write its files into a folder that belongs to it, and print the table."""
    wall, cpu = time.perf_counter(), time.process_time()
    results = run_with_progress(settings)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if folder is not None:
        with (folder / METRICS).open("w", newline="") as file:
            write_metrics(results, file)
        write_figures(results, folder)
        run_folder.write_config(folder, "toy", settings.as_json(), [METRICS])
    console = Console()
    console.print(table(results))
    console.print(f"{wall:.0f} s, {cpu:.0f} s of CPU time", highlight=False)
    if folder is not None:
        console.print(f"written to {folder}", highlight=False, soft_wrap=True, markup=False)


def run_with_progress(settings: ToySettings) -> ToyResults:
    """Call `run` with a progress bar on standard error."""
    records = len(record_iterations(settings)) * settings.seeds * len(settings.estimators)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=records)
        return run(settings, lambda name: bar.update(task, advance=1, description=appearance(name).label))
