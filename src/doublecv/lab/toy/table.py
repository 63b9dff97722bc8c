"""The toy experiment in one line an estimator: variance relative to RLOO, speed of learning, final objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float
    from rich.table import Table

    from doublecv.lab.toy.run import Curves, ToyResults

REACHED = 0.9
"""The mean probability that counts as learned."""


@dataclass(frozen=True)
class Summary:
    """One estimator's line; the medians are over seeds and records, NaN where a number is not known.

    Attributes:
        name: the estimator's name in the registry.
        relative_variance: the median of the variance relative to that of RLOO in its own run, at the same iteration;
            both are exact where that is known.
        late_relative_variance: the same over the second half of the iterations.
        late_relative_variance_at_same_logits: the median, over the second half, of the exact variance relative to the
            exact variance of RLOO at the very logits that this estimator's run has come to.
        reached: the median over the seeds of the first recorded iteration with a mean probability above 0.9,
            infinite for a seed that never had one.
        final_objective: the mean over the seeds of the objective at the end.
    """

    name: str
    relative_variance: float
    late_relative_variance: float
    late_relative_variance_at_same_logits: float
    reached: float
    final_objective: float


def summarise(results: ToyResults) -> tuple[Summary, ...]:
    """The lines of the table, in the order of the settings."""
    rloo = results.curves.get("rloo")
    late = results.iterations >= results.settings.iterations / 2

    def summary(name: str, curves: Curves) -> Summary:
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = curves.best_variance / (rloo.best_variance if rloo is not None else np.nan)
            at_same_logits = curves.exact_variance / curves.exact_rloo_variance
        return Summary(
            name,
            relative_variance=float(np.median(relative)),
            late_relative_variance=float(np.median(relative[:, late])),
            late_relative_variance_at_same_logits=float(np.median(at_same_logits[:, late])),
            reached=float(np.median(_first_above(curves.mean_probability, results.iterations))),
            final_objective=float(np.mean(curves.objective[:, -1])),
        )

    return tuple(summary(name, curves) for name, curves in results.curves.items())


def _first_above(
    mean_probability: Float[np.ndarray, "seeds records"], iterations: Float[np.ndarray, "records"]
) -> Float[np.ndarray, "seeds"]:
    above = mean_probability > REACHED
    return np.where(above.any(axis=1), iterations[above.argmax(axis=1)], np.inf)


def table(results: ToyResults) -> Table:
    """The summaries as a table for the terminal."""
    from rich import box
    from rich.table import Table

    settings = results.settings
    drawn = Table(
        title=f"D = {settings.dimension}, K = {settings.samples}, {settings.iterations} iterations, "
        f"{settings.seeds} seed{'s' if settings.seeds > 1 else ''}",
        caption="medians over iterations and seeds; same logits: exact, second half",
        box=box.SIMPLE_HEAD,
    )
    drawn.add_column("estimator", no_wrap=True)
    for heading in (
        "variance\n/ RLOO",
        "second\nhalf",
        "same\nlogits",
        f"iterations\nto {REACHED}",
        "final\nobjective",
    ):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for summary in summarise(results):
        drawn.add_row(
            summary.name,
            _ratio(summary.relative_variance),
            _ratio(summary.late_relative_variance),
            _ratio(summary.late_relative_variance_at_same_logits),
            f"{summary.reached:.0f}" if np.isfinite(summary.reached) else f"> {settings.iterations}",
            f"{summary.final_objective:.6f}",
        )
    return drawn


def _ratio(value: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.3f}" if 0.01 <= value < 100 else f"{value:.1e}"
