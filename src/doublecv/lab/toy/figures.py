"""Draw the figures of the toy experiment: the median over the seeds, and a band from the least to the largest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from doublecv.lab.common.style import appearance

if TYPE_CHECKING:
    from pathlib import Path

    from jaxtyping import Float
    from matplotlib.axes import Axes

    from doublecv.lab.toy.results import Curves, ToyResults

STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "path",
    # Without a fixed salt the identifiers in an SVG file change from run to run.
    "svg.hashsalt": "doublecv",
}


class Panel(NamedTuple):
    """Describe one figure: the curve that it shows, its label, and its scale."""

    name: str
    label: str
    curve: Callable[[Curves], Float[np.ndarray, "seeds records"]]
    log: bool = False


VARIANCE = Panel("variance", "gradient variance", lambda curves: curves.best_variance, log=True)
OBJECTIVE = Panel("objective", r"objective $\mathrm{E}_q\, f(x)$", lambda curves: curves.objective)
PROBABILITY = Panel("mean-probability", r"mean of $\sigma(\eta_i)$", lambda curves: curves.mean_probability)
ALPHA = Panel("alpha", r"$\alpha$", lambda curves: curves.alpha)
OVERVIEW = (VARIANCE, OBJECTIVE, PROBABILITY)
PANELS = (*OVERVIEW, ALPHA)


def write_figures(results: ToyResults, folder: Path) -> list[Path]:
    """Write each figure as PNG and SVG: the four curves, and Figure 1 of the paper with three of them."""
    figures = {panel.name: (panel,) for panel in OVERVIEW} | {"overview": OVERVIEW}
    if any(np.isfinite(curves.alpha).any() for curves in results.curves.values()):
        figures[ALPHA.name] = (ALPHA,)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, panels in figures.items():
            figure = _figure(results, panels)
            written += [folder / f"{name}.png", folder / f"{name}.svg"]
            figure.savefig(written[-2], dpi=150)
            figure.savefig(written[-1], metadata={"Date": None})
    return written


def write_overview(results: ToyResults, path: Path) -> None:
    """Write Figure 1 of the paper as PNG: variance, objective and mean probability side by side."""
    with matplotlib.rc_context(STYLE):
        _figure(results, OVERVIEW).savefig(path, dpi=150)


def _figure(results: ToyResults, panels: Sequence[Panel]) -> Figure:
    figure = Figure(figsize=(2.6 + 3.6 * len(panels), 4.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_panel(axes, results, panel)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(2 * len(panels), len(labels)))
    figure.suptitle(f"toy problem, D = {results.settings.dimension}, K = {results.settings.samples}")
    return figure


def draw_panel(axes: Axes, results: ToyResults, panel: Panel) -> None:
    """Draw the curves of one panel."""
    shown = {name: panel.curve(curves) for name, curves in results.curves.items()}
    shown = {name: values for name, values in shown.items() if np.isfinite(values).any()}
    for name, values in shown.items():
        style = appearance(name)
        least, largest = values.min(axis=0), values.max(axis=0)
        axes.fill_between(results.iterations, least, largest, color=style.colour, alpha=0.18, linewidth=0)
        axes.plot(
            results.iterations,
            np.median(values, axis=0),
            color=style.colour,
            linestyle=style.line,
            label=_in_mathematics(style.label),
        )
    if panel is ALPHA:
        _add_optimal_alpha(axes, results, shown)
    if panel.log:
        set_log_scale(axes, shown.values())
    axes.set_xlim(0, results.iterations[-1])
    axes.set_xlabel("iteration")
    axes.set_ylabel(panel.label)


def _add_optimal_alpha(axes: Axes, results: ToyResults, shown: Iterable[str]) -> None:
    for name in shown:
        optimal = np.median(results.curves[name].optimal_alpha, axis=0)
        axes.plot(results.iterations, optimal, color=appearance(name).colour, linestyle="dotted", linewidth=1.2)
    axes.plot([], [], color="#666666", linestyle="dotted", linewidth=1.2, label=r"optimal $\alpha$")


def set_log_scale(axes: Axes, curves: Iterable[Float[np.ndarray, "..."]]) -> None:
    """Make the y axis logarithmic, with a lower limit that ignores values that are zero up to rounding."""
    values = np.concatenate([np.zeros(0), *(curve.ravel() for curve in curves)])
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive):
        axes.set_yscale("log")
        axes.set_ylim(bottom=float(np.quantile(positive, 0.01) / 3))


def _in_mathematics(label: str) -> str:
    return label.replace("x_k", "$x_k$").replace("x_j", "$x_j$").replace("R*", "R$^*$")
