"""Several estimators side by side: the same parameters, the same random numbers, variance with error bars, and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from doublecv.arrays import Array
from doublecv.diagnostics.coefficients import optimal_coefficients
from doublecv.diagnostics.drawn import variance
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, LinearEstimator

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray


@dataclass(frozen=True)
class Row:
    """One estimator's line of a comparison.

    Attributes:
        name: the estimator's name in the registry.
        samples: K.
        coefficients: the coefficients that it was measured with.
        variance: the mean over batch and coordinates of the variance of the gradient.
        standard_error: the error bar of `variance`.
        evaluations: the number of points at which one estimate evaluates f.
    """

    name: str
    samples: int
    coefficients: Mapping[str, Any]
    variance: float
    standard_error: float
    evaluations: int

    @property
    def variance_times_evaluations(self) -> float:
        """The cost of a given accuracy: what averaging estimates down to a variance of 1 takes in evaluations of f."""
        return self.variance * self.evaluations


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison; printed, it is a table."""

    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} is not among {[row.name for row in self.rows]}")

    def __str__(self) -> str:
        header = ("estimator", "K", "variance", "+-", "relative", "evaluations", "variance x evaluations")
        table = [header, *(self._cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]) for cells in table
        )

    def _cells(self, row: Row) -> tuple[str, ...]:
        first = self.rows[0].variance
        return (
            row.name,
            str(row.samples),
            f"{row.variance:.4g}",
            f"{row.standard_error:.1g}",
            f"{row.variance / first:.3f}" if first else "-",
            str(row.evaluations),
            f"{row.variance_times_evaluations:.4g}",
        )


def compare(
    estimators: Iterable[Estimator],
    f: Callable[[Array], Array],
    q: Distribution,
    key: PRNGKeyArray,
    draws: int,
    coefficients: Mapping[str, Mapping[str, Any]] | None = None,
) -> Comparison:
    """The estimators' variances on the same parameters and the same random numbers, with error bars and cost.

    Args:
        estimators: the estimators; the first is what the others' variances are relative to.
        f: a function from `[K, *batch, *event]` to `[K, *batch]`, on JAX arrays.
        q: the distribution.
        key: a JAX random key.
        draws: the number of estimates of each.
        coefficients: the coefficients of the estimators, by name. Those left out get the best ones, from separate
            draws, where the estimate is linear in them, and otherwise those that they start with.
    """
    import jax

    given = coefficients or {}
    fit_key, measure_key = jax.random.split(key)

    def row(estimator: Estimator) -> Row:
        measured_estimator, chosen = estimator, given.get(estimator.name)
        if chosen is None and isinstance(estimator, LinearEstimator):
            chosen = optimal_coefficients(estimator, f, q, fit_key, draws)
            measured_estimator = replace(estimator, learning="gradient")
        elif chosen is None:
            chosen = estimator.coefficients()
        measured = variance(f, q, measured_estimator, chosen, measure_key, draws)
        return Row(estimator.name, estimator.samples, chosen, *measured, estimator.evaluations)

    return Comparison(tuple(row(estimator) for estimator in estimators))
