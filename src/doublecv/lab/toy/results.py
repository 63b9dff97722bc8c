"""Hold the results of the toy experiment, write them to a file, and show them as a table and as charts.

This module imports neither JAX nor the program that makes the results.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from doublecv.lab.common.charts import Chart, Line, appearance, write_figure
from doublecv.lab.common.tables import Column, Entry, Row, Table, number, significant, words
from doublecv.lab.toy.problem import ToySettings

if TYPE_CHECKING:
    from jaxtyping import Float, Int

METRICS = "metrics.csv"
"""The name of the file that `write_metrics` fills."""

REACHED = 0.9
"""The mean probability that counts as learned."""


@dataclass(frozen=True, eq=False)
class Curves:
    """Hold the records of one estimator; alpha is NaN where there is none.

    Attributes:
        variance: the variance of the gradient from fresh estimates, averaged over its coordinates.
        objective: E_q f, computed exactly.
        mean_probability: the mean of mu = sigmoid(logits).
        alpha: the learned coefficient alpha.
    """

    variance: Float[np.ndarray, "seeds records"]
    objective: Float[np.ndarray, "seeds records"]
    mean_probability: Float[np.ndarray, "seeds records"]
    alpha: Float[np.ndarray, "seeds records"]


@dataclass(frozen=True, eq=False)
class ToyResults:
    """Hold the curves by estimator, a row per seed, and the iterations of their records."""

    settings: ToySettings
    iterations: Int[np.ndarray, "records"]
    curves: Mapping[str, Curves]


def record_iterations(settings: ToySettings) -> Int[np.ndarray, "records"]:
    """Return the iterations after which a record is taken: 0, each `every`-th, and the last."""
    return np.append(np.arange(0, settings.iterations, settings.every), settings.iterations)


def write_metrics(results: ToyResults, path: Path) -> None:
    """Write one line per seed, estimator and record; an unknown number is left empty."""
    written = [field.name for field in fields(Curves)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "estimator", "iteration", *written])
        for row, seed in enumerate(range(1, results.settings.seeds + 1)):
            for name, curves in results.curves.items():
                columns = [getattr(curves, curve)[row].tolist() for curve in written]
                for iteration, *values in zip(results.iterations.tolist(), *columns, strict=True):
                    writer.writerow([seed, name, iteration, *("" if math.isnan(value) else value for value in values)])


class Summary(NamedTuple):
    """Summarise one estimator by medians over seeds and records; NaN where a number is unknown.

    Variances are relative to those of RLOO's own run at the same iterations, all or the late half of them. `reached` is
    the median of the first recorded iteration with a mean probability above 0.9, infinite for a seed that has none.
    """

    name: str
    relative_variance: float
    late_relative_variance: float
    reached: float
    final_objective: float


def summarise(results: ToyResults) -> tuple[Summary, ...]:
    """Return one summary per estimator, in the order of the settings."""
    rloo, iterations = results.curves.get("rloo"), results.iterations
    late = iterations >= results.settings.iterations / 2

    def summary(name: str, curves: Curves) -> Summary:
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = curves.variance / (rloo.variance if rloo is not None else np.nan)
        above = curves.mean_probability > REACHED
        reached = np.where(above.any(axis=1), iterations[above.argmax(axis=1)], np.inf)
        medians = map(np.median, (relative, relative[:, late], reached))
        return Summary(name, *map(float, (*medians, np.mean(curves.objective[:, -1]))))

    return tuple(summary(name, curves) for name, curves in results.curves.items())


def summary_row(summary: Summary) -> Row:
    """Return a summary as the row of a table, without the name of its estimator."""
    _, of_run, late, reached, objective = summary
    never = Entry("never")
    return {
        Column("variance\n/ RLOO", "relative_variance"): significant(of_run),
        Column("second\nhalf", "late_relative_variance"): significant(late),
        Column(f"iterations\nto {REACHED}", f"iterations_to_{REACHED}"): number(reached, 0)
        if reached < np.inf
        else never,
        Column("final\nobjective", "final_objective"): number(objective, 6),
    }


def table(results: ToyResults) -> Table:
    """Return the summaries as a table for the terminal."""
    settings = results.settings
    title = f"D = {settings.dimension}, K = {settings.samples}, {settings.iterations} iterations, {settings.seeds} seed"
    return Table.of(
        "toy",
        title if settings.seeds == 1 else f"{title}s",
        "medians over iterations and seeds",
        [{"estimator": words(one.name), **summary_row(one)} for one in summarise(results)],
    )


def charts(results: ToyResults) -> dict[str, Chart]:
    """Return the figures of the paper by name, and alpha where an estimator has it."""
    settings = results.settings
    shown = {
        "variance": ("variance", "gradient variance"),
        "objective": ("objective", r"objective $\mathrm{E}_q\, f(x)$"),
        "mean-probability": ("mean_probability", r"mean of $\sigma(\eta_i)$"),
        "alpha": ("alpha", r"$\alpha$"),
    }
    found = {}
    for name, (curve, label) in shown.items():
        values = {estimator: getattr(curves, curve) for estimator, curves in results.curves.items()}
        known = {estimator: each for estimator, each in values.items() if np.isfinite(each).any()}
        lines = [Line(*appearance(estimator), results.iterations, each) for estimator, each in known.items()]
        if lines:
            title = f"{name.replace('-', ' ')}, D = {settings.dimension}, K = {settings.samples}"
            reading = "Median over the seeds; band: from the least to the largest."
            found[name] = Chart(title, lines, "iteration", label, "median", name == "variance", None, reading)
    return found


def write_figures(results: ToyResults, folder: Path) -> list[Path]:
    """Write every chart as PNG and SVG, and Figure 1 of the paper, which has three of them side by side."""
    found = charts(results)
    figures = {name: [chart] for name, chart in found.items()}
    figures["overview"] = [chart for name, chart in found.items() if name != "alpha"]
    written = []
    for name, shown in figures.items():
        paths = [folder / f"{name}.png", folder / f"{name}.svg"]
        write_figure(shown, f"toy problem, {shown[0].title.partition(', ')[2]}", *paths)
        written += paths
    return written
