"""The numbers of Titsias and Shi (2022): its tables of training ELBOs, and of the time per step.

from doublecv.lab.report import paper

paper.train_elbos()[0]          # mnist, bernoulli, linear, K = 2, rloo: -113.06 +- 0.05
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

import msgspec

STEPS = 1_000_000
"""The steps of the paper's training runs."""
SEEDS = 5
"""The number of runs per cell."""
TIME_SAMPLES = 4
"""The K of the paper's times per step."""


class TrainElbo(msgspec.Struct, frozen=True):
    """A row of train_elbo.csv: a cell of the paper's tables, the mean over five runs in nats.

    RELAX is in the tables of K = 2, with three evaluations of f. The paper does not say what the number after its +-
    is. `bold` says whether it prints the cell in bold face, and `table` is its label of the table.
    """

    dataset: str
    likelihood: str
    network: str
    samples: int = msgspec.field(name="K")
    estimator: str
    train_elbo: float
    plus_minus: float = msgspec.field(name="stderr")
    bold: bool
    table: str


@cache
def train_elbos() -> tuple[TrainElbo, ...]:
    """Return the paper's published training ELBOs, table by table."""
    return msgspec.convert(tuple(_rows("train_elbo.csv")), tuple[TrainElbo, ...], strict=False)


@cache
def seconds_per_step() -> dict[str, float]:
    """Return the paper's seconds per step by estimator, with K = 4 (RELAX: 3 evaluations of f) on a P100 GPU."""
    return {row["estimator"]: float(row["seconds_per_step"]) for row in _rows("seconds_per_step.csv")}


def _rows(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(files(__name__).joinpath(name).read_text(encoding="utf-8").splitlines())
