"""The estimators in JAX: `Expectation` to differentiate a mean, and helpers around it."""

from doublecv.jax.expectation import Estimate, Expectation, State, fold
from doublecv.jax.rule import evaluate

__all__ = ["Estimate", "Expectation", "State", "evaluate", "fold"]
