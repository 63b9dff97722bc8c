"""All that a report is made of, before it is written as anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from doublecv.lab.report.captions import training_scale
from doublecv.lab.report.cells import CellColumn, CellTable, Place, cell_tables
from doublecv.lab.report.runs import Runs, gather
from doublecv.lab.report.statistics import Estimate
from doublecv.lab.report.timing import TimeTable, time_table
from doublecv.lab.sweep.plan import PAPER_STEPS, Sweep
from doublecv.lab.sweep.targets import SEEDS

DATASET_NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "omniglot": "Omniglot", "digits": "digits"}
"""What the paper calls the data sets."""


@dataclass(frozen=True)
class PaperNumbers:
    """What the paper published.

    Attributes:
        elbos: the training ELBO of every cell.
        seconds: the seconds of a training step, by the estimator's name.
        time_samples: the K of these steps.
    """

    elbos: Mapping[Place, Estimate]
    seconds: Mapping[str, float]
    time_samples: int = 4


@dataclass(frozen=True, eq=False)
class Content:
    """A sweep, sorted into the paper's tables."""

    sweep: Sweep
    runs: Runs
    tables: tuple[CellTable, ...]
    times: tuple[TimeTable, ...]

    def scale_of(self, *columns: CellColumn) -> str:
        """The length and number of the runs in these columns, against the paper's."""
        cells = [cell for column in columns for cell in column.cells if cell.counted]
        steps = {run.run.settings["steps"] for cell in cells for run in cell.counted}
        return training_scale(steps, {len(cell.counted) for cell in cells}, PAPER_STEPS, len(SEEDS))


def content(sweep: Sweep, paper: PaperNumbers) -> Content:
    """Read all runs of the sweep and put them beside the paper's numbers."""
    runs = gather(sweep)
    return Content(
        sweep,
        runs,
        cell_tables(sweep.runs, runs.train, paper.elbos),
        tuple(time_table(bench, paper.seconds, paper.time_samples) for bench in runs.bench),
    )


def column_name(column: CellColumn) -> str:
    """As in "Fashion-MNIST, nonlinear"."""
    return f"{DATASET_NAMES.get(column.dataset, column.dataset)}, {column.network}"


def table_title(table: CellTable) -> str:
    """As in "K = 2, Bernoulli likelihood"."""
    return f"K = {table.samples}, {table.likelihood.capitalize()} likelihood"
