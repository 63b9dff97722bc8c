"""Sort training runs into the cells of the paper's tables, and compare each cell with the paper's number.

A cell is one estimator on one data set with one network, one likelihood, one K and one number of steps: runs of
different lengths are never averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from doublecv import estimators
from doublecv.lab.report import paper
from doublecv.lab.report.collect import Run
from doublecv.lab.report.statistics import CLEAR, Estimate, difference_in_plus_minus, estimate
from doublecv.lab.train.settings import TrainSettings

DATASETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "omniglot": "Omniglot 28x28", "digits": "digits"}
ESTIMATORS = ("rloo", "double-cv", "disarm", "arms", "relax")
"""The order of the paper's tables."""

RELAXED_PAPER_SAMPLES = 2
"""The K of the table that has the paper's numbers for RELAX; the table of K = 4 in its section 5 repeats them."""


class CellKey(NamedTuple):
    """The place of a cell in the paper's tables; `samples` is the K of the table."""

    likelihood: str
    samples: int
    dataset: str
    network: str
    estimator: str


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell: what was measured and what the paper published.

    Attributes:
        key: its place in the tables.
        steps: the number of steps of its runs; None if the sweep has no run for it.
        runs: all its runs, with numbers or not.
        paper: the paper's training ELBO, if it has this cell.
    """

    key: CellKey
    steps: int | None
    runs: tuple[Run, ...]
    paper: Estimate | None

    @property
    def complete(self) -> list[Run]:
        """The complete runs."""
        return [run for run in self.runs if run.state == "complete"]

    @property
    def unfinished(self) -> list[Run]:
        """The runs that have numbers and did not finish."""
        return [run for run in self.runs if run.state != "complete" and run.records.last]

    def measured(self, metric: str = "train_elbo") -> Estimate | None:
        """Return the mean over the complete runs of a metric's last value; None if there is none.

        `train_elbo` is the number of the paper's tables: the average ELBO over the training set after the last step.
        """
        values = [run.records.last[metric] for run in self.complete if metric in run.records.last]
        return estimate(values) if values else None

    @property
    def difference(self) -> float | None:
        """The measured training ELBO minus the paper's."""
        measured = self.measured()
        return None if measured is None or self.paper is None else measured.mean - self.paper.mean

    @property
    def difference_in_plus_minus(self) -> float | None:
        """The difference over the combined +-, which is the paper's where a single seed has none."""
        measured = self.measured()
        if measured is None or self.paper is None:
            return None
        return difference_in_plus_minus(Estimate(measured.mean, measured.plus_minus or 0.0), self.paper)

    @property
    def verdict(self) -> str:
        """Whether the paper's number is reproduced, which only runs of the paper's length can tell."""
        if self.complete:
            if self.steps != paper.STEPS:
                return f"{self.steps:,} steps"
            if (distance := self.difference_in_plus_minus) is None:
                return "not in the paper"
            return "reproduced" if abs(distance) <= CLEAR else "not reproduced"
        if self.unfinished:
            return "not finished"
        return "damaged" if any(run.state == "damaged" for run in self.runs) else "not run"


def make_cells(runs: Sequence[Run], published: Mapping[CellKey, Estimate]) -> tuple[Cell, ...]:
    """Return all cells of the sweep and of the paper, in the order of the paper's tables, then by steps."""
    planned = [(run, run.settings) for run in runs if run.settings is not None]
    found: dict[tuple[CellKey, int | None], list[Run]] = {}
    for run, settings in planned:
        for key in _keys(settings, [other for _, other in planned]):
            found.setdefault((key, settings.steps), []).append(run)
    run_keys = {key for key, _ in found}
    found |= {(key, None): [] for key in published if key not in run_keys}
    return tuple(
        Cell(key, steps, tuple(found[key, steps]), _published(key, published))
        for key, steps in sorted(found, key=lambda one: _order(*one))
    )


def paper_numbers() -> dict[CellKey, Estimate]:
    """Return the paper's training ELBOs by the place of the cell."""
    return {
        CellKey(one.likelihood, one.samples, one.dataset, one.network, one.estimator): Estimate(
            one.train_elbo, one.plus_minus
        )
        for one in paper.train_elbos()
    }


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return each estimator once: the paper's in its order, then the others in the order of the registry."""
    return tuple(sorted(set(names), key=_estimator_order))


def is_relaxed(name: str, samples: int) -> bool:
    """Return whether an estimator evaluates f at relaxed points: one sample then stands in the tables of every K."""
    return estimators.make(name, samples).needs.relaxed_points > 0


def _keys(settings: TrainSettings, planned: Sequence[TrainSettings]) -> set[CellKey]:
    """Return the cells that a run belongs to: RELAX and REBAR with one sample are in the tables of every K."""
    tables = {settings.samples}
    if _stands_everywhere(settings):
        others = [other for other in planned if other.likelihood == settings.likelihood]
        tables = {other.samples for other in others if not _stands_everywhere(other)} or {RELAXED_PAPER_SAMPLES}
    place = settings.dataset, settings.network, settings.estimator
    return {CellKey(settings.likelihood, samples, *place) for samples in tables}


def _stands_everywhere(settings: TrainSettings) -> bool:
    return settings.samples == 1 and is_relaxed(settings.estimator, 1)


def _published(key: CellKey, published: Mapping[CellKey, Estimate]) -> Estimate | None:
    if key not in published and key.estimator == "relax":
        key = key._replace(samples=RELAXED_PAPER_SAMPLES)
    return published.get(key)


def _order(key: CellKey, steps: int | None) -> tuple[object, ...]:
    place = key.likelihood, key.samples, list(DATASETS).index(key.dataset), key.network
    return *place, _estimator_order(key.estimator), steps or 0


def _estimator_order(name: str) -> tuple[int, str]:
    order = (*ESTIMATORS, *(other for other in estimators.names() if other not in ESTIMATORS), name)
    return order.index(name), name
