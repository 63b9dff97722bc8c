"""The numbers of Titsias and Shi (2022): its tables of training ELBOs, and of the time per step.

from doublecv.lab.report import paper

paper.train_elbos()[0]          # mnist, bernoulli, linear, K = 2, rloo: -113.06 +- 0.05
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

STEPS = 1_000_000
"""The steps of the paper's training runs."""
SEEDS = 5
"""The number of runs per cell."""
TIME_SAMPLES = 4
"""The K of the paper's times per step."""


@dataclass(frozen=True)
class TrainElbo:
    """A cell of the paper's tables of training ELBOs.

    Attributes:
        dataset: "mnist", "fashion-mnist" or "omniglot".
        likelihood: "bernoulli" or "gaussian".
        network: "linear" or "nonlinear".
        samples: K. RELAX is in the tables of K = 2, with three evaluations of f.
        estimator: its name in the registry.
        train_elbo: the mean over five runs, in nats.
        plus_minus: the number after the +-; the paper does not say what it is.
        bold: whether the paper prints the cell in bold face.
        table: the paper's label of the table.
    """

    dataset: str
    likelihood: str
    network: str
    samples: int
    estimator: str
    train_elbo: float
    plus_minus: float
    bold: bool
    table: str


@cache
def train_elbos() -> tuple[TrainElbo, ...]:
    """Return the paper's published training ELBOs, table by table."""
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
def seconds_per_step() -> dict[str, float]:
    """Return the paper's seconds per step by estimator, with K = 4 (RELAX: 3 evaluations of f) on a P100 GPU."""
    return {row["estimator"]: float(row["seconds_per_step"]) for row in _rows("seconds_per_step.csv")}


def _rows(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(files(__name__).joinpath(name).read_text(encoding="utf-8").splitlines())
