"""The two nodes around f in the graph of automatic differentiation, and the rule of their backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from doublecv.checks import differentiated_twice
from doublecv.distributions import Distribution, event_size
from doublecv.estimators import Estimator, Evaluation, LinearEstimator
from doublecv.torch.coefficients import Coefficients, with_leaves
from doublecv.torch.evaluating import Side, formulas, wide

if TYPE_CHECKING:
    from jaxtyping import Float

Pullback: TypeAlias = Callable[[Any], Any]
"""From a gradient in the logits to the gradient in what made them, one tensor or a sequence of them."""


@dataclass(eq=False)
class Rule:
    """How a backward pass turns what it found of f into gradients.

    Attributes:
        estimator: the estimator.
        family: the class of q.
        coefficients: the coefficients, for their names: their tensors come to `gradients` as an argument.
        pullback: what is done to the estimate before the norm whose derivative the coefficients get, if anything.
        values: f at the samples, which the backward pass of `mean` leaves for that of `sample`.
    """

    estimator: Estimator
    family: type[Distribution]
    coefficients: Coefficients
    pullback: Pullback | None
    values: Tensor | None = None

    def gradients(
        self, q: Distribution, leaves: Sequence[Tensor], evaluation: Evaluation, weight: Float[Tensor, "*batch"]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The estimate, and the derivative in the leaves of its square, weighted by the loss's weights."""
        coefficients = with_leaves(self.coefficients, leaves)
        learned = [leaf for leaf in leaves if leaf.requires_grad]
        estimator = self.estimator
        with formulas(q):
            if learned and isinstance(estimator, LinearEstimator) and not estimator.averaged:
                return self._from_parts(q, *estimator.parts(q, evaluation).vectors(), coefficients, weight)
            with torch.set_grad_enabled(bool(learned)):
                gradient, loss = estimator.gradient_and_loss(q, evaluation, coefficients, weight)
            held = gradient.detach()
            if not learned:
                return held, [None] * len(leaves)
            derivatives = iter(self._differentiate(gradient, loss, learned, self._cotangent(q, held, weight)))
        return held, [next(derivatives) if leaf.requires_grad else None for leaf in leaves]

    def _from_parts(
        self, q: Distribution, g0: Tensor, h: dict[str, Tensor], coefficients: Coefficients, weight: Tensor
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The same for g0 + sum_i c_i h_i, whose derivatives are h: automatic differentiation would take longer."""
        gradient = g0
        for name, part in h.items():
            gradient = gradient + coefficients[name].detach() * part
        cotangent = self._cotangent(q, gradient, weight)
        derivatives = {name: (cotangent * part).sum().to(coefficients[name].dtype) for name, part in h.items()}
        return gradient, [derivatives[name] for name in coefficients]

    def _cotangent(self, q: Distribution, gradient: Tensor, weight: Float[Tensor, "*batch"]) -> Tensor:
        """The derivative of the weighted square in the estimate."""
        cotangent: Tensor
        if self.pullback is None:
            cotangent = 2 / max(1, event_size(q)) * q.weigh(weight.abs(), gradient)
            return cotangent
        with torch.enable_grad():
            weighted = q.weigh(weight, gradient).to(q.logits.dtype).requires_grad_()
            pulled_back = self.pullback(weighted)
            parts = [pulled_back] if isinstance(pulled_back, Tensor) else pulled_back
            squared_norm = torch.stack([part.square().sum() for part in parts]).sum()
        cotangent = q.weigh(weight, *torch.autograd.grad(squared_norm, weighted))
        return cotangent

    def _differentiate(
        self, gradient: Tensor, loss: Tensor | None, learned: list[Tensor], cotangent: Tensor
    ) -> Sequence[Tensor]:
        """The derivative of the weighted square, and of what the estimator minimises besides."""
        cotangents = [(gradient, cotangent.to(gradient.dtype))]
        if loss is not None:
            cotangents.append((loss, torch.ones_like(loss)))
        dependent = [(result, cotangent) for result, cotangent in cotangents if result.requires_grad]
        if not dependent:
            return [torch.zeros_like(leaf) for leaf in learned]
        # The control variate's graph was made in the forward pass, and another backward pass may come.
        retain = self.estimator.relaxed_points > 0
        results, their_cotangents = zip(*dependent, strict=True)
        return torch.autograd.grad(results, learned, their_cotangents, retain_graph=retain, materialize_grads=True)


def sample(
    rule: Rule, side: Side, held: list[Tensor], logits: Tensor, samples: Tensor, leaves: list[Tensor]
) -> tuple[Float[Tensor, "K *logits"], Float[Tensor, "*batch"]]:
    """The first node: the samples, and the channel through which the backward pass of `mean` answers.

    Args:
        rule: the rule of the backward pass.
        side: what the estimator asks for besides f at the samples.
        held: the coefficients' tensors as `side` was computed with them, apart from the graph of the loss.
        logits: the logits of q, which get the estimate.
        samples: the samples.
        leaves: the coefficients' tensors, which get their own gradient.
    """
    x, channel = _Sample.apply(rule, side, held, logits, samples, *leaves)  # type: ignore[no-untyped-call]
    return x, channel


def mean(rule: Rule, values: Float[Tensor, "K *batch"], channel: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """The second node: the mean over the samples, whose backward pass fills the channel with the loss's weights."""
    result: Tensor = _Mean.apply(rule, values, channel)  # type: ignore[no-untyped-call]
    return result


class _Sample(torch.autograd.Function):
    """The node of `sample`."""

    @staticmethod
    def forward(
        ctx: Any, rule: Rule, side: Side, held: list[Tensor], logits: Tensor, samples: Tensor, *leaves: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The samples, unchanged, and zeros; what the formula needs besides f is kept until the graph is freed."""
        ctx.rule = rule
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, samples, *side.at_mean, *side.control, *held, *leaves)
        batch_shape = samples.shape[1 : samples.ndim - rule.family.event_axes]
        return samples.view_as(samples), torch.zeros(batch_shape, dtype=wide(logits), device=logits.device)

    @staticmethod
    def backward(ctx: Any, weighted_df: Tensor | None, weight: Tensor | None) -> tuple[Tensor | None, ...]:
        """The estimator's gradient for the logits and the derivative of its square for the coefficients."""
        rule: Rule = ctx.rule
        logits, samples, f_mean, df_mean, control, dcontrol, *held_and_leaves = ctx.saved_tensors
        count = len(held_and_leaves) // 2
        held, leaves = held_and_leaves[:count], held_and_leaves[count:]
        if weight is None:
            return (None,) * (5 + count)
        assert rule.values is not None, "the weight comes from the backward pass of mean, and so do the values"
        q = rule.family(logits=logits.detach())
        with torch.no_grad():
            values = rule.values.to(torch.promote_types(rule.values.dtype, wide(logits)))
            df = _unweighted(q, weighted_df, weight, samples) if rule.estimator.needs_df else None
            evaluation = Evaluation(samples, values, df, f_mean, df_mean, control, dcontrol)
            gradient, leaf_gradients = rule.gradients(q, held, evaluation, weight)
            logits_gradient = q.weigh(weight, gradient).to(logits.dtype)
        if torch.is_grad_enabled():
            depends_on = [logits, *leaves, weight, *([] if weighted_df is None else [weighted_df])]
            logits_gradient, *leaf_gradients = _differentiable_once([logits_gradient, *leaf_gradients], depends_on)
        return None, None, None, logits_gradient, None, *leaf_gradients


def _unweighted(q: Distribution, weighted_df: Tensor | None, weight: Tensor, samples: Tensor) -> Tensor:
    """The gradient of f in x from weight / K times it; where the weight is 0 the estimate does not count."""
    if weighted_df is None:
        return torch.zeros_like(samples)
    scale = torch.where(weight == 0, 0, samples.shape[0] / weight)
    df: Tensor = q.weigh(scale, weighted_df).to(samples.dtype)
    return df


class _Mean(torch.autograd.Function):
    """The node of `mean`."""

    @staticmethod
    def forward(
        ctx: Any, rule: Rule, values: Float[Tensor, "K *batch"], channel: Float[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """1/K sum_k f(x_k); f is saved here because autograd then sees to it that it is not changed meanwhile."""
        ctx.rule = rule
        ctx.channel_type = channel.dtype
        ctx.save_for_backward(values)
        return values.mean(dim=0)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        """weight / K for every sample, and the weight into the channel."""
        (values,) = ctx.saved_tensors
        ctx.rule.values = values.detach()
        return None, (weight / values.shape[0]).expand(values.shape), weight.to(ctx.channel_type)


def _differentiable_once(gradients: list[Tensor | None], depends_on: list[Tensor]) -> list[Tensor | None]:
    """The same gradients, of which a second derivative, in anything that they depend on, raises an error."""
    given = [gradient for gradient in gradients if gradient is not None]
    guarded = iter(_Once.apply(len(given), *given, *depends_on))  # type: ignore[no-untyped-call]
    return [None if gradient is None else next(guarded) for gradient in gradients]


class _Once(torch.autograd.Function):
    """The identity, which cannot be differentiated: the derivative of one estimate estimates no second derivative."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The first tensors; the others are inputs so that a second derivative in them finds its way here."""
        return tuple(gradient.view_as(gradient) for gradient in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> None:
        """Refuse."""
        raise differentiated_twice(
            "Expectation", "call backward or torch.autograd.grad on it once, or hold its result constant with detach"
        )
