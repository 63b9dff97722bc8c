"""What `doublecv train` takes. No JAX here: its help comes at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from doublecv.lab.train.settings import TrainSettings


@dataclass(frozen=True)
class TrainArguments(TrainSettings):
    """Train a variational autoencoder with discrete latents, with any estimator.

    Section 5.2 of Titsias and Shi (2022). What is written is enough to go on after any interruption: --resume DIR.

    Example: doublecv train --data fashion-mnist --estimator quadratic-double-cv --samples 2 --out runs/quadratic
    """

    seeds: int = 1
    """How many seeds, from --seed on, one after another."""
    parallel_seeds: bool = False
    """Run the seeds as one program instead, for accelerators."""
    devices: int = 1
    """Devices that share each batch (virtual ones on a CPU); with another number, sums differ in their last bits."""
    coordinator: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """Where process 0 can be reached, for --processes, which may be on several hosts; all must see the same folder."""
    processes: int = 1
    """Processes that train together, each with --devices, and each started with this command and its own --process."""
    process: int = 0
    """The number of this process, from 0 on; process 0 writes and prints."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the data are; without it $DOUBLECV_DATA, or a download into the user's cache."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """A new folder for the run; without it one in runs/ that is named after the settings."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Go on with the run in this folder, with its settings."""
    tensorboard: bool = False
    """Write TensorBoard events as well."""

    @property
    def settings(self) -> TrainSettings:
        """The settings alone."""
        return TrainSettings(**{field.name: getattr(self, field.name) for field in fields(TrainSettings)})

    @property
    def folder(self) -> Path:
        """Where a new run goes."""
        if self.out is not None:
            return self.out
        parts = [self.data, self.likelihood, self.model, self.estimator, f"k{self.samples}", f"seed{self.seed}"]
        if self.latent != "bernoulli":
            parts.insert(3, f"{self.latent}{self.categories}")
        return Path("runs") / "-".join(parts)
