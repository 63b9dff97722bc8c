"""Define the toy problem of the paper and the settings of its experiment. This module does not import JAX."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from doublecv import estimators
from doublecv.arrays import Array
from doublecv.distributions import Distribution
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.options import Option, ProgramSettings

if TYPE_CHECKING:
    from jaxtyping import Float


PAPER = ("rloo", "double-cv", "disarm", "r-star", "reinforce", "muprop")
"""The estimators of the paper's Figure 1."""

COUNT = Option(minimum=1, maximum=2**31 - 1)
"""The compiled program counts in 32-bit integers."""

ESTIMATORS = Option(metavar="NAME", names=estimators.names, what="estimator", unique=True)


@dataclass(frozen=True)
class ToyProblem:
    r"""Define :math:`f(x) = \frac{1}{D} \sum_i (x_i - p_0)^2` over binary x.

    (Titsias and Shi, 2022, section 5.1; Tucker et al., 2017, for D = 1.) With p0 slightly below 1/2 the best x_i is 1:
    f increases by :math:`(1 - 2 p_0) / D` when an x_i changes from 0 to 1, which is small beside the gradient of f in
    x, whose size is about 1 / D and which points away from p0, here `target`, on both sides.
    """

    target: float = 0.499

    def f(self, x: Float[Array, "*shape D"]) -> Float[Array, "*shape"]:
        r"""Return :math:`f(x)` at every x."""
        return ((x - self.target) ** 2).mean(-1)

    def expected_f(self, q: Distribution) -> Float[Array, "*batch"]:
        r"""Return the exact mean of f, :math:`\frac{1}{D} \sum_i \mu_i (1 - p_0)^2 + (1 - \mu_i) p_0^2`."""
        return (q.mean * (1 - self.target) ** 2 + (1 - q.mean) * self.target**2).mean(-1)


@dataclass(frozen=True)
class ToySettings(ProgramSettings):
    """Maximise E_q 1/D sum_i (x_i - p0)^2 over D logits with each estimator, and record its variance.

    The defaults are the setting of Figure 1 of Titsias and Shi (2022).

    Example: doublecv toy --estimators rloo double-cv --dimension 10 --seeds 2 --out toy
    """

    dimension: Annotated[int, Option(minimum=1, maximum=1_000_000)] = 200
    """D, the number of binary variables (the paper: 200, and 1 and 10 in its appendix)."""
    samples: Annotated[int, Option(minimum=1, maximum=10_000)] = 2
    """K, the number of samples per estimate."""
    estimators: Annotated[tuple[str, ...], ESTIMATORS] = PAPER
    """Names of registered estimators, in the order of the table."""
    iterations: Annotated[int, COUNT] = 2000
    """The number of optimisation steps."""
    seeds: Annotated[int, COUNT] = 5
    """The number of runs per estimator, with the seeds 1, 2, ..."""
    every: Annotated[int, COUNT] = 10
    """The number of iterations between two records."""
    draws: Annotated[int, Option(minimum=2, maximum=COUNT.maximum)] = 2000
    """The number of fresh estimates from which the variance at a record is computed."""
    learning_rate: Annotated[float, Option(positive=True)] = 0.01
    """RMSprop's learning rate for the logits."""
    coefficient_learning_rate: Annotated[float, Option(positive=True)] = 5e-4
    """RMSprop's learning rate for the estimator's coefficients, such as alpha."""
    target: Annotated[float, Option(minimum=0, maximum=1)] = 0.499
    """p0."""
    out: Annotated[Path | None, Option(metavar="DIR")] = None
    """A new folder for metrics.csv, config.json and the figures; if not given, only the table is printed."""

    def check_machine(self) -> None:
        """Raise an `InputError` if the samples of an estimate, or the records, need more memory than there is."""
        given = f" with --samples {self.samples}"
        # In double precision. About ten arrays of the samples' shape exist at once, for every seed that runs meanwhile.
        seeds = min(self.seeds, os.cpu_count() or 1)
        self.check_memory_of("dimension", 8.0 * 10 * seeds * self.samples * self.dimension, given)
        records = self.iterations // self.every + 2
        self.check_memory_of("dimension", 8.0 * self.seeds * records * self.dimension, f" with {records:,} records")

    def check(self) -> None:
        """Raise an `InputError` if a setting cannot work."""
        super().check()
        for name in self.estimators:
            try:
                estimators.make(name, samples=self.samples)
            except (ValueError, TypeError) as error:
                raise InputError(f"--samples {self.samples} does not fit --estimators {name}: {error}") from error
