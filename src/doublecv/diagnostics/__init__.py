"""Check a gradient: exact bias and variance by enumeration, variance with error bars, best coefficients, comparison.

The exact functions run on NumPy, JAX and torch distributions; those that draw samples take a JAX key.
"""

from doublecv.diagnostics.coefficients import optimal_alpha, optimal_coefficients
from doublecv.diagnostics.comparison import Comparison, Row, compare
from doublecv.diagnostics.drawn import Variance, variance
from doublecv.diagnostics.exact import Moments, exact_gradient, exact_moments

__all__ = [
    "Comparison",
    "Moments",
    "Row",
    "Variance",
    "compare",
    "exact_gradient",
    "exact_moments",
    "optimal_alpha",
    "optimal_coefficients",
    "variance",
]
