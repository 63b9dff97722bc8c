"""Training runs in one line each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table

from doublecv.lab.train.results import TrainResult


def table(results: Sequence[TrainResult]) -> Table:
    """One line a result; all have the same settings but for the estimator and the seed."""
    settings = results[0].settings
    drawn = Table(
        title=f"{settings.data}, {settings.likelihood} likelihood, {settings.model}, K = {settings.samples}, "
        f"{settings.steps} steps",
        caption="nats an image; variance of the encoder's gradient",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    columns = {
        "train\nELBO": "train_elbo",
        "test\nELBO": "test_elbo",
    } | {f"bound\nS = {samples}": f"test_bound_{samples}" for samples in (settings.samples, settings.bound_samples)}
    drawn.add_column("estimator", no_wrap=True)
    for heading in ("seed", *columns, "variance", "alpha", "ms a\nstep"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        final = result.final
        drawn.add_row(
            result.settings.estimator,
            str(result.seed),
            *(f"{final[name]:.2f}" for name in columns.values()),
            f"{final['encoder_variance']:.3g}",
            f"{final['alpha']:.3f}" if "alpha" in final else "-",
            "-" if math.isnan(result.seconds_a_step) else f"{1000 * result.seconds_a_step:.2f}",
        )
    return drawn
