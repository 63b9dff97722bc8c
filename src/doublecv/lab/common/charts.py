"""Draw charts with matplotlib, for files and for the report's page: lines over steps, each with a band over its seeds.

matplotlib is imported when the first chart is drawn.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from jaxtyping import Float
    from matplotlib.axes import Axes

STYLE = "doublecv.lab.common.charts"
"""The style sheet charts.mplstyle, as matplotlib names it."""

WIDTH, HEIGHT = 5.6, 3.2
"""Inches of a chart in the page, without the labels below the axis."""

_numbers = count()


class Appearance(NamedTuple):
    """The label, colour and line style of an estimator, the same in all tables and figures."""

    label: str
    colour: str
    style: str = "solid"


_KNOWN = msgspec.toml.decode(files(__package__).joinpath("style.toml").read_bytes(), type=dict[str, Appearance])


def appearance(name: str) -> Appearance:
    """Return the appearance of an estimator; one that is not in style.toml gets its name and a colour made from it."""
    return _KNOWN.get(name) or Appearance(name, f"#{zlib.crc32(name.encode()) & 0xFFFFFF:06x}")


class Line(NamedTuple):
    """One line of a chart: its label, colour and style, the steps or minutes, and the values of each seed."""

    label: str
    colour: str
    style: str
    x: Float[np.ndarray, "records"]
    values: Float[np.ndarray, "seeds records"]


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart that is drawn when it is first shown; a band shows the least and the largest value over the seeds.

    `middle` is what a line shows of the seeds, `log` whether the axis of the values is logarithmic, `bottom` its lower
    limit, None to show all values, and `reading` a sentence on how to read the chart.
    """

    title: str
    lines: Sequence[Line]
    xlabel: str
    ylabel: str
    middle: Literal["mean", "median"] = "mean"
    log: bool = False
    bottom: float | None = None
    reading: str = ""

    def draw(self, axes: Axes) -> None:
        """Draw the lines and label the axes."""
        middle = getattr(np, self.middle)
        for label, colour, style, x, values in self.lines:
            if len(values) > 1:
                least, largest = values.min(axis=0), values.max(axis=0)
                axes.fill_between(x, least, largest, color=colour, alpha=0.16, linewidth=0)
            label = re.sub(r"x_[jk]", r"$\g<0>$", label).replace("R*", "R$^*$")
            axes.plot(x, middle(values, axis=0), color=colour, linestyle=style, label=label)
        values = np.concatenate([np.zeros(0), *(line.values.ravel() for line in self.lines)])
        positive = values[np.isfinite(values) & (values > 0)]
        if self.log and len(positive):
            axes.set_yscale("log")
            # A limit that ignores values that are zero up to rounding.
            axes.set_ylim(bottom=float(np.quantile(positive, 0.01) / 3))
        elif not self.log:
            axes.set_ylim(bottom=self.bottom)
            axes.ticklabel_format(axis="y", useOffset=False)
        axes.set_xlabel(self.xlabel)
        axes.set_ylabel(self.ylabel)

    @property
    def description(self) -> str:
        """What the chart shows, for people who do not see it."""
        return f"{self.title}: {self.ylabel} over {self.xlabel} for {', '.join(line.label for line in self.lines)}"

    @cached_property
    def svg(self) -> str:
        """The drawing, as an element of a page."""
        from matplotlib import style
        from matplotlib.figure import Figure

        with style.context([STYLE, {"svg.fonttype": "none"}]):
            # Fixed margins: a layout engine takes longer than the drawing.
            columns = 2 if max(len(line.label) for line in self.lines) > 16 else 4
            below = 0.5 + 0.17 * -(-len(self.lines) // columns)
            figure = Figure(figsize=(WIDTH, HEIGHT + below))
            height = below / (HEIGHT + below)
            axes = figure.add_axes((0.14, height, 0.84, 0.98 - height))
            self.draw(axes)
            axes.ticklabel_format(axis="x", style="plain")
            figure.legend(loc="lower center", ncols=columns, fontsize=8, borderpad=0)
            file = io.StringIO()
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        return _embedded(file.getvalue())


def write_figure(charts: Sequence[Chart], title: str, *paths: Path) -> None:
    """Write charts side by side, with one legend below them, to files whose suffixes are their formats."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(STYLE):
        figure = Figure(figsize=(2.6 + 3.6 * len(charts), 4.6), layout="constrained")
        for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
            chart.draw(axes)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(2 * len(charts), len(labels)))
        figure.suptitle(title)
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _embedded(svg: str) -> str:
    """Return only the drawing, with names that are unique in the page and colours that follow the page's scheme."""
    prefix = f"chart-{next(_numbers)}-"
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' (?:xmlns(?::xlink)?|width|height|version)="[^"]*"', "", svg, count=0 if "<image" in svg else 5)
    svg = re.sub(r'(\bid="|href="#|url\(#)', lambda found: found[1] + prefix, svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    return re.sub(r"(stroke|fill): (#[0-9a-f]{6})", r"\1: color-mix(in oklab, \2, white var(--lighter))", svg)
