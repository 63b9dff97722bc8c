"""The time of a training step beside the paper's: relative to RLOO, since two machines' seconds do not compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from doublecv.lab.bench.results import BASELINE
from doublecv.lab.report.runs import Counted

MINUTE = 60_000
"""Milliseconds."""


@dataclass(frozen=True)
class TimeCell:
    """One line of a benchmark.

    Attributes:
        workload: "step" for a step of training, "gradient" for the gradient of the expectation alone.
        baseline_samples: the K of RLOO, which the line is relative to.
        estimator: its name, or "floor" for the matrix products of a step alone.
        samples: its own K.
        evaluations: of f, in one estimate; 0 for the floor.
        milliseconds: the median over the rounds.
        ratio: the median over the rounds of the time relative to RLOO's in the same round.
        ratios: of every round.
        paper_seconds: the paper's time of a step, if it has one.
        paper_ratio: the same relative to the paper's RLOO.
    """

    workload: str
    baseline_samples: int
    estimator: str
    samples: int
    evaluations: int
    milliseconds: float
    ratio: float
    ratios: tuple[float, ...]
    paper_seconds: float | None
    paper_ratio: float | None


@dataclass(frozen=True)
class TimeTable:
    """All lines of one benchmark."""

    name: str
    library: str
    rounds: int
    calls: int
    cells: tuple[TimeCell, ...]

    def step_milliseconds(self, samples: int) -> dict[str, float]:
        """The time of a training step by estimator, at the K of a table; empty if that K was not timed."""
        return {
            cell.estimator: cell.milliseconds
            for cell in self.cells
            if cell.workload == "step" and cell.baseline_samples == samples
        }


def time_table(bench: Counted[Mapping[str, Any]], paper_seconds: Mapping[str, float], paper_samples: int) -> TimeTable:
    """The lines of a benchmark beside the paper's times, which are of a step with K = `paper_samples`."""
    document = bench.result
    rows: list[Mapping[str, Any]] = document["rows"]

    def cell(row: Mapping[str, Any]) -> TimeCell:
        comparable = row["workload"] == "step" and row["baseline_samples"] == paper_samples
        seconds = paper_seconds.get(row["estimator"]) if comparable else None
        return TimeCell(
            row["workload"],
            row["baseline_samples"],
            row["estimator"],
            row["samples"],
            row["evaluations"],
            row["milliseconds"],
            row["ratio"],
            _ratios(row, rows),
            seconds,
            None if seconds is None else seconds / paper_seconds[BASELINE],
        )

    return TimeTable(bench.run.name, document["library"], document["rounds"], document["calls"], tuple(map(cell, rows)))


def _ratios(row: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> tuple[float, ...]:
    """The time of every round relative to RLOO's in it."""
    group = ("workload", "baseline_samples")
    rloo = next(
        other for other in rows if other["estimator"] == BASELINE and all(other[key] == row[key] for key in group)
    )
    return tuple(mine / theirs for mine, theirs in zip(row["rounds"], rloo["rounds"], strict=True))
