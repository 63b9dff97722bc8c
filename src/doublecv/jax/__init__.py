"""The estimators in JAX: `Expectation` to differentiate a mean, and helpers around it."""

from doublecv.jax.diagnostics import check, compare, optimal_coefficients, recommend, variance
from doublecv.jax.expectation import Estimate, Expectation, State, fold
from doublecv.jax.rule import evaluate

__all__ = [
    "Estimate",
    "Expectation",
    "State",
    "check",
    "compare",
    "evaluate",
    "fold",
    "optimal_coefficients",
    "recommend",
    "variance",
]
