"""The runs of a sweep as a report counts them: those that are whole, and by name those that are not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from doublecv.lab.common import run_folder
from doublecv.lab.report import toy as report_toy
from doublecv.lab.sweep.plan import BENCH, FAILURE, Sweep, SweepRun
from doublecv.lab.toy.results import ToyResults
from doublecv.lab.train import metrics

NAMES_OF_0_1 = {"dataset": "data", "network": "model"}
"""The names of settings in the folders that version 0.1 wrote."""

MUST_AGREE = ("dataset", "likelihood", "network", "samples", "estimator", "seed", "steps")
"""The settings of a training run that a report groups by: the sweep and the run's own folder must say the same."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Records:
    """The records of one training run, of one seed."""

    lines: tuple[Mapping[str, Any], ...]

    def last(self, name: str) -> float | None:
        """The last value of a metric; None if it was never recorded."""
        return next((line[name] for line in reversed(self.lines) if name in line), None)

    def curve(self, name: str) -> dict[int, float]:
        """The values of a metric by the number of steps done."""
        return {line["step"]: line[name] for line in self.lines if name in line}


class Counted(NamedTuple, Generic[Result]):
    """A whole run and what it found."""

    run: SweepRun
    result: Result


class Uncounted(NamedTuple):
    """A run that does not count, and why."""

    run: SweepRun
    why: str


@dataclass(frozen=True)
class Runs:
    """All runs of a sweep.

    Attributes:
        train: the training runs that are whole.
        toy: the toy runs that are whole.
        bench: the benchmarks that are whole, as JSON.
        uncounted: all others.
        versions: of every package that had a part in a whole run, all versions that did.
    """

    train: tuple[Counted[Records], ...]
    toy: tuple[Counted[ToyResults], ...]
    bench: tuple[Counted[Mapping[str, Any]], ...]
    uncounted: tuple[Uncounted, ...]
    versions: Mapping[str, tuple[str, ...]]


def gather(sweep: Sweep) -> Runs:
    """Read the folders of all runs; one that cannot be read does not count."""
    train, toy, bench, uncounted = [], [], [], []
    versions: dict[str, dict[str, None]] = {name: {version: None} for name, version in sweep.versions.items()}
    for run in sweep.runs:
        if (state := run.state()) != "done":
            uncounted.append(Uncounted(run, _why(run, state)))
            continue
        try:
            if run.kind == "train":
                train.append(Counted(run, _read_training(run)))
            elif run.kind == "toy":
                toy.append(Counted(run, report_toy.read(run.folder)))
            else:
                bench.append(Counted(run, _read_bench(run.folder)))
            for name, version in _versions(run).items():
                versions.setdefault(name, {})[version] = None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            uncounted.append(Uncounted(run, f"cannot be read: {type(error).__name__}: {error}"))
    return Runs(
        tuple(train),
        tuple(toy),
        tuple(bench),
        tuple(uncounted),
        {name: tuple(found) for name, found in versions.items()},
    )


def _read_training(run: SweepRun) -> Records:
    config = _config(run)
    for name in MUST_AGREE:
        settings = config["settings"]
        if (held := settings[name if name in settings else NAMES_OF_0_1[name]]) != run.settings[name]:
            raise ValueError(f"the folder holds a run with {name} {held}, not {run.settings[name]}")
    lines = (run.folder / metrics.FILE).read_text().splitlines()
    records = Records(tuple(_of_seed(map(json.loads, lines), run.settings["seed"])))
    if records.last("train_elbo") is None:
        raise ValueError(f"{metrics.FILE} has no train_elbo")
    if (last := max(line["step"] for line in records.lines)) != run.settings["steps"]:
        raise ValueError(f"{metrics.FILE} ends at step {last} of {run.settings['steps']}")
    return records


def _of_seed(lines: Iterable[Mapping[str, Any]], seed: int) -> Iterable[Mapping[str, Any]]:
    return (line for line in lines if line["seed"] == seed)


def _read_bench(folder: Path) -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads((folder / BENCH).read_text())
    for row in document["rows"]:
        if (
            not {"workload", "estimator", "samples", "baseline_samples", "milliseconds", "ratio", "rounds"}
            <= row.keys()
        ):
            raise ValueError(f"{BENCH} has a row without its times")
    return document


def _versions(run: SweepRun) -> Mapping[str, str]:
    if run.kind == "bench":
        return {}
    config = _config(run)
    return {**config["versions"], "platform": config["platform"]}


def _config(run: SweepRun) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((run.folder / run_folder.CONFIG).read_text())
    return config


def _why(run: SweepRun, state: str) -> str:
    if state == "failed":
        said = (run.folder / FAILURE).read_text(errors="replace").strip().splitlines()
        return f"failed: {said[0]}" if said else "failed"
    return {"interrupted": "interrupted", "running": "still running", "waiting": "not begun"}[state]
