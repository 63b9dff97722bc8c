"""The numbers of Titsias and Shi (2022): its tables of training ELBOs, and of the time of a step.

from doublecv.lab.report import paper

paper.train_elbos()[0]          # mnist, bernoulli, linear, K = 2, rloo: -113.06 with standard error 0.05
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["SecondsPerStep", "TrainElbo", "seconds_per_step", "train_elbos"]


@dataclass(frozen=True)
class TrainElbo:
    """A cell of the paper's Tables of training ELBOs.

    Attributes:
        dataset: "mnist", "fashion-mnist" or "omniglot".
        likelihood: "bernoulli" or "gaussian".
        network: "linear" or "nonlinear".
        samples: K. RELAX stands in the tables of K = 2, with three evaluations of f.
        estimator: its name in the registry.
        train_elbo: the mean over five runs, in nats.
        standard_error: of that mean.
        bold: whether the paper prints it so.
        table: the paper's label of the table.
    """

    dataset: str
    likelihood: str
    network: str
    samples: int
    estimator: str
    train_elbo: float
    standard_error: float
    bold: bool
    table: str


@dataclass(frozen=True)
class SecondsPerStep:
    """A cell of the paper's table of times.

    Attributes:
        estimator: its name in the registry.
        samples: what it evaluates f at: "4" for K = 4, "3 evaluations" for RELAX.
        seconds: of one training step.
        hardware: what it was measured on.
        dataset: what was trained on.
    """

    estimator: str
    samples: str
    seconds: float
    hardware: str
    dataset: str


@cache
def train_elbos() -> tuple[TrainElbo, ...]:
    """All cells, table by table."""
    return tuple(
        TrainElbo(
            row["dataset"],
            row["likelihood"],
            row["network"],
            int(row["K"]),
            row["estimator"],
            float(row["train_elbo"]),
            float(row["stderr"]),
            {"True": True, "False": False}[row["bold"]],
            row["table"],
        )
        for row in _rows("train_elbo.csv")
    )


@cache
def seconds_per_step() -> tuple[SecondsPerStep, ...]:
    """All cells."""
    return tuple(
        SecondsPerStep(row["estimator"], row["K"], float(row["seconds_per_step"]), row["hardware"], row["dataset"])
        for row in _rows("seconds_per_step.csv")
    )


def _rows(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(files(__name__).joinpath(name).read_text(encoding="utf-8").splitlines())
