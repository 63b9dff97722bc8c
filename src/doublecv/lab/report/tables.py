"""The tables of the page and of the Markdown file."""

from __future__ import annotations

from math import isfinite, isnan

from doublecv.lab.common.style import appearance
from doublecv.lab.report.captions import toy_scale
from doublecv.lab.report.cells import Cell, CellColumn, CellTable
from doublecv.lab.report.content import DATASET_NAMES, Content, column_name, table_title
from doublecv.lab.report.runs import Counted
from doublecv.lab.report.statistics import CLEAR
from doublecv.lab.report.table import (
    Column,
    Entry,
    Table,
    number,
    significant,
    with_error,
    words,
)
from doublecv.lab.report.timing import TimeCell, TimeTable
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import REACHED, ToyResults, summarise

BOUND = "test_bound_100"
"""The bound with 100 samples, of which the paper speaks."""

PLACE = (Column("data set", numeric=False), Column("network", numeric=False), Column("estimator", numeric=False))
"""The headings that say which cell a row is of."""


def place(column: CellColumn, cell: Cell) -> tuple[Entry, ...]:
    """Which cell a row is of."""
    dataset = DATASET_NAMES.get(column.dataset, column.dataset)
    return words(dataset), words(column.network), words(appearance(cell.estimator).label)


def elbo_table(content: Content, table: CellTable) -> Table:
    """Every cell, measured and published."""
    columns = table.planned_columns
    return Table(
        table.name,
        f"Training ELBO, {table_title(table)}",
        f"{content.scale_of(*columns)}. Average ELBO over the whole training set after the last step: the mean over "
        "the seeds with its standard error. The last column is the difference over the combined standard error of both "
        "numbers. RELAX has one sample, three evaluations of f. What was not run is empty.",
        (
            *PLACE,
            Column("measured"),
            Column("seeds"),
            Column("paper"),
            Column("difference"),
            Column("in standard errors"),
        ),
        tuple(
            (
                *place(column, cell),
                with_error(cell.measured()),
                number(len(cell.counted) or None, 0),
                with_error(cell.paper),
                number(cell.difference, 2, signed=True),
                number(cell.difference_in_standard_errors, 1, signed=True),
            )
            for column in columns
            for cell in column.cells
        ),
        row_headings=len(PLACE),
    )


def order_table(content: Content) -> Table | None:
    """How far the order of the estimators is the paper's, for every column with two of the paper's estimators."""
    compared = [
        (table, column, agreement)
        for table in content.tables
        for column in table.planned_columns
        if (agreement := column.agreement) is not None
    ]
    if not compared:
        return None
    return Table(
        "order",
        "Order of the estimators",
        f"{content.scale_of(*(column for _, column, _ in compared))}. By training ELBO, the best first, of the "
        "estimators that both have. Pairs are clear when they are apart by more than "
        f"{CLEAR:.0f} combined standard errors both here and in the paper. Tau is Kendall's: 1 for the same order, "
        "-1 for the reverse.",
        (
            Column("table", numeric=False),
            Column("column", numeric=False),
            Column("measured order", numeric=False),
            Column("paper's order", numeric=False),
            Column("same", numeric=False),
            Column("tau"),
            Column("pairs that agree"),
            Column("clear pairs that agree"),
        ),
        tuple(
            (
                words(table_title(table)),
                words(column_name(column)),
                words(_order([(cell, found.mean) for cell in column.comparable if (found := cell.measured())])),
                words(_order([(cell, cell.paper.mean) for cell in column.comparable if cell.paper])),
                words("yes" if agreement.is_whole else "no"),
                number(agreement.tau, 2),
                _share(agreement.agreeing, agreement.pairs),
                _share(agreement.clear_agreeing, agreement.clear),
            )
            for table, column, agreement in compared
        ),
        row_headings=2,
    )


def other_table(content: Content, table: CellTable) -> Table:
    """What the paper's tables do not have: the test set, the gradient's variance, alpha."""
    columns = [column for column in table.planned_columns if any(cell.counted for cell in column.cells)]
    return Table(
        f"{table.name}-more",
        f"Test set, variance and alpha, {table_title(table)}",
        f"{content.scale_of(*columns)}. Means over the seeds with their standard errors, after the last step. The "
        "bound has 100 samples; the variance is that of the encoder's gradient.",
        (
            *PLACE,
            Column("validation ELBO"),
            Column("test ELBO"),
            Column("test bound"),
            Column("gradient variance"),
            Column("alpha"),
        ),
        tuple(
            (
                *place(column, cell),
                with_error(cell.measured("validation_elbo")),
                with_error(cell.measured("test_elbo")),
                with_error(cell.measured(BOUND)),
                _mean(cell, "encoder_variance"),
                with_error(cell.measured("alpha"), 3),
            )
            for column in columns
            for cell in column.cells
            if cell.counted
        ),
        row_headings=len(PLACE),
    )


def times_table(content: Content, table: TimeTable) -> Table:
    """The time of a step beside the paper's."""
    return Table(
        f"time-{table.name}",
        "Time per step",
        f"{table.library}{_machine(content)}, medians over {table.rounds} rounds of {table.calls} calls; the paper's "
        "times are from a P100 GPU. Only the ratios to RLOO compare; the range is that of the rounds. RELAX has one "
        "sample, three evaluations of f; the floor is the step's matrix products alone.",
        (
            Column("estimator", numeric=False),
            Column("K of RLOO"),
            Column("evaluations of f"),
            Column("milliseconds"),
            Column("relative to RLOO"),
            Column("range"),
            Column("paper, milliseconds"),
            Column("paper, relative to RLOO"),
        ),
        tuple(_time_row(cell) for cell in table.cells if cell.workload == "step"),
    )


def _machine(content: Content) -> str:
    machine = content.sweep.machine
    return f" ({machine['processor']}, {machine['cores']} cores)" if {"processor", "cores"} <= machine.keys() else ""


def _time_row(cell: TimeCell) -> tuple[Entry, ...]:
    return (
        words(appearance(cell.estimator).label),
        number(cell.baseline_samples, 0),
        number(cell.evaluations or None, 0),
        number(cell.milliseconds, 2),
        number(cell.ratio, 2),
        Entry(f"{min(cell.ratios):.2f} to {max(cell.ratios):.2f}", max(cell.ratios) - min(cell.ratios)),
        number(None if cell.paper_seconds is None else 1000 * cell.paper_seconds, 1),
        number(cell.paper_ratio, 2),
    )


def toy_table(toy: Counted[ToyResults]) -> Table:
    """The toy experiment in one line an estimator."""
    results = toy.result
    return Table(
        toy.run.name,
        toy_title(results),
        f"{toy_caption(results)}. Variances are relative to RLOO's, medians over iterations and seeds: along the "
        "estimator's own run, over its second half, and exactly at the same logits, over the second half.",
        (
            Column("estimator", numeric=False),
            Column("variance / RLOO"),
            Column("second half"),
            Column("same logits"),
            Column(f"iterations to {REACHED}"),
            Column("final objective"),
        ),
        tuple(
            (
                words(appearance(summary.name).label),
                _known(summary.relative_variance),
                _known(summary.late_relative_variance),
                _known(summary.late_relative_variance_at_same_logits),
                number(summary.reached, 0)
                if isfinite(summary.reached)
                else Entry(f"> {results.settings.iterations:,}", float(results.settings.iterations + 1)),
                number(summary.final_objective, 6),
            )
            for summary in summarise(results)
        ),
    )


def toy_title(results: ToyResults) -> str:
    """As in "Toy problem, D = 200, K = 2"."""
    return f"Toy problem, D = {results.settings.dimension}, K = {results.settings.samples}"


def toy_caption(results: ToyResults) -> str:
    """The scale of a toy run."""
    return toy_scale(results.settings.iterations, ToySettings.iterations, len(results.seeds))


def uncounted_table(content: Content) -> Table | None:
    """The runs that do not count, by name."""
    if not content.runs.uncounted:
        return None
    return Table(
        "not-counted",
        "Runs that do not count",
        f"{len(content.runs.uncounted)} of the {len(content.sweep.runs)} runs of the sweep; their cells are as if they "
        "had not been run.",
        (Column("run", numeric=False), Column("targets", numeric=False), Column("why", numeric=False)),
        tuple(
            (words(left.run.name), words(", ".join(left.run.targets)), words(left.why))
            for left in content.runs.uncounted
        ),
    )


def _order(ranked: list[tuple[Cell, float]]) -> str:
    best_first = sorted(ranked, key=lambda pair: -pair[1])
    return ", ".join(appearance(cell.estimator).label for cell, _ in best_first)


def _share(part: int | None, whole: int | None) -> Entry:
    if part is None or whole is None:
        return Entry()
    return Entry(f"{part} of {whole}", part / whole if whole else "")


def _mean(cell: Cell, metric: str) -> Entry:
    measured = cell.measured(metric)
    if measured is None:
        return Entry()
    mean, error = significant(measured.mean), significant(measured.standard_error, 2)
    return Entry(f"{mean.text} \N{PLUS-MINUS SIGN} {error.text}" if error.text else mean.text, measured.mean)


def _known(ratio: float) -> Entry:
    return significant(None if isnan(ratio) else ratio)
