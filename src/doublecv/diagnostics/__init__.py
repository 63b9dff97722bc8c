"""Diagnostics for gradients, without a framework: the variance meter, best coefficients, the comparison and its table.

`doublecv.jax` and `doublecv.torch` have the functions that users call, with the same names and results: `variance`,
`compare`, `optimal_coefficients`, `recommend` and `check`. `doublecv.exact` has exact moments by enumeration.
"""

from doublecv.diagnostics.coefficients import optimal_coefficients
from doublecv.diagnostics.comparison import Comparison, Row
from doublecv.diagnostics.meter import Meter, SquaredBias, Variance
from doublecv.diagnostics.one_by_one import Check
from doublecv.diagnostics.recommendation import Recommendation

__all__ = [
    "Check",
    "Comparison",
    "Meter",
    "Recommendation",
    "Row",
    "SquaredBias",
    "Variance",
    "optimal_coefficients",
]
