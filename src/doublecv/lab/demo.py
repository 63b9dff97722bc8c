"""`make demo`: train a VAE of digits with each of five estimators, and compare them, in about a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from doublecv.lab.common.charts import Chart, Line, appearance, write_figure
from doublecv.lab.common.tables import Table, number, significant, words
from doublecv.lab.train.command import run_with_progress
from doublecv.lab.train.results import TrainResult
from doublecv.lab.train.settings import TrainSettings

FIGURE = Path("demo") / "digits.png"

ESTIMATORS = ("rloo", "disarm", "double-cv", "quadratic-double-cv", "surrogate-quadratic-double-cv")
"""The baseline first; all others are relative to it."""

PANELS = {"encoder_variance": "variance of the encoder's gradient", "elbo": "training ELBO"}
"""The metrics that are drawn, with the labels of their axes."""

SETTINGS = TrainSettings(
    dataset="digits", network="linear", steps=2000, record_every=100, evaluate_every=2000, bound_samples=10
)


def main() -> None:
    """Train with every estimator, print one table, and draw the curves."""
    results = [run_with_progress(replace(SETTINGS, estimator=name), None)[0] for name in ESTIMATORS]
    Console().print(summary(results))
    FIGURE.parent.mkdir(exist_ok=True)
    title = f"{SETTINGS.dataset}, {SETTINGS.network} VAE, K = {SETTINGS.samples}"
    write_figure([chart(results, *each) for each in PANELS.items()], title, FIGURE)
    print(f"{FIGURE} shows the curves over the steps")


def summary(results: Sequence[TrainResult]) -> Table:
    """Return the variance of every estimator relative to that of the first, and what it reaches and costs."""
    first = results[0].final["encoder_variance"]
    rows = [
        {
            "estimator": words(appearance(result.settings.estimator).label),
            "variance\n/ RLOO": significant(result.final["encoder_variance"] / first, 2),
            "train ELBO\n(nats)": number(result.final["train_elbo"]),
            "test ELBO\n(nats)": number(result.final["test_elbo"]),
            "ms\nper step": number(1000 * result.seconds_per_step),
        }
        for result in results
    ]
    caption = (
        f"a VAE of {SETTINGS.latents} binary latent variables, trained for {SETTINGS.steps} steps; the variance of the "
        "encoder's gradient is an exponential average over the last thousand"
    )
    return Table.of("demo", f"The gradient's variance and what it costs, K = {SETTINGS.samples}", caption, rows)


def chart(results: Sequence[TrainResult], metric: str, label: str) -> Chart:
    """Return the chart of a metric over the steps, one line per result."""
    curves = [(appearance(result.settings.estimator), *result.curve(metric)) for result in results]
    lines = [Line(*look, np.array(steps), np.array([values])) for look, steps, values in curves]
    return Chart(label, lines, "step", label, log=metric == "encoder_variance")


if __name__ == "__main__":
    main()
