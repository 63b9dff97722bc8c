"""Display all runs of a sweep: done, running with step and ELBO, waiting, time left.

The time left follows from the multiplications of the runs. A layer takes one pass of its matrix product forward and two
backward; the points of the relaxed control variates are differentiated twice, which takes two more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from doublecv import estimators
from doublecv.lab.bench.problem import STEPS
from doublecv.lab.common.errors import InputError
from doublecv.lab.data.catalogue import size
from doublecv.lab.sweep.plan import SweepRun, own_samples
from doublecv.lab.sweep.worker import single_threaded
from doublecv.lab.train.results import METRICS

COMPILATION = 1e11
"""The cost of compiling a program, some seconds."""

TOY_OPERATION = 400
"""The cost of one binary variable in one estimate of the toy problem."""

MEASURE = """
from doublecv.diagnostics.timing import median_times
from doublecv.estimators import make
from doublecv.lab.bench.jax import step
print(median_times([step(make("rloo", 2))], 5)[0])
"""
"""Print the seconds of `STEPS` training steps, for a process of its own that has one thread, as a run has."""

TAIL = 4096
"""Bytes at the end of the metrics that are sure to hold a complete line."""


class SweepProgress:
    """Display a sweep on standard error: a bar on a terminal, and one line for every run that ends."""

    def __init__(self, runs: Sequence[SweepRun]) -> None:
        self.runs = runs
        self.ended = {run.name: "done" for run in runs if run.is_done()}
        self.reasons: dict[str, str] = {}
        self._is_stopping = False
        self._work = {run.name: work(run) for run in runs}
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        hidden = not self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, transient=True, disable=hidden)
        self._task = self._bar.add_task("", total=sum(self._work.values()))

    def __enter__(self) -> SweepProgress:
        if self.ended:
            self._say(f"{len(self.ended)} of {len(self.runs)} runs are done already")
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, submitted: Iterable[SweepRun]) -> None:
        """Update the bar with what is done and with the last numbers of the runs that are under way."""
        done, shown = sum(self._work[name] for name, how in self.ended.items() if how == "done"), []
        for run in submitted:
            last = last_records(run.folder)
            if "elbo" in last:
                done += self._work[run.name] * last["step"] / run.settings["steps"]
                shown.append(f"{run.name}: {last['step']} steps, ELBO {last['elbo']:.2f}")
        shown.append(f"{len(self.ended)} of {len(self.runs)} runs ended")
        self._bar.update(self._task, completed=done, description="\n".join(shown))

    def end(self, run: SweepRun, how: str, reason: str = "") -> None:
        """Report that a run has ended: "done", "failed" for a reason, or "stopped"."""
        self.ended[run.name], self.reasons[run.name] = how, reason
        last = last_records(run.folder)
        if how != "stopped":
            elbo = f"  ELBO {last['train_elbo']:.2f}" if how == "done" and "train_elbo" in last else ""
            self._say(f"{how:<7}  {len(self.ended)}/{len(self.runs)}  {run.name}{elbo}")
        elif "step" in last:
            self._say(f"{how:<7}  {run.name}  at step {last['step']}")

    def stopping(self) -> None:
        """Report that Ctrl-C was noticed; saving takes a moment."""
        if not self._is_stopping:
            self._say("stopping: the runs save first")
        self._is_stopping = True

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


def work(run: SweepRun) -> float:
    """Return the multiplications of a complete run."""
    settings = run.settings
    if run.kind == "toy":
        records = settings["iterations"] / settings["every"]
        draws = settings["draws"] * records * settings["seeds"] * len(settings["estimators"])
        variables = draws * settings["samples"] * settings["dimension"]
        return float(TOY_OPERATION * variables + COMPILATION * len(settings["estimators"]))
    if run.kind == "bench":
        timed = [(name, own_samples(name, K)) for K in settings["samples"] for name in settings["estimators"]]
        one_step = sum(step_work(name, samples, "nonlinear", 784, 100) for name, samples in timed)
        return float(2 * COMPILATION * len(timed) + STEPS * settings["calls"] * settings["rounds"] * one_step)
    images = size(settings["dataset"])
    samples, steps = settings["samples"], settings["steps"]
    network, batch, latents = settings["network"], settings["batch"], settings["latents"]
    one_step = step_work(settings["estimator"], samples, network, images.pixels, batch, latents)
    evaluations = steps / settings["evaluate_every"] * (images.train + images.validation) * (1 + samples)
    at_the_end = images.test * (2 + samples + settings["bound_samples"])
    weights = _weights(network, images.pixels, latents)
    return float(COMPILATION + steps * one_step + (evaluations + at_the_end) * weights)


def step_work(name: str, samples: int, network: str, pixels: int, batch: int, latents: int = 200) -> float:
    """Return the multiplications of one training step."""
    estimator = estimators.make(name, samples)
    passes = 5 if estimator.needs.relaxed_points else 3
    return float(batch * (3 + passes * estimator.evaluations) * _weights(network, pixels, latents))


def _weights(network: str, pixels: int, latents: int, hidden: int = 200) -> int:
    """Return the number of weights of the encoder, which is also that of the decoder."""
    return pixels * latents if network == "linear" else (pixels + hidden + latents) * hidden


def multiplications_per_second() -> float:
    """Measure the speed of one core in training."""
    print("measuring a training step ...", file=sys.stderr)
    environment = os.environ | single_threaded()
    found = subprocess.run([sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True)
    if found.returncode:
        raise InputError(f"a training step could not be measured: {(found.stderr.splitlines() or ['no reason'])[-1]}")
    return STEPS * step_work("rloo", 2, "nonlinear", 784, 100) / float(found.stdout)


def duration(seconds: float) -> str:
    """Return a time for people: "40 s", "12 min", "3.4 h", "17 days"."""
    for unit, length, until in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600)):
        if seconds < until:
            return f"{seconds / length:.1f} {unit}" if unit == "h" else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
