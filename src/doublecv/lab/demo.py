"""`make demo`: compare five estimators on the toy problem and on a VAE of digits, in about a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from doublecv.lab.common.style import appearance
from doublecv.lab.common.tables import Table, number, significant, words
from doublecv.lab.toy.command import run_with_progress as run_toy
from doublecv.lab.toy.figures import write_overview as write_toy_overview
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import ToyResults
from doublecv.lab.train.command import run_with_progress as run_training
from doublecv.lab.train.results import TrainResult
from doublecv.lab.train.results import write_overview as write_training_overview
from doublecv.lab.train.settings import TrainSettings

FOLDER = Path("demo")

ESTIMATORS = ("rloo", "disarm", "double-cv", "quadratic-double-cv", "surrogate-quadratic-double-cv")
"""The baseline first; all others are relative to it."""

TOY = ToySettings(estimators=ESTIMATORS, iterations=1000, seeds=1, every=25, draws=500)

VAE = TrainSettings(dataset="digits", steps=2000, record_every=100, evaluate_every=2000, bound_samples=10)


def main() -> None:
    """Run both experiments, write their figures, and print one table."""
    FOLDER.mkdir(exist_ok=True)
    toy = run_toy(TOY)
    write_toy_overview(toy, FOLDER / "toy.png")
    digits = [run_training(replace(VAE, estimator=name), None)[0] for name in ESTIMATORS]
    write_training_overview(digits, FOLDER / "vae.png")
    Console().print(summary(toy, digits))
    print(f"{FOLDER / 'toy.png'} and {FOLDER / 'vae.png'} show the curves over the steps")


def summary(toy: ToyResults, digits: Sequence[TrainResult]) -> Table:
    """Return the variance of every estimator relative to that of RLOO, and the ELBO that it reaches on digits."""
    rows = [
        {
            "estimator": words(appearance(result.settings.estimator).label),
            "toy problem:\nvariance / RLOO": significant(toy_ratio(toy, result.settings.estimator), 2),
            "digits:\nvariance / RLOO": significant(late_variance(result) / late_variance(digits[0]), 2),
            "digits:\nELBO (nats)": number(result.final["train_elbo"]),
            "digits:\nms per step": number(1000 * result.seconds_per_step),
        }
        for result in digits
    ]
    caption = (
        f"toy problem: D = {TOY.dimension}, at the same logits; digits: a VAE of {VAE.latents} binary latent variables "
        f"that each estimator trains for {VAE.steps} steps; both over the second half of the run"
    )
    return Table.of("demo", f"The gradient's variance and what it costs, K = {VAE.samples}", caption, rows)


def toy_ratio(results: ToyResults, name: str) -> float:
    """Return the median over the second half of the run of the variance relative to that of RLOO at the same logits."""
    curves = results.curves[name]
    ratios = curves.best_variance / curves.exact_rloo_variance
    return float(np.nanmedian(ratios[:, ratios.shape[1] // 2 :]))


def late_variance(result: TrainResult) -> float:
    """Return the mean variance of the encoder's gradient over the second half of the run."""
    _, values = result.curve("encoder_variance")
    return float(np.mean(values[len(values) // 2 :]))


if __name__ == "__main__":
    main()
