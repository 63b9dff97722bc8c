"""Make the charts of training runs for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from doublecv.lab.common.charts import Chart, Line, appearance
from doublecv.lab.report.collect import POINTS, Run
from doublecv.lab.report.statistics import Cell

MINUTE = 60_000
"""Milliseconds per minute."""

START = 0.1
"""The share of a run after which all ELBOs are on the chart: the first are so low that the rest would look flat."""


def training_charts(
    cells: Sequence[Cell], metric: str, title: str, step_milliseconds: Mapping[str, float] | None = None
) -> list[Chart]:
    """Return the chart of a metric, "elbo" or "encoder_variance", of the cells of one column; none if no run has it.

    Unfinished runs are drawn as far as they got. With times per step by estimator, the chart is over minutes, and
    estimators without a time are left out.
    """
    lines = []
    for cell in cells:
        scale = 1.0 if step_milliseconds is None else step_milliseconds.get(cell.key.estimator, 0.0) / MINUTE
        for runs in (cell.complete, *([run] for run in cell.unfinished)):
            line = _line(cell.key.estimator, runs, metric)
            if line is not None and scale > 0:
                lines.append(line._replace(x=line.x * scale))
    if not lines:
        return []
    reading = "Mean over the seeds; band: from the least to the largest."
    if any(len(line.x) > POINTS for line in lines):
        reading += " Long curves are drawn from an evenly spread part of their records."
    if any(cell.unfinished for cell in cells):
        reading += " Dotted: a run that is not finished."
    xlabel = "step" if step_milliseconds is None else "minutes"
    if metric != "elbo":
        return [Chart(title, lines, xlabel, "variance of the encoder's gradient", log=True, reading=reading)]
    reading += " The axis begins below all values after a tenth of the run."
    late = np.concatenate([line.values.mean(axis=0)[line.x >= START * line.x[-1]] for line in lines])
    bottom = float(late.min() - 0.04 * (np.ptp(late) or 1.0))
    return [Chart(title, lines, xlabel, "training ELBO", bottom=bottom, reading=reading)]


def _line(estimator: str, runs: Sequence[Run], metric: str) -> Line | None:
    """Return the values of runs at the steps that all of them have; None if there are none."""
    curves = [run.records.curves[metric].points for run in runs]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    if not steps:
        return None
    look, values = appearance(estimator), np.array([[curve[step] for step in steps] for curve in curves])
    if runs[0].state != "complete":
        look = look._replace(label=f"{look.label}, seed {runs[0].seed}, to step {steps[-1]:,}", style="dotted")
    return Line(*look, np.array(steps, float), values)
