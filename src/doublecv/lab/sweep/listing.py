"""`doublecv reproduce --list`: the targets, the number of their runs, and an estimate of the time that they take here.

The estimate: one kind of training step is measured (RLOO, K = 2, nonlinear, Bernoulli), on one core, for some seconds,
and kept in the user's cache; every run takes as much longer as it has more multiplications, and the cores share the
runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from doublecv.lab.common.files import write_atomically
from doublecv.lab.data.fetch import cache_folder
from doublecv.lab.sweep.cost import step_work, work
from doublecv.lab.sweep.folder import cores, plan, processor
from doublecv.lab.sweep.progress import duration
from doublecv.lab.sweep.sweep import Sweep, SweepRun
from doublecv.lab.sweep.targets import ALL, TARGETS, Only
from doublecv.lab.sweep.worker import single_threaded

CACHE = "speed.json"

MEASURE = """
from doublecv.lab.bench.timing import time_interleaved
from doublecv.lab.bench.jax import STEPS, step
from doublecv.estimators import make
print(time_interleaved({"rloo": step(make("rloo", 2))}, 3, 5, STEPS)["rloo"].median)
"""
"""The milliseconds of a training step, in a process of its own: one thread is what a run has."""


def show(targets: Sequence[str], steps: int | None, seeds: Sequence[int], only: Only) -> None:
    """Print the list."""

    def planned(names: Sequence[str]) -> Sweep:
        return plan(Path(), names, steps, seeds, only, "")

    speed = multiplications_a_second()
    table = Table(
        title=f"{'1,000,000' if steps is None else f'{steps:,}'} steps, {_count(len(seeds), 'seed')}",
        caption=f"time on {_count(cores(), 'core')}: a training step of RLOO with K = 2 was measured here, the others "
        "are reckoned by their multiplications; a run that targets share is one run",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("target", "what it shows"):
        table.add_column(heading, no_wrap=heading == "target")
    for heading in ("runs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in targets:
        runs = planned([name]).runs
        table.add_row(name, TARGETS[name].summary, str(len(runs)), _time(runs, speed))
    if len(targets) > 1:
        together = planned(targets).runs
        table.add_section()
        name = ALL if len(targets) == len(TARGETS) else "together"
        table.add_row(name, "", str(len(together)), _time(together, speed))
    Console().print(table)


def _time(runs: Sequence[SweepRun], speed: float) -> str:
    return duration(sum(map(work, runs)) / speed / min(cores(), max(1, len(runs))))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def multiplications_a_second() -> float:
    """Of one core in training, from the cache or measured now."""
    here = {"processor": processor(), "jax": version("jax")}
    path = cache_folder() / CACHE
    try:
        held = json.loads(path.read_text())
        if {key: held[key] for key in here} == here:
            return float(held["multiplications_a_second"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    Console(stderr=True).print("measuring a training step ...", highlight=False)
    environment = os.environ | single_threaded()
    found = subprocess.run([sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True)
    speed = step_work("rloo", 2, "nonlinear", 784, 100) / (float(found.stdout) / 1000)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(here | {"multiplications_a_second": speed}).encode())
    return speed
