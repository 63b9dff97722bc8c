"""Draw samples along paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from doublecv.distributions import Distribution
from doublecv.estimators import Estimator
from doublecv.sequential import Sequential
from doublecv.torch.evaluating import Function

if TYPE_CHECKING:
    from jaxtyping import Float

    from doublecv.sequential import Uniform


class Drawn(NamedTuple):
    """Hold samples and where they came from.

    Attributes:
        f: f as a function of the samples' tensor.
        q: the distribution, with differentiable logits.
        held: the same distribution in a wide type, held constant.
        noise: the noise of the samples; None for paths, whose noise no estimator uses.
        x: the samples.
    """

    f: Function
    q: Distribution
    held: Distribution
    noise: Tensor | None
    x: Float[Tensor, "K *logits"]


def draw_path(f: Function, q: Sequential, estimator: Estimator, generator: torch.Generator | None) -> Drawn:
    """Draw K paths; their logits are differentiable, the samples are not."""
    visit = q.visit(estimator.samples, uniform(generator))
    held = visit.q.detach().widen()
    return Drawn(lambda x: f(visit.structure(x)), visit.q, held, None, visit.x.to(held.logits.dtype))


def uniform(generator: torch.Generator | None) -> Uniform:
    """Return a function that draws uniform noise of a shape, in the type and on the device of a tensor."""

    def draw_next(shape: tuple[int, ...], like: Any) -> Tensor:
        dtype = torch.get_default_dtype() if like is None else torch.promote_types(like.dtype, torch.float32)
        return torch.rand(shape, dtype=dtype, device=None if like is None else like.device, generator=generator)

    return draw_next
