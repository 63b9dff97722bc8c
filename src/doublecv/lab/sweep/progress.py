"""Display all runs of a sweep: done, running with step and ELBO, waiting, time left."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from doublecv.lab.sweep.cost import work
from doublecv.lab.sweep.plan import SweepRun
from doublecv.lab.train.metrics import FILE as METRICS

TAIL = 4096
"""Bytes at the end of the metrics that are sure to hold a complete line."""


class SweepProgress:
    """Display a sweep on standard error; without a terminal, print one line for every run that ends."""

    def __init__(self, runs: Sequence[SweepRun]) -> None:
        self.runs = runs
        self.console = Console(stderr=True)
        self.running: dict[str, SweepRun] = {}
        self.ended: dict[str, str] = {run.name: "done" for run in runs if run.is_done()}
        self.reasons: dict[str, str] = {}
        self._kept = len(self.ended)
        self._is_stopping = False
        self._work = {run.name: work(run) for run in runs}
        self._fraction_at_start = {run.name: self._fraction_done(run) for run in runs}
        self._started = time.monotonic()
        self._live = Live(console=self.console, get_renderable=self._draw, refresh_per_second=2, transient=True)

    def __enter__(self) -> SweepProgress:
        if self._kept:
            self._say(f"{self._kept} of {len(self.runs)} runs are done already")
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def begin(self, run: SweepRun) -> None:
        """Show a run as running."""
        self.running[run.name] = run

    def end(self, run: SweepRun, how: str, reason: str = "") -> None:
        """Report that a run has ended: "done", "failed" for a reason, or "stopped"."""
        self.running.pop(run.name, None)
        self.ended[run.name] = how
        if reason:
            self.reasons[run.name] = reason
        last, left = last_records(run.folder), self.seconds_left()
        words = [f"{how:<7}", run.name]
        if how == "stopped":
            words += [f"at step {last['step']}"] if "step" in last else []
        else:
            words.insert(1, f"{len(self.ended)}/{len(self.runs)}")
            words += [f"ELBO {last['train_elbo']:.2f}"] if how == "done" and "train_elbo" in last else []
            words += [f"{duration(left)} left"] if left else []
        self._say("  ".join(words))

    def stopping(self) -> None:
        """Report that Ctrl-C was noticed; saving takes a moment."""
        if not self._is_stopping and self.running:
            self._say("stopping: the runs save first")
        self._is_stopping = True

    def seconds_left(self) -> float | None:
        """Return the time left at the pace since the start, None before there is one."""
        fractions = self._fraction_at_start | {run.name: self._fraction_done(run) for run in self.running.values()}
        fractions |= {name: 1.0 for name, how in self.ended.items() if how == "done"}
        done = sum(
            self._work[name] * (fraction - self._fraction_at_start[name]) for name, fraction in fractions.items()
        )
        left = sum(self._work[name] * (1 - fraction) for name, fraction in fractions.items() if name not in self.ended)
        seconds = time.monotonic() - self._started
        return None if done <= 0 else left * seconds / done

    def _fraction_done(self, run: SweepRun) -> float:
        """Return how much of a run is done, from 0 to 1."""
        if self.ended.get(run.name) == "done":
            return 1.0
        return last_records(run.folder).get("step", 0) / run.settings["steps"] if run.kind == "train" else 0.0

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _draw(self) -> RenderableType:
        states = list(self.ended.values())
        waiting = len(self.runs) - len(states) - len(self.running)
        counts = [f"{states.count('done')} done", f"{len(self.running)} running", f"{waiting} waiting"]
        counts += [f"{states.count(how)} {how}" for how in ("failed", "stopped") if how in states]
        left = self.seconds_left()
        counts.append("" if left is None else f"{duration(left)} left")
        lines = Table.grid(padding=(0, 2))
        for run in self.running.values():
            last = last_records(run.folder)
            step, steps = last.get("step", 0), run.settings.get("steps")
            lines.add_row(
                run.name,
                ProgressBar(total=steps, completed=step, width=20) if steps else "",
                f"{step}/{steps}" if steps else "",
                f"ELBO {last['elbo']:.2f}" if "elbo" in last else "",
            )
        return Group(Text("  ".join(counts).rstrip()), lines)


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
