"""`doublecv toy`: the toy experiment on the command line."""

from __future__ import annotations

import csv
import json
import math
import time
from dataclasses import asdict, fields
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from doublecv.lab.common import run_folder
from doublecv.lab.common.style import appearance
from doublecv.lab.toy.arguments import ToyArguments
from doublecv.lab.toy.figures import write_figures
from doublecv.lab.toy.run import Curves, ToyResults, record_iterations, run
from doublecv.lab.toy.settings import ToySettings
from doublecv.lab.toy.table import table

METRICS = "metrics.csv"


def main(arguments: ToyArguments) -> None:
    """Run, with a progress bar, then write the folder and print the table."""
    settings, folder = arguments.settings, arguments.out
    settings.check()
    if folder is not None:
        run_folder.claim(folder, _as_json(settings))
    wall, cpu = time.perf_counter(), time.process_time()
    results = run_with_progress(settings)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if folder is not None:
        with (folder / METRICS).open("w", newline="") as file:
            write_metrics(results, file)
        write_figures(results, folder)
        run_folder.write_config(folder, "toy", _as_json(settings), [METRICS])
    console = Console()
    console.print(table(results))
    console.print(f"{wall:.0f} s, {cpu:.0f} s of CPU time", highlight=False)
    if folder is not None:
        console.print(f"written to {folder}", highlight=False, soft_wrap=True)


def run_with_progress(settings: ToySettings) -> ToyResults:
    """`toy.run` with a progress bar on standard error."""
    records = len(record_iterations(settings)) * settings.seeds * len(settings.estimators)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=records)
        return run(settings, lambda name: bar.update(task, advance=1, description=appearance(name).label))


def write_metrics(results: ToyResults, file: TextIO) -> None:
    """One line a seed, estimator and record; a number that is not known is left empty."""
    written = [field.name for field in fields(Curves)]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["seed", "estimator", "iteration", *written])
    for row, seed in enumerate(results.seeds):
        for name, curves in results.curves.items():
            columns = [getattr(curves, curve)[row].tolist() for curve in written]
            for iteration, *values in zip(results.iterations.tolist(), *columns, strict=True):
                writer.writerow([seed, name, iteration, *("" if math.isnan(value) else value for value in values)])


def _as_json(settings: ToySettings) -> Any:
    """The settings as they come back from a JSON file."""
    return json.loads(json.dumps(asdict(settings)))
