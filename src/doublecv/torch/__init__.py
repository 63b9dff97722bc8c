"""The estimators in PyTorch: `Expectation`, a module to plug into a loss, and `estimate` to look inside.

`Expectation` puts two nodes around f. The first hands out the samples together with an empty channel, the second takes
f at the samples and the channel and returns the mean. In the backward pass the second node sends the loss's weights
back through the channel, and the samples collect the gradient of f in x on their way: so the first node has all that
the estimator's formula asks for after the ONE backward pass of f that the model's own parameters need anyway.
"""

from doublecv.torch.expectation import Estimate, Expectation, estimate

__all__ = ["Estimate", "Expectation", "estimate"]
