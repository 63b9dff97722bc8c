"""torch's own distributions as those of doublecv."""

from __future__ import annotations

from typing import Any

import torch

from doublecv.distributions import Bernoulli, Categorical


def as_family(q: Any) -> Any:
    """q as a doublecv distribution where torch's has such a form, and otherwise q; its logits stay differentiable."""
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
    return q
