"""Draw the charts of a report with matplotlib, as SVG that stands in the page itself.

matplotlib is imported when the first chart is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from doublecv.lab.common.style import appearance
from doublecv.lab.report.cells import Cell
from doublecv.lab.report.collect import POINTS, Run
from doublecv.lab.report.frames import MINUTE
from doublecv.lab.toy.results import ToyResults

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes

START = 0.1
"""The share of a run after which all ELBOs are on the chart: the first are so low that the rest would look flat."""

GREY = "#59636e"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#808080",
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
} | dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY)

WIDTH, HEIGHT = 5.6, 3.2
"""Inches, without the labels below the axis."""

_numbers = count()


class Line(NamedTuple):
    """One line of a chart: its label, colour and style, the steps or minutes, and the values of each seed."""

    label: str
    colour: str
    style: str
    x: Float[np.ndarray, "records"]
    values: Float[np.ndarray, "seeds records"]


@dataclass(frozen=True)
class Chart:
    """A chart that is drawn when it is first shown: its title, how to read it, and what draws it."""

    title: str
    reading: str
    draw: Callable[[Axes], None]

    @property
    def svg(self) -> str:
        """The drawing."""
        return self._drawn[0]

    @property
    def description(self) -> str:
        """What the chart shows, for people who do not see it."""
        return self._drawn[1]

    @cached_property
    def _drawn(self) -> tuple[str, str]:
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
            figure = Figure()
            axes = figure.add_axes((0.14, 0.2, 0.84, 0.78))
            self.draw(axes)
            axes.ticklabel_format(axis="x", style="plain")
            labels = [str(label) for label in axes.get_legend_handles_labels()[1]]
            columns = 2 if max(map(len, labels)) > 16 else 4
            # Fixed margins: a layout engine takes longer than the drawing.
            below = 0.5 + 0.17 * -(-len(labels) // columns)
            figure.set_size_inches(WIDTH, HEIGHT + below)
            axes.set_position((0.14, below / (HEIGHT + below), 0.84, 0.98 - below / (HEIGHT + below)))
            figure.legend(loc="lower center", ncols=columns, fontsize=8, borderpad=0)
            file = io.StringIO()
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        shown = f"{axes.get_ylabel()} over {axes.get_xlabel()} for {', '.join(labels)}"
        return _embedded(file.getvalue()), f"{self.title}: {shown}"


def training_charts(
    cells: Sequence[Cell], metric: str, title: str, step_milliseconds: dict[str, float] | None = None
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
    if metric == "elbo":
        reading += " The axis begins below all values after a tenth of the run."

    def draw(axes: Axes) -> None:
        from doublecv.lab.toy.figures import set_log_scale

        for line in lines:
            if len(line.values) > 1:
                low, high = line.values.min(axis=0), line.values.max(axis=0)
                axes.fill_between(line.x, low, high, color=line.colour, alpha=0.16, linewidth=0)
            axes.plot(line.x, line.values.mean(axis=0), color=line.colour, linestyle=line.style, label=line.label)
        if metric == "elbo":
            axes.set_ylim(bottom=_bottom(lines))
            axes.ticklabel_format(axis="y", useOffset=False)
        else:
            set_log_scale(axes, [line.values for line in lines])
        axes.set_xlabel("step" if step_milliseconds is None else "minutes")
        axes.set_ylabel("training ELBO" if metric == "elbo" else "variance of the encoder's gradient")

    return [Chart(title, reading, draw)]


def toy_charts(results: ToyResults) -> list[Chart]:
    """Return the paper's figures of the toy problem, and alpha where an estimator has one."""
    from doublecv.lab.toy.figures import PANELS, draw_panel

    reading = "Median over the seeds; band: from the least to the largest."
    return [
        Chart(panel.name.replace("-", " "), reading, partial(draw_panel, results=results, panel=panel))
        for panel in PANELS
        if any(np.isfinite(panel.curve(curves)).any() for curves in results.curves.values())
    ]


def _line(estimator: str, runs: Sequence[Run], metric: str) -> Line | None:
    """Return the values of runs at the steps that all of them have; None if there are none."""
    curves = [run.records.curves[metric].points for run in runs]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    if not steps:
        return None
    look, values = appearance(estimator), np.array([[curve[step] for step in steps] for curve in curves])
    if runs[0].state == "complete":
        return Line(look.label, look.colour, look.line, np.array(steps, float), values)
    label = f"{look.label}, seed {runs[0].seed}, to step {steps[-1]:,}"
    return Line(label, look.colour, "dotted", np.array(steps, float), values)


def _bottom(lines: Iterable[Line]) -> float:
    """Return a limit below all values after the start of the runs."""
    late = np.concatenate([line.values.mean(axis=0)[line.x >= START * line.x[-1]] for line in lines])
    return float(late.min() - 0.04 * (np.ptp(late) or 1.0))


def _embedded(svg: str) -> str:
    """Return only the drawing, with names that are unique in the page and colours that follow the page's scheme."""
    prefix = f"chart-{next(_numbers)}-"
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:xmlns(?::xlink)?|width|height|version)="[^"]*"', "", svg, count=0 if "<image" in svg else 5)
    svg = re.sub(r'(\bid="|href="#|url\(#)', lambda found: found[1] + prefix, svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    return re.sub(r"(stroke|fill): (#[0-9a-f]{6})", r"\1: color-mix(in oklab, \2, white var(--lighter))", svg)
