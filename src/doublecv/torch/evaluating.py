"""f where the estimators want it: at samples, at the mean of q, at relaxed points."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from doublecv.checks import check_returned_shape
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, LinearEstimator
from doublecv.torch.coefficients import Coefficients

if TYPE_CHECKING:
    from jaxtyping import Float

Function: TypeAlias = Callable[[Any], Any]
"""f, from points `[K, *batch, *event]` to numbers `[K, *batch]`."""


class Side(NamedTuple):
    """What the estimator asks for besides f at the samples; nothing of it reaches the model's own gradient.

    Attributes:
        at_mean: f and its gradient in x at the mean of q, or twice None.
        control: the control variate at the relaxed points and its gradient in the logits, or twice None. They have a
            graph, to be differentiated in the coefficients that they were computed with, unless the estimate is linear
            in these: then only what the control variate is multiplied with depends on them.
    """

    at_mean: tuple[Any, Any]
    control: tuple[Any, Any]


def wide(logits: Tensor) -> torch.dtype:
    """The type of noise, f and weights: with 8 or 11 bits, samples would not have the probabilities in the score."""
    return torch.promote_types(logits.dtype, torch.float32)


def formulas(q: Distribution) -> AbstractContextManager[Any]:
    """Where formulas run: in the type of the logits, whatever autocast does to the model."""
    return torch.autocast(q.logits.device.type, enabled=False) if _is_autocast(q) else nullcontext()


def _is_autocast(q: Distribution) -> bool:
    kind = q.logits.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def draw(q: Distribution, noise: Tensor, estimator: Estimator) -> Float[Tensor, "K *logits"]:
    """The estimator's samples."""
    with torch.no_grad(), formulas(q):
        samples: Tensor = estimator.draw(q, noise)
        return samples


def checked_values(values: Any, estimator: Estimator, q: Distribution) -> Float[Tensor, "K *batch"]:
    """What f returned, once its shape is found right, in a floating type."""
    check_returned_shape("f", values, (estimator.samples, *q.batch_shape))
    checked: Tensor = values if values.is_floating_point() else values.to(wide(q.logits))
    return checked


def evaluate(
    f: Function, x: Float[Tensor, "K *logits"]
) -> tuple[Float[Tensor, "K *batch"], Float[Tensor, "K *logits"]]:
    """f at the points x and its gradient in x; nothing else gets a gradient from it."""
    with torch.enable_grad():
        points = x.detach().requires_grad_()
        values = f(points)
        return values, _pointwise_gradient(values, points)


def evaluate_side(
    f: Function,
    q: Distribution,
    noise: Tensor,
    x: Float[Tensor, "K *logits"],
    estimator: Estimator,
    coefficients: Coefficients,
    learned: bool,
) -> Side:
    """What the estimator asks for besides f at the samples; `learned` says whether the coefficients get a gradient."""
    at_mean: tuple[Any, Any] = (None, None)
    if estimator.needs_mean:
        with formulas(q):
            mean = q.mean
        values, df = evaluate(f, mean[None])
        check_returned_shape("f at the mean of q", values, (1, *q.batch_shape))
        at_mean = (values[0].detach(), df[0])
    control: tuple[Any, Any] = (None, None)
    if estimator.relaxed_points:
        control = _relaxed(
            f, q, noise, x, estimator, coefficients, learned and not isinstance(estimator, LinearEstimator)
        )
    return Side(at_mean, control)


def _relaxed(
    f: Function,
    q: Distribution,
    noise: Tensor,
    x: Tensor,
    estimator: Estimator,
    coefficients: Coefficients,
    learned: bool,
) -> tuple[Tensor, Tensor]:
    """The control variate at the relaxed points, and its gradient in the logits of each."""
    f = _under_present_autocast(f, q)
    with torch.enable_grad(), formulas(q):
        logits = q.broadcast_to((estimator.relaxed_points, *q.batch_shape)).logits.detach().requires_grad_()
        values = estimator.control(f, type(q)(logits=logits), noise, x, coefficients)
        check_returned_shape("f at the relaxed points", values, (estimator.relaxed_points, *q.batch_shape))
        gradient = _pointwise_gradient(values, logits, create_graph=learned)
        return values if learned else values.detach(), gradient


def _under_present_autocast(f: Function, q: Distribution) -> Function:
    if not _is_autocast(q):
        return f
    kind = q.logits.device.type
    dtype = torch.get_autocast_dtype(kind)

    def autocast_f(x: Any) -> Any:
        with torch.autocast(kind, dtype=dtype):
            return f(x)

    return autocast_f


def _pointwise_gradient(values: Tensor, points: Tensor, create_graph: bool = False) -> Tensor:
    """The gradient of values each of which depends on one of the points; 0 where it depends on none."""
    if not getattr(values, "requires_grad", False):
        return torch.zeros_like(points)
    (gradient,) = torch.autograd.grad(
        values, points, torch.ones_like(values), create_graph=create_graph, materialize_grads=True
    )
    return gradient
