"""The training ELBO against time: steps as long as the sweep's benchmark found them, alone on the machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from doublecv.lab.bench.results import BASELINE
from doublecv.lab.report.cells import Cell, CellTable
from doublecv.lab.report.content import Content, table_title
from doublecv.lab.report.runs import Records
from doublecv.lab.report.statistics import Estimate, estimate
from doublecv.lab.report.table import Column, Table, number, with_error
from doublecv.lab.report.tables import PLACE, place
from doublecv.lab.report.timing import MINUTE


def step_milliseconds(content: Content, table: CellTable) -> Mapping[str, float]:
    """The time of a step by estimator, from the first benchmark that has the table's K; empty if none has."""
    return next((found for times in content.times if (found := times.step_milliseconds(table.samples))), {})


def wall_clock_table(content: Content, table: CellTable) -> Table | None:
    """What each estimator reached in all its steps, and in the time that RLOO takes for them."""
    milliseconds = step_milliseconds(content, table)
    if BASELINE not in milliseconds:
        return None
    columns = [column for column in table.planned_columns if any(cell.counted for cell in column.cells)]
    return Table(
        f"{table.name}-time",
        f"Training ELBO against time, {table_title(table)}",
        f"{content.scale_of(*columns)}. The time of a step is that of the benchmark of this sweep: the runs themselves "
        "shared the machine. In RLOO's time an estimator makes the steps that fit into that of RLOO's "
        f"{table.steps:,}; the ELBO there is interpolated between evaluations.",
        (
            *PLACE,
            Column("milliseconds a step"),
            Column("minutes"),
            Column("ELBO"),
            Column("steps in RLOO's time"),
            Column("ELBO in RLOO's time"),
        ),
        tuple(
            (
                *place(column, cell),
                number(milliseconds[cell.estimator], 2),
                number(table.steps * milliseconds[cell.estimator] / MINUTE, 2),
                with_error(cell.measured()),
                number(steps, 0),
                with_error(elbo_after(cell, steps)),
            )
            for column in columns
            for cell in column.cells
            if cell.counted and cell.estimator in milliseconds
            for steps in [_steps_in_time_of_baseline(table.steps, milliseconds, cell.estimator)]
        ),
        row_headings=len(PLACE),
    )


def _steps_in_time_of_baseline(steps: int, milliseconds: Mapping[str, float], estimator: str) -> int:
    """No more than were made."""
    return min(steps, int(steps * milliseconds[BASELINE] / milliseconds[estimator]))


def elbo_after(cell: Cell, steps: int) -> Estimate | None:
    """The training ELBO after so many steps; None where a seed has no evaluation before them."""
    values = [_interpolated(run.result, steps) for run in cell.counted]
    return None if None in values else estimate([value for value in values if value is not None])


def _interpolated(records: Records, steps: int) -> float | None:
    curve = records.curve("train_elbo")
    known = sorted(curve)
    return float(np.interp(steps, known, [curve[step] for step in known])) if known and known[0] <= steps else None
