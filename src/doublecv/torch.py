"""The estimators in PyTorch: `Expectation`, a module to plug into a loss, and `estimate` to look inside.

`Expectation` puts two nodes around f. The first hands out the samples together with an empty channel, the second takes
f at the samples and the channel and returns the mean. In the backward pass the second node sends the loss's weights
back through the channel, and the samples collect the gradient of f in x on their way: so the first node has all that
the estimator's formula asks for after the ONE backward pass of f that the model's own parameters need anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import nn

from doublecv.arrays import require_floating
from doublecv.checks import check_estimator, check_returned_shape, differentiated_twice
from doublecv.distributions import Bernoulli, Categorical, Distribution, event_size
from doublecv.estimators import Estimator, Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

Function: TypeAlias = Callable[[Any], Any]
"""f, from points `[K, *batch, *event]` to numbers `[K, *batch]`."""

Pullback: TypeAlias = Callable[[Any], Any]
"""From a gradient in the logits to the gradients in what made them: a tensor or several."""

Coefficients: TypeAlias = Mapping[str, Any]
"""Tensors by name; a value may be a mapping of tensors itself."""


class Estimate(NamedTuple):
    """What `estimate` returns; nothing of it carries a graph.

    Attributes:
        value: the mean of f over the K samples.
        gradient: the estimate of d/dlogits E_q f, for every batch element.
        coefficient_gradient: the derivative of the mean square of `gradient` (over batch and coordinates) in the
            coefficients, shaped like them.
        evaluation: the samples, f at them, and what else the estimator asked for.
    """

    value: Float[Tensor, "*batch"]
    gradient: Float[Tensor, "*batch *event"]
    coefficient_gradient: dict[str, Any]
    evaluation: Evaluation


class Expectation(nn.Module):
    """The mean of f over K samples of q, to be differentiated once; the estimator's coefficients are its parameters.

    From one forward and one backward pass of f, `backward` gives

    - to all that f uses: the ordinary gradient of the mean;
    - to q's logits, and so to what produced them: the estimator's gradient. If f itself depends on the logits, its
      ordinary gradient is added; use `q.detach()` in f to hold them constant, as an ELBO with log q(x) in f wants it;
    - to the coefficients: the derivative of the mean square of the estimate (over batch and coordinates), so that any
      optimiser that is handed `expectation.parameters()` reduces the variance. A batch element counts with the absolute
      weight that it has in the loss, so that neither a loss that is maximised nor one with padded examples misleads it.

    >>> import doublecv as dcv
    >>> expectation = Expectation(dcv.DoubleCV(samples=4))
    >>> logits = torch.zeros(3, 5, requires_grad=True)
    >>> loss = expectation(lambda x: x.sum(-1), dcv.Bernoulli(logits=logits)).mean()
    >>> loss.backward()
    >>> logits.grad.shape, expectation.alpha.grad.shape
    (torch.Size([3, 5]), torch.Size([]))

    Args:
        estimator: any estimator of `doublecv`.
    """

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        check_estimator(estimator)
        self.estimator = estimator
        self._names = tuple(estimator.coefficients())
        for name, start in estimator.coefficients().items():
            self.register_parameter(name, nn.Parameter(torch.as_tensor(start, dtype=torch.get_default_dtype())))

    def coefficients(self) -> dict[str, Tensor]:
        """The learnable coefficients by name, as `estimate` takes them."""
        return {name: getattr(self, name) for name in self._names}

    def forward(
        self,
        f: Function,
        q: Distribution | torch.distributions.Distribution,
        *,
        generator: torch.Generator | None = None,
        noise: Float[Tensor, "..."] | None = None,
        pullback: Pullback | None = None,
    ) -> Float[Tensor, "*batch"]:
        """The mean of f over K samples, for every batch element.

        Args:
            f: a function from `[K, *batch, *event]` to `[K, *batch]` that treats samples and batch elements one by one.
                It is differentiated in x only if `estimator.needs_df` (and at the mean of q if `estimator.needs_mean`).
            q: a distribution of doublecv, or `torch.distributions.Bernoulli` or `OneHotCategorical`, or `Independent`
                of one; the last axis of its logits (for OneHotCategorical the last but one) is that of the variables.
            generator: where the noise comes from; torch's global generator if None.
            noise: uniform noise on [0, 1) of shape `estimator.noise_shape(q)`, instead of a generator.
            pullback: where it is given, the coefficients' gradient is that of the squared norm of `pullback(gradient)`.
                It must be differentiable itself, and leave the graph of the logits as it is, for example
                `lambda g: torch.autograd.grad(logits, parameters, g, create_graph=True)`.
        """
        q = as_distribution(q)
        estimator, coefficients = self.estimator, self.coefficients()
        held, noise = _prepare(q, estimator, coefficients, generator, noise)
        with _in_the_type_of(q):
            samples = estimator.draw(held, noise)
        leaves = list(_leaves(coefficients))
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q.logits, *leaves))):
            return _checked_values(f(samples), estimator, q).mean(dim=0)
        side = _side(f, held, noise, samples, estimator, coefficients)
        rule = _Rule(estimator, type(q), coefficients, pullback)
        x, channel = _Sample.apply(rule, side, q.logits, samples, *leaves)
        values = _checked_values(f(x if estimator.needs_df else samples), estimator, q)
        mean: Tensor = _Mean.apply(rule, values, channel)
        return mean

    def extra_repr(self) -> str:
        """The estimator."""
        return repr(self.estimator)


def estimate(
    f: Function,
    q: Distribution | torch.distributions.Distribution,
    estimator: Estimator,
    coefficients: Coefficients,
    *,
    generator: torch.Generator | None = None,
    noise: Float[Tensor, "..."] | None = None,
    pullback: Pullback | None = None,
) -> Estimate:
    """The value, the gradient in the logits and the coefficients' gradient, explicitly.

    The arguments are those of `Expectation`, and so is the coefficients' gradient, for a loss that is the mean over the
    batch. Nothing of f but its derivative in x is computed, so this is the form for logits that are themselves the
    parameters, for diagnostics, and for use outside automatic differentiation.

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, of doublecv or of torch.
        estimator: any estimator of `doublecv`.
        coefficients: the estimator's coefficients: `estimator.coefficients()` or `expectation.coefficients()`.
        generator: where the noise comes from; torch's global generator if None.
        noise: uniform noise on [0, 1) of shape `estimator.noise_shape(q)`, instead of a generator.
        pullback: where it is given, the coefficients' gradient is that of the squared norm of `pullback(gradient)`.
    """
    check_estimator(estimator)
    q = as_distribution(q)
    held, noise = _prepare(q, estimator, coefficients, generator, noise)
    leaves = _learnable(coefficients, held.logits)
    with _formulas_of(held):
        x = estimator.draw(held, noise)
    values, df = evaluate(f, x, differentiate=estimator.needs_df)
    values = _checked_values(values, estimator, held)
    side = _side(f, held, noise, x, estimator, leaves)
    weight = torch.full_like(values[0], 1 / max(1, prod(held.batch_shape)))
    gradient, coefficient_gradient = _gradients(estimator, pullback, held, leaves, x, values, df, side, weight)
    evaluation = Evaluation(x, values, df, *side.at_mean, *map(_detached, side.control))
    return Estimate(values.mean(dim=0), gradient, coefficient_gradient, evaluation)


def evaluate(
    f: Function, x: Float[Tensor, "K *batch *event"], differentiate: bool = True
) -> tuple[Float[Tensor, "K *batch"], Float[Tensor, "K *batch *event"] | None]:
    """f at the points x, and its gradient in x where that is wanted; the model's parameters get no gradient from it."""
    if not differentiate:
        with torch.no_grad():
            return f(x), None
    with torch.enable_grad():
        points = x.detach().requires_grad_()
        values = f(points)
        return _detached(values), _gradient_of_sum(values, points)


def as_distribution(q: Any) -> Any:
    """q as a distribution of doublecv, if it is one of torch that has such a form; its logits stay differentiable."""
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


class _Side(NamedTuple):
    """What the estimator asks for besides f at the samples; nothing of it reaches the model's own gradient.

    Attributes:
        at_mean: f and its gradient in x at the mean of q, or twice None.
        control: the control variate at the relaxed points and its gradient in the logits, or twice None.
        leaves: the coefficients on which the graph of `control` ends.
    """

    at_mean: tuple[Any, Any] = (None, None)
    control: tuple[Any, Any] = (None, None)
    leaves: tuple[Any, ...] = ()


def _prepare(
    q: Distribution,
    estimator: Estimator,
    coefficients: Coefficients,
    generator: torch.Generator | None,
    noise: Tensor | None,
) -> tuple[Distribution, Float[Tensor, "..."]]:
    estimator.check_family(q)
    estimator.check_coefficients(coefficients)
    logits = q.logits
    if not isinstance(logits, torch.Tensor):
        raise TypeError(f"logits of q must be a torch tensor, got {type(logits).__name__}; convert them first")
    held = q.detach()
    if noise is None:
        noise = torch.rand(
            estimator.noise_shape(held), dtype=_at_least_single(logits), device=logits.device, generator=generator
        )
    elif generator is not None:
        raise ValueError("noise and generator were both given, but noise takes the generator's place; leave one out")
    else:
        require_floating("noise", noise)
    return held, noise


def _at_least_single(tensor: Tensor) -> torch.dtype:
    """The type of the noise and of f: with 8 or 11 bits the samples would not have the probabilities in the score."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _formulas_of(q: Distribution) -> AbstractContextManager[Any]:
    """Where the formulas run: in the type of the logits, whatever autocast says of the model."""
    kind = q.logits.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _side(
    f: Function, q: Distribution, noise: Tensor, x: Tensor, estimator: Estimator, leaves: Coefficients
) -> _Side:
    side = _Side()
    if estimator.needs_mean:
        with _formulas_of(q):
            mean = q.mean
        values, df = evaluate(f, mean[None])
        check_returned_shape("f at the mean of q", values, (1, *q.batch_shape))
        assert df is not None
        side = side._replace(at_mean=(values[0], df[0]))
    if estimator.relaxed_points:
        held = _map(lambda leaf: leaf.detach().requires_grad_(leaf.requires_grad), leaves)
        control = _relaxed(f, q, noise, x, estimator, held)
        side = side._replace(control=control, leaves=tuple(_flatten(held)))
    return side


def _relaxed(
    f: Function, q: Distribution, noise: Tensor, x: Tensor, estimator: Estimator, leaves: Coefficients
) -> tuple[Tensor, Tensor]:
    """The control variate at the relaxed points and its gradient in the logits, with a graph to the coefficients."""
    with torch.enable_grad():
        logits = q.broadcast_to((estimator.relaxed_points, *q.batch_shape)).logits.detach().requires_grad_()
        values = estimator.control(f, type(q)(logits=logits), noise, x, leaves)
        check_returned_shape("f at the relaxed points", values, (estimator.relaxed_points, *q.batch_shape))
        learned = any(leaf.requires_grad for leaf in _flatten(leaves))
        return values, _gradient_of_sum(values, logits, create_graph=learned)


def _gradient_of_sum(values: Tensor, points: Tensor, create_graph: bool = False) -> Tensor:
    """The gradient in the points of values that each depend on a point of their own; 0 where they do not."""
    if not getattr(values, "requires_grad", False):
        return torch.zeros_like(points)
    ones = torch.ones_like(values)
    (gradient,) = torch.autograd.grad(values, points, ones, create_graph=create_graph, materialize_grads=True)
    return gradient


def _checked_values(values: Any, estimator: Estimator, q: Distribution) -> Tensor:
    check_returned_shape("f", values, (estimator.samples, *q.batch_shape))
    checked: Tensor = values if values.is_floating_point() else values.to(_at_least_single(q.logits))
    return checked


def _gradients(
    estimator: Estimator,
    pullback: Pullback | None,
    q: Distribution,
    leaves: Coefficients,
    x: Tensor,
    values: Tensor,
    df: Tensor | None,
    side: _Side,
    weight: Float[Tensor, "*batch"],
) -> tuple[Tensor, dict[str, Any]]:
    """The estimate, and the derivative in the coefficients of its square, weighted by the loss's weights."""
    values, weight = (tensor.to(_at_least_single(q.logits)) for tensor in (values, weight))
