"""The cells of the paper's tables: the training ELBO of each estimator, measured and published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from doublecv import estimators
from doublecv.estimators import make
from doublecv.lab.common.errors import InputError
from doublecv.lab.report.runs import Counted, Records
from doublecv.lab.report.statistics import (
    Estimate,
    OrderAgreement,
    difference_in_standard_errors,
    estimate,
    order_agreement,
)
from doublecv.lab.sweep.plan import SweepRun

DATASETS = ("mnist", "fashion-mnist", "omniglot")
NETWORKS = ("linear", "nonlinear")
ESTIMATORS = ("rloo", "double-cv", "disarm", "arms", "relax")
"""The order of the paper's tables."""

RELAXED_SAMPLES = 1
"""The samples of RELAX and REBAR in the paper's tables, whatever the K of the others: three evaluations of f."""

RELAXED_PAPER_SAMPLES = 2
"""The K of the table that has the paper's numbers for RELAX; that of K = 4 in its section 5 repeats them."""


class Place(NamedTuple):
    """Where a cell is."""

    likelihood: str
    samples: int
    dataset: str
    network: str
    estimator: str


@dataclass(frozen=True, eq=False)
class Cell:
    """One estimator on one data set.

    Attributes:
        estimator: its name.
        planned: the runs that the sweep has for it.
        counted: those of them that are whole.
        paper: the paper's training ELBO, if it has this cell.
    """

    estimator: str
    planned: tuple[SweepRun, ...]
    counted: tuple[Counted[Records], ...]
    paper: Estimate | None

    def values(self, metric: str) -> tuple[float, ...]:
        """The last value of a metric, of every seed that has it."""
        last = (run.result.last(metric) for run in self.counted)
        return tuple(value for value in last if value is not None)

    def measured(self, metric: str = "train_elbo") -> Estimate | None:
        """The mean over the seeds; None if the cell was not run.

        `train_elbo` is what the paper's tables have: the average ELBO over the whole training set, after the last step.
        """
        values = self.values(metric)
        return estimate(values) if values else None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that count."""
        return tuple(run.run.settings["seed"] for run in self.counted)

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        measured = self.measured()
        return None if measured is None or self.paper is None else measured.mean - self.paper.mean

    @property
    def difference_in_standard_errors(self) -> float | None:
        """The same in units of the combined standard error."""
        measured = self.measured()
        return None if measured is None or self.paper is None else difference_in_standard_errors(measured, self.paper)


@dataclass(frozen=True, eq=False)
class CellColumn:
    """All estimators on one data set with one network: what is ranked."""

    dataset: str
    network: str
    cells: tuple[Cell, ...]

    @property
    def is_planned(self) -> bool:
        """Whether the sweep has a run for it."""
        return any(cell.planned for cell in self.cells)

    @cached_property
    def comparable(self) -> tuple[Cell, ...]:
        """The cells that are both measured and published."""
        return tuple(cell for cell in self.cells if cell.counted and cell.paper is not None)

    @property
    def agreement(self) -> OrderAgreement | None:
        """How far the order of the estimators is the paper's."""
        measured = {cell.estimator: found for cell in self.comparable if (found := cell.measured()) is not None}
        return order_agreement(measured, {cell.estimator: cell.paper for cell in self.comparable if cell.paper})


@dataclass(frozen=True, eq=False)
class CellTable:
    """One of the paper's tables: a likelihood and a K, all runs of one length.

    Attributes:
        likelihood: "bernoulli" or "gaussian".
        samples: K.
        steps: how long the runs are.
        columns: the paper's, in its order, then those that it does not have.
    """

    likelihood: str
    samples: int
    steps: int
    columns: tuple[CellColumn, ...]

    @property
    def name(self) -> str:
        """The name of the target that makes it, with the length of the runs."""
        return f"table-k{self.samples}-{self.likelihood}-{self.steps}-steps"

    @property
    def planned_columns(self) -> tuple[CellColumn, ...]:
        """The columns that the sweep has runs for."""
        return tuple(column for column in self.columns if column.is_planned)

    @property
    def estimators(self) -> tuple[str, ...]:
        """The estimators of all columns, in order."""
        return _in_order((cell.estimator for column in self.columns for cell in column.cells), ESTIMATORS)


def cell_tables(
    planned: Iterable[SweepRun], counted: Iterable[Counted[Records]], paper: Mapping[Place, Estimate]
) -> tuple[CellTable, ...]:
    """Sort runs into the paper's tables; an `InputError` where two are the same seed of the same cell."""
    runs = [run for run in planned if run.kind == "train"]
    whole = {run.run.name: run for run in counted}
    tables = sorted({(*key, run.settings["steps"]) for run in runs for key in _tables_of(run, runs)})
    return tuple(
        CellTable(likelihood, samples, steps, _columns(likelihood, samples, _of_table(key, runs), whole, paper))
        for key in tables
        for likelihood, samples, steps in [key]
    )


def _of_table(key: tuple[str, int, int], runs: Sequence[SweepRun]) -> list[SweepRun]:
    return [run for run in runs if run.settings["steps"] == key[-1] and key[:2] in _tables_of(run, runs)]


def _tables_of(run: SweepRun, runs: Iterable[SweepRun]) -> set[tuple[str, int]]:
    """The likelihood and K of every table that the run is part of.

    RELAX and REBAR with one sample stand in the tables of every K that the sweep has, as in the paper.
    """
    likelihood, samples = run.settings["likelihood"], run.settings["samples"]
    if not _is_relaxed(run):
        return {(likelihood, samples)}
    others = {
        other.settings["samples"]
        for other in runs
        if other.settings["likelihood"] == likelihood and not _is_relaxed(other)
    }
    return {(likelihood, samples) for samples in others or {RELAXED_PAPER_SAMPLES}}


def _is_relaxed(run: SweepRun) -> bool:
    name, samples = run.settings["estimator"], run.settings["samples"]
    return samples == RELAXED_SAMPLES and name in estimators.names() and make(name, samples).needs.relaxed_points > 0


def _columns(
    likelihood: str,
    samples: int,
    runs: Sequence[SweepRun],
    whole: Mapping[str, Counted[Records]],
    paper: Mapping[Place, Estimate],
) -> tuple[CellColumn, ...]:
    published = [place for place in paper if (place.likelihood, place.samples) == (likelihood, samples)]
    datasets = _in_order([place.dataset for place in published] + [run.settings["dataset"] for run in runs], DATASETS)
    columns = []
    for dataset in datasets:
        for network in NETWORKS:
            here = [run for run in runs if (run.settings["dataset"], run.settings["network"]) == (dataset, network)]
            names = {place.estimator for place in published if (place.dataset, place.network) == (dataset, network)}
            names |= {run.settings["estimator"] for run in here}
            cells = [
                _cell(Place(likelihood, samples, dataset, network, name), here, whole, paper)
                for name in _in_order(names, ESTIMATORS)
            ]
            if cells:
                columns.append(CellColumn(dataset, network, tuple(cells)))
    return tuple(columns)


def _cell(
    place: Place, runs: Iterable[SweepRun], whole: Mapping[str, Counted[Records]], paper: Mapping[Place, Estimate]
) -> Cell:
    planned = tuple(run for run in runs if run.settings["estimator"] == place.estimator)
    by_seed: dict[int, SweepRun] = {}
    for run in planned:
        if (other := by_seed.setdefault(run.settings["seed"], run)) is not run:
            raise InputError(
                f"{other.name} and {run.name} are both seed {run.settings['seed']} of {place.estimator} on "
                f"{place.dataset}; remove one of them from the sweep"
            )
    published = paper.get(place)
    if published is None and place.estimator == "relax":
        published = paper.get(place._replace(samples=RELAXED_PAPER_SAMPLES))
    return Cell(place.estimator, planned, tuple(whole[run.name] for run in planned if run.name in whole), published)


def _in_order(names: Iterable[str], first: Sequence[str]) -> tuple[str, ...]:
    """Each name once: those of `first` in its order, then the registry's order, then the alphabet's."""
    order = (*first, *(name for name in estimators.names() if name not in first))
    return tuple(sorted(set(names), key=lambda name: (order.index(name) if name in order else len(order), name)))
