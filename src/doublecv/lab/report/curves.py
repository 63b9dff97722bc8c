"""Curves over the steps as the page draws them: a line an estimator, with a band from the least to the largest seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from doublecv.lab.common.style import appearance
from doublecv.lab.report.cells import Cell, CellColumn
from doublecv.lab.report.timing import MINUTE
from doublecv.lab.toy.results import Curves, ToyResults

if TYPE_CHECKING:
    from jaxtyping import Float, Int

POINTS = 400
"""A longer curve is drawn from so many of its records at most, evenly spread, with the first and the last."""

DIGITS = 5
"""The significant digits of a value in the page."""

START = 0.1
"""The part of a run after which all ELBOs are on the chart: those before are so low that the rest would look flat."""


class Metric(NamedTuple):
    """What a chart shows."""

    name: str
    label: str
    log: bool = False


VARIANCE = Metric("encoder_variance", "variance of the encoder's gradient", log=True)
ELBO = Metric("elbo", "training ELBO")


class ToyPanel(NamedTuple):
    """What a chart of the toy experiment shows."""

    name: str
    label: str
    curve: Callable[[Curves], Any]
    log: bool = False


TOY_PANELS = (
    ToyPanel("variance", "gradient variance", lambda curves: curves.best_variance, log=True),
    ToyPanel("objective", "objective E f(x)", lambda curves: curves.objective),
    ToyPanel("probability", "mean of the probabilities", lambda curves: curves.mean_probability),
    ToyPanel("alpha", "alpha", lambda curves: curves.alpha),
)


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        name: a word for links.
        title: what it shows.
        reading: how to read it.
        data: what the page's script draws, as JSON.
    """

    name: str
    title: str
    reading: str
    data: Mapping[str, Any]


def training_chart(
    column: CellColumn, metric: Metric, name: str, step_milliseconds: Mapping[str, float] | None = None
) -> Chart | None:
    """One metric of a column of cells over the steps, or over minutes; None if no run counts.

    Args:
        column: the estimators.
        metric: what is drawn.
        name: a word for links.
        step_milliseconds: the time of a step by estimator, where the chart is over time; who has none is left out.
    """
    curves = {
        cell.estimator: curve
        for cell in column.cells
        if (step_milliseconds is None or cell.estimator in step_milliseconds)
        and (curve := _training_curve(cell, metric.name))
    }
    if not curves:
        return None
    lines = [_line(estimator, steps, values, centre=np.mean) for estimator, (steps, values) in curves.items()]
    if step_milliseconds is not None:
        lines = [line | {"x": _minutes(line["x"], step_milliseconds[line["estimator"]])} for line in lines]
    start = _log_start(lines) if metric.log else _after_the_start(lines)
    x_label = "step" if step_milliseconds is None else "minutes"
    reading = f"Mean over the seeds; band: least to largest.{_thinned(max(len(steps) for steps, _ in curves.values()))}"
    if not metric.log:
        reading += " The axis begins below all values after a tenth of the run."
    return Chart(name, metric.label, reading, _data(x_label, metric.label, metric.log, start, lines))


def toy_charts(results: ToyResults, name: str) -> list[Chart]:
    """The paper's figures of the toy experiment; that of alpha where an estimator has one."""
    charts = []
    for panel in TOY_PANELS:
        lines = [
            _line(estimator, results.iterations, values, centre=np.median)
            for estimator, curves in results.curves.items()
            if np.isfinite(values := panel.curve(curves)).any()
        ]
        if panel.name == "alpha":
            lines += [_optimal_alpha(results, line["estimator"]) for line in list(lines)]
        if lines:
            start = _log_start(lines) if panel.log else None
            data = _data("iteration", panel.label, panel.log, start, lines)
            reading = f"Median over the seeds; band: least to largest.{_thinned(len(results.iterations))}"
            charts.append(Chart(f"{name}-{panel.name}", panel.label, reading, data))
    return charts


def _training_curve(
    cell: Cell, metric: str
) -> tuple[Int[np.ndarray, "records"], Float[np.ndarray, "seeds records"]] | None:
    """The steps that all seeds have, and the values; None if there are none."""
    curves = [run.result.curve(metric) for run in cell.counted]
    steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not steps:
        return None
    return np.array(steps), np.array([[curve[step] for step in steps] for curve in curves])


def _minutes(steps: Iterable[int], milliseconds: float) -> list[float | None]:
    return _plain(step * milliseconds / MINUTE for step in steps)


def _thinned(records: int) -> str:
    return f" Drawn from {POINTS} of {records:,} records." if records > POINTS else ""


def _optimal_alpha(results: ToyResults, estimator: str) -> dict[str, Any]:
    line = _line(estimator, results.iterations, results.curves[estimator].optimal_alpha, centre=np.median)
    return {key: value for key, value in line.items() if key not in ("low", "high")} | {
        "name": f"{line['name']}, optimal",
        "dash": "dotted",
    }


def _line(
    estimator: str, x: Int[np.ndarray, "records"], values: Float[np.ndarray, "seeds records"], centre: Any
) -> dict[str, Any]:
    look = appearance(estimator)
    kept = _spread(len(x))
    x, values = x[kept], values[:, kept]
    line = {
        "estimator": estimator,
        "name": look.label,
        "colour": look.colour,
        "dash": look.line,
        "x": x.tolist(),
        "y": _plain(centre(values, axis=0)),
    }
    if len(values) > 1:
        line |= {"low": _plain(values.min(axis=0)), "high": _plain(values.max(axis=0))}
    return line


def _spread(count: int) -> Int[np.ndarray, "kept"]:
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))


def _plain(values: Iterable[float]) -> list[float | None]:
    """As JSON has them: rounded, and null for what is not a number."""
    return [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in values]


def _data(
    x_label: str, y_label: str, log: bool, start: float | None, lines: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    if log:
        lines = [
            {**line} | {key: _positive(line[key]) for key in ("y", "low", "high") if key in line} for line in lines
        ]
    return {"x": {"label": x_label}, "y": {"label": y_label, "log": log, "from": start}, "lines": lines}


def _positive(values: Iterable[float | None]) -> list[float | None]:
    return [value if value is not None and value > 0 else None for value in values]


def _log_start(lines: Iterable[Mapping[str, Any]]) -> float | None:
    """Under all values but the odd one that is 0 but for rounding."""
    values = [value for line in lines for value in line["y"] if value is not None and value > 0]
    return float(np.quantile(values, 0.01) / 3) if values else None


def _after_the_start(lines: Iterable[Mapping[str, Any]]) -> float | None:
    least = [
        value
        for line in lines
        for step, value in zip(line["x"], line["y"], strict=True)
        if step >= START * line["x"][-1] and value is not None
    ]
    return min(least) if least else None
