"""Display all runs of a sweep: done, running with step and ELBO, waiting, time left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from doublecv.lab.sweep.cost import work
from doublecv.lab.sweep.plan import SweepRun
from doublecv.lab.train.metrics import FILE as METRICS

TAIL = 4096
"""Bytes at the end of the metrics that are sure to hold a complete line."""


class SweepProgress:
    """Display a sweep on standard error; without a terminal, print one line for every run that ends."""

    def __init__(self, runs: Sequence[SweepRun]) -> None:
        self.runs = runs
        self.running: dict[str, TaskID] = {}
        self.ended = {run.name: "done" for run in runs if run.is_done()}
        self.reasons: dict[str, str] = {}
        self._is_stopping = False
        self._work = {run.name: work(run) for run in runs}
        self._fraction = {run.name: self._fraction_done(run) for run in runs}
        self._fraction_at_start = dict(self._fraction)
        self._started = time.monotonic()
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[state]}"))
        hidden = not self._console.is_terminal
        self._bars = Progress(*columns, console=self._console, transient=True, disable=hidden)
        self._all = self._bars.add_task("runs", total=len(runs), state="")

    def __enter__(self) -> SweepProgress:
        if self.ended:
            self._say(f"{len(self.ended)} of {len(self.runs)} runs are done already")
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, submitted: Iterable[SweepRun]) -> None:
        """Update the display; a run that was submitted is shown when it has started."""
        for run in submitted:
            if run.name not in self.running and run.state() == "running":
                self.running[run.name] = self._bars.add_task(run.name, total=run.settings.get("steps"), state="")
            if run.name in self.running:
                last = last_records(run.folder)
                state = f"{last['step']} steps  ELBO {last['elbo']:.2f}" if "elbo" in last else ""
                self._bars.update(self.running[run.name], completed=last.get("step", 0), state=state)
                self._fraction[run.name] = self._fraction_done(run)
        self._bars.update(self._all, completed=len(self.ended), state=f"{len(self.ended)} ended  {self._time_left()}")

    def end(self, run: SweepRun, how: str, reason: str = "") -> None:
        """Report that a run has ended: "done", "failed" for a reason, or "stopped"."""
        if run.name in self.running:
            self._bars.remove_task(self.running.pop(run.name))
        self.ended[run.name] = how
        self.reasons[run.name] = reason
        self._fraction[run.name] = self._fraction_done(run)
        last = last_records(run.folder)
        words = [f"{how:<7}", run.name]
        if how == "stopped":
            words += [f"at step {last['step']}"] if "step" in last else []
        else:
            words.insert(1, f"{len(self.ended)}/{len(self.runs)}")
            words += [f"ELBO {last['train_elbo']:.2f}"] if how == "done" and "train_elbo" in last else []
            words += [self._time_left()]
        self._say("  ".join(words).rstrip())

    def stopping(self) -> None:
        """Report that Ctrl-C was noticed; saving takes a moment."""
        if not self._is_stopping and self.running:
            self._say("stopping: the runs save first")
        self._is_stopping = True

    def _time_left(self) -> str:
        """Return the time left at the pace since the start; nothing before there is a pace, or at the end."""
        done = sum(self._work[name] * (self._fraction[name] - start) for name, start in self._fraction_at_start.items())
        left = sum(self._work[name] * (1 - now) for name, now in self._fraction.items() if name not in self.ended)
        return f"{duration(left * (time.monotonic() - self._started) / done)} left" if done > 0 and left else ""

    def _fraction_done(self, run: SweepRun) -> float:
        """Return how much of a run is done, from 0 to 1."""
        if self.ended.get(run.name) == "done":
            return 1.0
        return last_records(run.folder).get("step", 0) / run.settings["steps"] if run.kind == "train" else 0.0

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def last_records(folder: Path) -> dict[str, float]:
    """Return the last numbers of a training run's metrics, {} if there are none yet."""
    try:
        with (folder / METRICS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    last: dict[str, float] = {}
    for line in lines:
        with suppress(ValueError, AttributeError):
            last |= {name: value for name, value in json.loads(line).items() if type(value) in (int, float)}
    return last


def duration(seconds: float) -> str:
    """Return a time for people: "40 s", "12 min", "3.4 h", "17 days"."""
    for unit, length, until in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600)):
        if seconds < until:
            return f"{seconds / length:.1f} {unit}" if unit == "h" else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
