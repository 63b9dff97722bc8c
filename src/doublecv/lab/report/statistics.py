"""Compute the numbers of a report: means over seeds in the cells of the paper's tables, beside the paper's own numbers.

A cell is one estimator on one data set with one network, one likelihood, one K and one number of steps: runs of
different lengths are never averaged. The paper is Titsias and Shi (2022); its numbers are in paper/*.csv.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import hypot, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from doublecv import estimators
from doublecv.lab.report.collect import Run
from doublecv.lab.sweep.plan import PAPER_STEPS
from doublecv.lab.train.settings import TrainSettings

CLEAR = 2.0
"""Two numbers differ clearly if they differ by more than this multiple of their combined +-."""

TIME_SAMPLES = 4
"""The K of the paper's times per step."""
RELAXED_SAMPLES = 2
"""The K of the table that has the paper's numbers for RELAX; the table of K = 4 in its section 5 repeats them."""

DATASETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "omniglot": "Omniglot 28x28", "digits": "digits"}
ESTIMATORS = ("rloo", "double-cv", "disarm", "arms", "relax")
"""The order of the paper's tables."""
INDEPENDENT, PAPER_INDEPENDENT = "-independent", ("disarm", "arms")
"""The end of an estimator's name in a cell with independent decoder samples, and those that the paper trained so."""


class Estimate(NamedTuple):
    """A mean and its +-: the standard error for our means, None for a single seed; the paper's +- is not explained."""

    mean: float
    plus_minus: float | None = None


def estimate(values: Sequence[float]) -> Estimate:
    r"""Return the mean of n values with its standard error.

    .. math:: s / \sqrt{n}, \quad s^2 = \frac{1}{n - 1} \sum_i (v_i - \bar v)^2
    """
    return Estimate(fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None)


class CellKey(NamedTuple):
    """The place of a cell in the paper's tables; `samples` is the K of the table."""

    likelihood: str
    samples: int
    dataset: str
    network: str
    estimator: str


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell: all its runs, which have the same number of steps, and the training ELBO that the paper published.

    `steps` is None if the sweep has no run for it, and `paper` if the paper does not have this cell.
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
        """Return the mean over the complete runs of a metric's last value; None if there is none."""
        values = [run.records.last[metric] for run in self.complete if metric in run.records.last]
        return estimate(values) if values else None

    @property
    def difference(self) -> float | None:
        """The measured training ELBO minus the paper's."""
        measured = self.measured()
        return None if measured is None or self.paper is None else measured.mean - self.paper.mean

    @property
    def difference_in_plus_minus(self) -> float | None:
        r"""The difference over the combined +-, :math:`(m_1 - m_2) / \sqrt{\pm_1^2 + \pm_2^2}`.

        The combined +- is the paper's where a single seed has none.
        """
        measured = self.measured()
        if measured is None or self.difference is None or self.paper is None:
            return None
        combined = hypot(measured.plus_minus or 0.0, self.paper.plus_minus or 0.0)
        return self.difference / combined if combined > 0 else None

    @property
    def verdict(self) -> str:
        """Whether the paper's number is reproduced, which only runs of the paper's length can tell."""
        if self.complete:
            if self.steps != PAPER_STEPS:
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
    found |= {(key, None): [] for key in published.keys() - {key for key, _ in found}}

    def order(place: tuple[CellKey, int | None]) -> tuple[object, ...]:
        (likelihood, samples, dataset, network, estimator), steps = place
        return likelihood, samples, list(DATASETS).index(dataset), network, _estimator_order(estimator), steps or 0

    def paper(key: CellKey) -> Estimate | None:
        name = key.estimator.removesuffix(INDEPENDENT)
        again = key._replace(samples=RELAXED_SAMPLES) if key.estimator == "relax" else key
        as_printed = key._replace(estimator=name) if name in PAPER_INDEPENDENT else again
        return published.get(key, published.get(as_printed))

    return tuple(Cell(*place, tuple(found[place]), paper(place[0])) for place in sorted(found, key=order))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return each estimator once: the paper's in its order, then the others in the order of the registry."""
    return tuple(sorted(set(names), key=_estimator_order))


def _estimator_order(name: str) -> tuple[int, str]:
    bare = name.removesuffix(INDEPENDENT)
    order = (*ESTIMATORS, *(other for other in estimators.names() if other not in ESTIMATORS), bare)
    return order.index(bare), name


def _keys(settings: TrainSettings, planned: Sequence[TrainSettings]) -> set[CellKey]:
    """Return the cells that a run belongs to: RELAX and REBAR with one sample are in the tables of every K."""
    tables = {settings.samples}
    if settings.samples == 1 and settings.make_estimator().needs.relaxed_points:
        others = {other.samples for other in planned if other.likelihood == settings.likelihood}
        tables = others - {1} or {RELAXED_SAMPLES}
    variant = INDEPENDENT if settings.decoder_samples == "independent" else ""
    place = settings.dataset, settings.network, settings.estimator + variant
    return {CellKey(settings.likelihood, samples, *place) for samples in tables}


@cache
def paper_elbos() -> dict[CellKey, Estimate]:
    """Return the paper's training ELBOs, means over five runs; RELAX is in the tables of K = 2."""
    found = {}
    for row in _paper("train_elbo.csv"):
        key = CellKey(row["likelihood"], int(row["K"]), row["dataset"], row["network"], row["estimator"])
        found[key] = Estimate(float(row["train_elbo"]), float(row["stderr"]))
    return found


@cache
def paper_seconds_per_step() -> dict[str, float]:
    """Return the paper's seconds per step by estimator, with K = 4 (RELAX: 3 evaluations of f) on a P100 GPU."""
    return {row["estimator"]: float(row["seconds_per_step"]) for row in _paper("seconds_per_step.csv")}


def _paper(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(files(__package__).joinpath("paper", name).read_text(encoding="utf-8").splitlines())
