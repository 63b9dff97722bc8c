"""The settings of the toy experiment; the defaults are the paper's. No JAX here: the command line's help reads this."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from doublecv import estimators
from doublecv.lab.common.errors import InputError

PAPER = ("rloo", "double-cv", "disarm", "r-star", "reinforce", "muprop")
"""The estimators of the paper's Figure 1."""


@dataclass(frozen=True)
class ToySettings:
    """Maximise E_q 1/D sum_i (x_i - p0)^2 over D logits with each estimator, and follow its variance."""

    dimension: int = 200
    """D, the number of binary variables (the paper: 200, and 1 and 10 in its appendix)."""
    samples: int = 2
    """K, the number of samples of one estimate."""
    estimators: tuple[str, ...] = PAPER
    """Names of registered estimators, in the order of the table; an unknown name gets the list of all."""
    iterations: int = 2000
    """Steps of the optimiser."""
    seeds: int = 5
    """How many runs of each estimator, with the seeds 1, 2, ..."""
    every: int = 10
    """Iterations from one record to the next."""
    draws: int = 2000
    """Fresh estimates from which the variance at a record is computed."""
    learning_rate: float = 0.01
    """RMSprop's learning rate for the logits."""
    coefficient_learning_rate: float = 5e-4
    """RMSprop's learning rate for the estimator's coefficients, such as alpha."""
    target: float = 0.499
    """p0."""

    def check(self) -> None:
        """Raise an `InputError` where a setting cannot work."""
        for field, least in (("dimension", 1), ("iterations", 1), ("seeds", 1), ("every", 1), ("draws", 2)):
            if (value := getattr(self, field)) < least:
                raise InputError(f"{field} must be at least {least}, got {value}")
        for field in ("learning_rate", "coefficient_learning_rate"):
            if not 0 < (value := getattr(self, field)) < float("inf"):
                raise InputError(f"{field} must be a positive number, got {value}")
        if not 0 <= self.target <= 1:
            raise InputError(f"target must lie between 0 and 1, got {self.target}")
        if not self.estimators:
            raise InputError(f"estimators must name at least one of {', '.join(estimators.names())}")
        for name in self.estimators:
            self._check_estimator(name)

    def _check_estimator(self, name: str) -> None:
        if name not in estimators.names():
            close = get_close_matches(name, estimators.names(), n=1)
            raise InputError(
                f"estimators must be among {', '.join(estimators.names())}; got {name!r}"
                + (f", did you mean {close[0]!r}?" if close else "")
            )
        if self.estimators.count(name) > 1:
            raise InputError(f"estimators must each be named once, got {name!r} {self.estimators.count(name)} times")
        try:
            estimators.make(name, samples=self.samples)
        except (ValueError, TypeError) as error:
            raise InputError(f"samples do not fit the estimator {name!r}: {error}") from error
