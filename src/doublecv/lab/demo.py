"""`make demo`: the paper's claims in little more than a minute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from doublecv.lab.toy.command import run_with_progress as run_toy
from doublecv.lab.toy.figures import write_overview as write_toy_overview
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import table as toy_table
from doublecv.lab.train.command import run_with_progress as run_training
from doublecv.lab.train.results import table as training_table
from doublecv.lab.train.results import write_overview as write_training_overview
from doublecv.lab.train.settings import TrainSettings

FOLDER = Path("demo")

ESTIMATORS = ("rloo", "disarm", "double-cv")

TOY = ToySettings(estimators=ESTIMATORS, seeds=2, every=20)

VAE = TrainSettings(dataset="digits", steps=3000, record_every=100)


def main() -> None:
    """The toy comparison and the autoencoder in short form."""
    FOLDER.mkdir(exist_ok=True)
    console = Console()
    toy(console)
    vae(console)


def toy(console: Console) -> None:
    """RLOO, DisARM and Double CV on the toy problem, as a table and a figure."""
    results = run_toy(TOY)
    figure = FOLDER / "toy.png"
    write_toy_overview(results, figure)
    console.print(toy_table(results))
    console.print(f"{figure} shows variance, objective and mean probability", highlight=False)


def vae(console: Console) -> None:
    """The same three train a binary latent autoencoder on handwritten digits."""
    results = [run_training(replace(VAE, estimator=name), None)[0] for name in ESTIMATORS]
    figure = FOLDER / "vae.png"
    write_training_overview(results, figure)
    console.print(training_table(results))
    console.print(f"{figure} shows variance and ELBO over the steps", highlight=False)


if __name__ == "__main__":
    main()
