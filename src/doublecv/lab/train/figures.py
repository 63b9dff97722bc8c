"""Training runs as curves: the variance of the gradient and the ELBO over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from doublecv.lab.common.style import appearance
from doublecv.lab.train.results import TrainResult

PANELS = {"encoder_variance": "variance of the encoder's gradient", "elbo": "training ELBO"}
"""The metrics that are drawn, and what the axes call them."""


def write_overview(results: Sequence[TrainResult], path: Path) -> None:
    """Both panels, with one line a result."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    for axes, (metric, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for result in results:
            steps, values = result.curve(metric)
            look = appearance(result.settings.estimator)
            axes.plot(steps, values, color=look.colour, linestyle=look.line, label=look.label)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        if metric == "encoder_variance":
            axes.set_yscale("log")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    settings = results[0].settings
    figure.suptitle(f"{settings.data}, {settings.model} VAE, K = {settings.samples}")
    figure.savefig(path, dpi=150)
