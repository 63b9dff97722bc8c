"""Draw the charts of a report with matplotlib, as SVG that stands in the page itself.

matplotlib is imported when the first chart is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from doublecv.lab.common.style import appearance
from doublecv.lab.report.cells import Cell
from doublecv.lab.report.collect import POINTS, TrainRun
from doublecv.lab.report.frames import MINUTE
from doublecv.lab.toy.results import ToyResults

if TYPE_CHECKING:
    from jaxtyping import Float

START = 0.1
"""The share of a run after which all ELBOs are on the chart: the first are so low that the rest would look flat."""

STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#808080",
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": "#59636e",
    "axes.labelcolor": "#59636e",
    "axes.edgecolor": "#59636e",
    "xtick.color": "#59636e",
    "ytick.color": "#59636e",
}

WIDTH, HEIGHT = 5.6, 3.2
"""Inches, without the labels below the axis."""

_numbers = count()


class Line(NamedTuple):
    """One line of a chart, with a band where there are several seeds.

    Attributes:
        label: its name in the legend.
        colour: its colour.
        style: "solid", "dashed" or "dotted".
        x: the steps, iterations or minutes.
        y: the centre over the seeds.
        low: the least of the seeds.
        high: the largest of the seeds.
    """

    label: str
    colour: str
    style: str
    x: Float[np.ndarray, "records"]
    y: Float[np.ndarray, "records"]
    low: Float[np.ndarray, "records"] | None = None
    high: Float[np.ndarray, "records"] | None = None


class Chart(NamedTuple):
    """A chart: its title, a description for people who do not see it, how to read it, and the SVG."""

    title: str
    description: str
    reading: str
    svg: str


def training_chart(
    cells: Sequence[Cell], metric: str, title: str, step_milliseconds: dict[str, float] | None = None
) -> Chart | None:
    """Draw a metric of the estimators of one column; None if no run has it.

    Args:
        cells: the cells, all with the same number of steps. Unfinished runs are drawn as far as they got.
        metric: "elbo" or "encoder_variance".
        title: the title.
        step_milliseconds: the time per step by estimator, for a chart over minutes; estimators without it are left out.
    """
    lines = []
    for cell in cells:
        if step_milliseconds is not None and cell.key.estimator not in step_milliseconds:
            continue
        groups = [cell.complete, *((run,) for run in cell.unfinished)]
        for runs in groups:
            if (line := _training_line(cell, runs, metric)) is not None:
                scale = 1.0 if step_milliseconds is None else step_milliseconds[cell.key.estimator] / MINUTE
                lines.append(line._replace(x=line.x * scale))
    if not lines:
        return None
    reading = "Mean over the seeds; band: from the least to the largest."
    if any(len(line.x) > POINTS for line in lines):
        reading += " Long curves are drawn from an evenly spread part of their records."
    if any(cell.unfinished for cell in cells):
        reading += " Dotted: a run that is not finished."
    log = metric == "encoder_variance"
    if not log:
        reading += " The axis begins below all values after a tenth of the run."
    label = "variance of the encoder's gradient" if log else "training ELBO"
    return _chart(lines, title, "step" if step_milliseconds is None else "minutes", label, reading, log)


def toy_charts(results: ToyResults) -> list[Chart]:
    """Draw the paper's figures of the toy problem, and alpha where an estimator has one."""
    panels = (
        ("best_variance", "gradient variance"),
        ("objective", "objective E f(x)"),
        ("mean_probability", "mean of the probabilities"),
        ("alpha", "alpha"),
    )
    charts = []
    for name, label in panels:
        lines = [
            _line(estimator, results.iterations, getattr(curves, name), np.median)
            for estimator, curves in results.curves.items()
            if np.isfinite(getattr(curves, name)).any()
        ]
        if name == "alpha":
            best = {estimator: results.curves[estimator].optimal_alpha for estimator in results.curves}
            lines += [
                _line(estimator, results.iterations, best[estimator], np.median)._replace(
                    label=f"{appearance(estimator).label}, optimal", style="dotted", low=None, high=None
                )
                for estimator, curves in results.curves.items()
                if np.isfinite(curves.alpha).any()
            ]
        reading = "Median over the seeds; band: from the least to the largest."
        if lines:
            charts.append(_chart(lines, label, "iteration", label, reading, log=name == "best_variance"))
    return charts


def _training_line(cell: Cell, runs: Sequence[TrainRun], metric: str) -> Line | None:
    """Return the mean over runs at the steps that all of them have; None if there are none."""
    curves = [run.records.curves[metric].points for run in runs]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    if not steps:
        return None
    line = _line(cell.key.estimator, np.array(steps), np.array([[curve[step] for step in steps] for curve in curves]))
    if runs[0].state == "complete":
        return line
    return line._replace(label=f"{line.label}, seed {runs[0].settings.seed}, to step {steps[-1]:,}", style="dotted")


def _line(estimator: str, x: Any, values: Float[np.ndarray, "seeds records"], centre: Any = np.mean) -> Line:
    look = appearance(estimator)
    band = (values.min(axis=0), values.max(axis=0)) if len(values) > 1 else (None, None)
    return Line(look.label, look.colour, look.line, np.asarray(x, float), centre(values, axis=0), *band)


def _chart(lines: Sequence[Line], title: str, x_label: str, y_label: str, reading: str, log: bool) -> Chart:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        columns = 2 if max(len(line.label) for line in lines) > 16 else 4
        below = 0.5 + 0.17 * -(-len(lines) // columns)
        figure = Figure(figsize=(WIDTH, HEIGHT + below))
        # Fixed margins: a layout engine takes longer than the drawing.
        share = below / (HEIGHT + below)
        axes = figure.add_axes((0.14, share, 0.84, 0.98 - share))
        for line in lines:
            if line.low is not None and line.high is not None:
                axes.fill_between(line.x, line.low, line.high, color=line.colour, alpha=0.16, linewidth=0)
            axes.plot(line.x, line.y, color=line.colour, linestyle=line.style, label=line.label, linewidth=1.6)
        bottom = _log_bottom(lines) if log else _bottom(lines) if y_label == "training ELBO" else None
        if bottom is not None:
            axes.set_yscale("log" if log else "linear")
            axes.set_ylim(bottom=bottom)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.ticklabel_format(axis="x", style="plain")
        if not log:
            axes.ticklabel_format(axis="y", useOffset=False)
        figure.legend(loc="lower center", ncols=columns, fontsize=8, borderpad=0)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    names = ", ".join(line.label for line in lines)
    return Chart(title, f"{title}: {y_label} over {x_label} for {names}", reading, _embedded(file.getvalue()))


def _log_bottom(lines: Iterable[Line]) -> float | None:
    """Return the lower limit of a logarithmic axis, which ignores values that are zero up to rounding."""
    values = np.concatenate([line.y for line in lines])
    values = values[np.isfinite(values) & (values > 0)]
    return float(np.quantile(values, 0.01) / 3) if len(values) else None


def _bottom(lines: Iterable[Line]) -> float | None:
    """Return a limit below all values after the start of the runs."""
    late = np.concatenate([line.y[line.x >= START * line.x[-1]] for line in lines])
    late = late[np.isfinite(late)]
    return float(late.min() - 0.04 * (np.ptp(late) or 1.0)) if len(late) else None


def _embedded(svg: str) -> str:
    """Return the drawing alone, with names that are unique in the page and colours that follow the page's scheme."""
    prefix = f"chart-{next(_numbers)}-"
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:xmlns(?::xlink)?|width|height|version)="[^"]*"', "", svg, count=0 if "<image" in svg else 5)
    svg = re.sub(r'(\bid="|href="#|url\(#)', lambda found: found[1] + prefix, svg)
    svg = re.sub(r"(\.\d\d)\d+", r"\1", svg)
    return re.sub(r"(stroke|fill): (#[0-9a-f]{6})", r"\1: color-mix(in oklab, \2, white var(--lighter))", svg)
