"""Hold the results of the toy experiment, write them to a file, and show them as a table and as charts.

This module imports neither JAX nor the program that makes the results.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

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
    """Hold the records of one estimator; NaN where a number does not exist or is unknown.

    Attributes:
        variance: the variance of the gradient from fresh estimates, averaged over its coordinates.
        exact_variance: the same, computed exactly.
        objective: E_q f, computed exactly.
        mean_probability: the mean of mu = sigmoid(logits).
        alpha: the learned coefficient alpha.
        optimal_alpha: the alpha of least variance at the same logits, where it is known exactly.
        exact_rloo_variance: the exact variance of RLOO with the same K at the same logits.
    """

    variance: Float[np.ndarray, "seeds records"]
    exact_variance: Float[np.ndarray, "seeds records"]
    objective: Float[np.ndarray, "seeds records"]
    mean_probability: Float[np.ndarray, "seeds records"]
    alpha: Float[np.ndarray, "seeds records"]
    optimal_alpha: Float[np.ndarray, "seeds records"]
    exact_rloo_variance: Float[np.ndarray, "seeds records"]

    @property
    def best_variance(self) -> Float[np.ndarray, "seeds records"]:
        """The exact variance where it is known, and the drawn variance elsewhere.

        Late in a run nearly all draws are equal, so that the drawn variance is inaccurate and sometimes 0.
        """
        return np.where(np.isnan(self.exact_variance), self.variance, self.exact_variance)


@dataclass(frozen=True, eq=False)
class ToyResults:
    """Hold the curves by estimator, with the seeds of their rows and the iterations of their records."""

    settings: ToySettings
    seeds: tuple[int, ...]
    iterations: Int[np.ndarray, "records"]
    curves: Mapping[str, Curves]


def record_iterations(settings: ToySettings) -> Int[np.ndarray, "records"]:
    """Return the iterations after which a record is taken: 0, each `every`-th, and the last."""
    return np.append(np.arange(0, settings.iterations, settings.every), settings.iterations)


def write_metrics(results: ToyResults, file: TextIO) -> None:
    """Write one line per seed, estimator and record; an unknown number is left empty."""
    written = [field.name for field in fields(Curves)]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["seed", "estimator", "iteration", *written])
    for row, seed in enumerate(results.seeds):
        for name, curves in results.curves.items():
            columns = [getattr(curves, curve)[row].tolist() for curve in written]
            for iteration, *values in zip(results.iterations.tolist(), *columns, strict=True):
                writer.writerow([seed, name, iteration, *("" if math.isnan(value) else value for value in values)])


class Summary(NamedTuple):
    """Summarise one estimator by medians over seeds and records; NaN where a number is unknown.

    Attributes:
        name: the estimator's name in the registry.
        relative_variance: the median of the variance relative to that of RLOO's own run at the same iteration; both
            are exact where the exact variance is known.
        late_relative_variance: the same over the second half of the iterations.
        late_relative_variance_at_same_logits: the median, over the second half, of the exact variance relative to the
            exact variance of RLOO at the logits that this estimator's run reached.
        reached: the median over the seeds of the first recorded iteration with a mean probability above 0.9,
            infinite for a seed that has none.
        final_objective: the mean over the seeds of the objective at the end.
    """

    name: str
    relative_variance: float
    late_relative_variance: float
    late_relative_variance_at_same_logits: float
    reached: float
    final_objective: float


def summarise(results: ToyResults) -> tuple[Summary, ...]:
    """Return one summary per estimator, in the order of the settings."""
    rloo, iterations = results.curves.get("rloo"), results.iterations
    late = iterations >= results.settings.iterations / 2

    def summary(name: str, curves: Curves) -> Summary:
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = curves.best_variance / (rloo.best_variance if rloo is not None else np.nan)
            at_same_logits = curves.exact_variance / curves.exact_rloo_variance
        above = curves.mean_probability > REACHED
        reached = np.where(above.any(axis=1), iterations[above.argmax(axis=1)], np.inf)
        medians = map(np.median, (relative, relative[:, late], at_same_logits[:, late], reached))
        return Summary(name, *map(float, (*medians, np.mean(curves.objective[:, -1]))))

    return tuple(summary(name, curves) for name, curves in results.curves.items())


def summary_row(summary: Summary) -> Row:
    """Return a summary as the row of a table, without the name of its estimator."""
    reached = summary.reached
    return {
        Column("variance\n/ RLOO", "relative_variance"): significant(summary.relative_variance),
        Column("second\nhalf", "late_relative_variance"): significant(summary.late_relative_variance),
        Column("same\nlogits", "late_relative_variance_at_same_logits"): significant(
            summary.late_relative_variance_at_same_logits
        ),
        Column(f"iterations\nto {REACHED}", f"iterations_to_{REACHED}"): (
            number(reached, 0) if np.isfinite(reached) else Entry("never")
        ),
        Column("final\nobjective", "final_objective"): number(summary.final_objective, 6),
    }


def table(results: ToyResults) -> Table:
    """Return the summaries as a table for the terminal."""
    settings = results.settings
    title = f"D = {settings.dimension}, K = {settings.samples}, {settings.iterations} iterations, {settings.seeds} seed"
    return Table.of(
        "toy",
        title if settings.seeds == 1 else f"{title}s",
        "medians over iterations and seeds; same logits: exact, second half",
        [{"estimator": words(one.name), **summary_row(one)} for one in summarise(results)],
    )


def charts(results: ToyResults) -> dict[str, Chart]:
    """Return the figures of the paper by name, and alpha, beside the best one, where an estimator has it."""
    settings = results.settings
    shown = {
        "variance": ("best_variance", "gradient variance"),
        "objective": ("objective", r"objective $\mathrm{E}_q\, f(x)$"),
        "mean-probability": ("mean_probability", r"mean of $\sigma(\eta_i)$"),
        "alpha": ("alpha", r"$\alpha$"),
    }
    found = {}
    for name, (curve, label) in shown.items():
        values = {estimator: getattr(curves, curve) for estimator, curves in results.curves.items()}
        known = {estimator: each for estimator, each in values.items() if np.isfinite(each).any()}
        lines = [Line(*appearance(estimator), results.iterations, each) for estimator, each in known.items()]
        if name == "alpha":
            lines += [_best_alpha(results, estimator) for estimator in known]
            lines = [line for line in lines if np.isfinite(line.values).any()]
        if lines:
            title = f"{name.replace('-', ' ')}, D = {settings.dimension}, K = {settings.samples}"
            reading = "Median over the seeds; band: from the least to the largest."
            found[name] = Chart(title, lines, "iteration", label, "median", name == "variance", None, reading)
    return found


def _best_alpha(results: ToyResults, estimator: str) -> Line:
    look = appearance(estimator)
    values = np.median(results.curves[estimator].optimal_alpha, axis=0, keepdims=True)
    return Line(f"{look.label}, best", look.colour, "dotted", results.iterations, values)


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
