"""The estimators in PyTorch: `Expectation`, a module to plug into a loss, and helpers around it.

`Expectation` puts two nodes around f. The first returns the samples together with an empty channel, the second takes f
at the samples and the channel and returns the mean. In the backward pass the second node sends the weights of the loss
back through the channel, and the samples collect the gradient of f in x on their way. So the first node has everything
that the estimator's formula needs after the one backward pass of f that the model's own parameters need anyway.
"""

from doublecv.torch.diagnostics import check, compare, optimal_coefficients, recommend, variance
from doublecv.torch.expectation import Estimate, Expectation, fold
from doublecv.torch.families import detach

__all__ = [
    "Estimate",
    "Expectation",
    "check",
    "compare",
    "detach",
    "fold",
    "optimal_coefficients",
    "recommend",
    "variance",
]
