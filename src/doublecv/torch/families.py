"""Conversion of torch's own distributions, and `detach` for both kinds."""

from __future__ import annotations

from typing import Any

import torch

from doublecv.arrays import remember
from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.sequential import Sequential

# torch.compile of PyTorch 2.4 cannot follow the search for a tensor's library.
for _tensor in (torch.empty(0), torch.nn.Parameter(torch.empty(0))):
    remember(_tensor)


def as_family(q: Any) -> Any:
    """Return q as a doublecv distribution where torch's has such a form; its logits stay differentiable."""
    base = q
    if isinstance(q, torch.distributions.Independent):
        if q.reinterpreted_batch_ndims != 1:
            raise ValueError(
                f"q must be Independent over one axis, that of the variables, got reinterpreted_batch_ndims="
                f"{q.reinterpreted_batch_ndims}; flatten the variables to one axis"
            )
        base = q.base_dist
    if isinstance(base, torch.distributions.Bernoulli):
        return Bernoulli(logits=base.logits)
    if isinstance(base, torch.distributions.OneHotCategorical):
        return Categorical(logits=base.logits)
    if isinstance(base, torch.distributions.Categorical):
        raise TypeError(
            "q is a torch.distributions.Categorical, which draws indices; take doublecv.Categorical, which draws "
            "one-hot vectors, with an axis of variables: doublecv.Categorical(logits=q.logits[..., None, :]) for one "
            "per example"
        )
    return q


def detach(q: Any) -> Any:
    """Return the same distribution with its logits held constant, for q of doublecv or of torch.

    Inside f, `detach(q).log_prob(x)` is what an ELBO needs. torch's own distributions are converted: their `log_prob`
    rejects the relaxed points of some estimators, and is not summed over the variables.

    >>> detach(torch.distributions.Bernoulli(logits=torch.zeros(5, 3))).log_prob(torch.ones(2, 5, 3)).shape
    torch.Size([2, 5])
    """
    family = as_family(q)
    if not isinstance(family, Distribution | Sequential):
        raise TypeError(
            f"q must be a distribution of doublecv, or Bernoulli or OneHotCategorical of torch, got {type(q).__name__}"
        )
    return family.detach()
