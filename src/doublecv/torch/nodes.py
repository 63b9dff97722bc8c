"""The two nodes around f in the graph of automatic differentiation, and the rule of their backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from doublecv.arrays import log_mean_exp
from doublecv.checks import differentiated_twice, missing_gradient
from doublecv.distributions import Distribution, event_size
from doublecv.estimators import Estimator, Evaluation, Learned, LinearEstimator
from doublecv.torch.evaluating import Side, formulas, only_where
from doublecv.torch.small import Step, is_small, small_backward, smallest_weight

if TYPE_CHECKING:
    from jaxtyping import Float

Pullback: TypeAlias = Callable[[Any], Any]
"""From a gradient in the logits to the gradient in what made them, one tensor or a sequence of them."""


def gradients(
    estimator: Estimator,
    q: Distribution,
    evaluation: Evaluation,
    learned: Learned,
    weight: Float[Tensor, "*batch"],
    context: Tensor | None,
    pullback: Pullback | None,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Return the estimate, the derivative of its weighted square in the numbers, and the statistics of this step.

    Numbers that do not require a gradient receive none. Those of which `learned` has copies are to be summed with
    `total`.
    """
    wanted = [name for name, value in learned.numbers.items() if value.requires_grad]
    absolute = weight.abs()
    if estimator.gives_derivatives or not wanted:
        with torch.no_grad(), formulas(q):
            applied = estimator.apply(q, evaluation, learned, absolute, context)
            if not (wanted and applied.derivatives):
                return applied.gradient, {}, applied.statistics
            found = applied.derivatives(_cotangent(q, applied.gradient, weight, pullback))
            numbers = {name: found[name].to(learned.numbers[name].dtype) for name in wanted}
            return applied.gradient, numbers, applied.statistics
    with formulas(q):
        with torch.enable_grad():
            applied = estimator.apply(q, evaluation, learned, absolute, context)
        held = applied.gradient.detach()
        cotangents = [(applied.gradient, _cotangent(q, held, weight, pullback).to(held.dtype))]
        if applied.loss is not None:
            cotangents.append((applied.loss, torch.ones_like(applied.loss)))
        dependent = [(result, cotangent) for result, cotangent in cotangents if result.requires_grad]
        leaves = [learned.numbers[name] for name in wanted]
        if not dependent:
            derivatives: Sequence[Tensor] = [torch.zeros_like(leaf) for leaf in leaves]
        else:
            # The control variate's graph was made in the forward pass, and another backward pass may come.
            retain = estimator.needs.relaxed_points > 0
            results, their_cotangents = zip(*dependent, strict=True)
            unit = 1.0 if evaluation.control is None else _unit(their_cotangents[0], evaluation.control.detach())
            scaled = [cotangent / unit for cotangent in their_cotangents]
            derivatives = torch.autograd.grad(results, leaves, scaled, retain_graph=retain, materialize_grads=True)
            derivatives = [unit * derivative for derivative in derivatives]
    statistics = {name: value.detach() for name, value in applied.statistics.items()}
    return held, dict(zip(wanted, derivatives, strict=True)), statistics


def total(
    derivatives: Mapping[str, Tensor], numbers: Mapping[str, Tensor], weight: Float[Tensor, "*batch"]
) -> dict[str, Tensor]:
    """Return the derivatives in the numbers, from those in the copies, if any, of the batch elements that count."""

    def of_number(name: str, derivative: Tensor) -> Tensor:
        if derivative.ndim == numbers[name].ndim:
            return derivative
        summed: Tensor = only_where(weight != 0, derivative).sum()
        return summed

    return {name: of_number(name, derivative) for name, derivative in derivatives.items()}


def _unit(cotangent: Tensor, control: Tensor) -> Tensor:
    """Return the power of two by which cotangents are divided on their way through f, whose type may be narrow.

    The derivative of the squared estimate grows as the square of f, which overflows in 16 bits where f does not.
    """
    if cotangent.numel() == 0:
        return torch.ones((), dtype=cotangent.dtype, device=cotangent.device)
    size = cotangent.abs().max() * control.abs().max().clamp(min=1e-3)
    _, exponent = torch.frexp(torch.where(size.isfinite() & (size > 0), size, 1))
    return torch.ldexp(torch.ones_like(size), exponent - 1)


def _cotangent(q: Distribution, gradient: Tensor, weight: Float[Tensor, "*batch"], pullback: Pullback | None) -> Tensor:
    """Return the derivative of the weighted square of the estimate in the estimate."""
    if pullback is None:
        return 2 / max(1, event_size(q)) * masked(q, weight.abs(), gradient)
    with torch.enable_grad():
        weighted = masked(q, weight, gradient).requires_grad_()
        pulled_back = pullback(weighted)
        parts = [pulled_back] if isinstance(pulled_back, Tensor) else pulled_back
        squared_norm = torch.stack([part.square().sum() for part in parts]).sum()
    return masked(q, weight, *torch.autograd.grad(squared_norm, weighted))


def masked(q: Distribution, weight: Float[Tensor, "*batch"], v: Tensor) -> Tensor:
    """Return weight times v, and 0 where the weight is 0, even if v is not finite there."""
    expanded = weight[(..., *(None,) * q.event_axes)]
    return torch.where(expanded != 0, expanded * v, 0)


@dataclass(eq=False)
class Rule:
    """Hold what the backward pass needs, and what its first node leaves for its second.

    Attributes:
        estimator: the estimator.
        family: a function from logits to the distribution.
        mean: its mean; None on paths.
        learned: the learned state that the estimate uses; its numbers are apart from the graph of the loss.
        fixed: the coefficients and the floor, where they are held fixed in this step, in the order of `held_names`.
        pullback: what is done to the estimate before the norm whose derivative the numbers receive, if anything.
        report: a function that is called with the statistics of the step.
        check: whether to verify that only the mean of f reaches the samples; it costs one more backward pass of f.
        x: the samples as f saw them, while `check` is on or auxiliary output exists.
        values: f at the samples, which the backward pass of `mean` leaves for that of `sample`.
        connected: f at the samples with its graph, where the gradients are differentiated again.
        expected: the gradient that should reach the samples, where it was verified.
        excess: the gradient that reached the samples through auxiliary output.
        gradient: the gradient of f in x, where the objective is not the mean of f.
    """

    estimator: Estimator
    family: Callable[[Tensor], Distribution]
    mean: Tensor | None
    learned: Learned
    fixed: Float[Tensor, "numbers"] | None
    pullback: Pullback | None
    report: Callable[[Mapping[str, Any]], None]
    check: bool = False
    x: Tensor | None = None
    values: Tensor | None = None
    connected: tuple[Tensor, ...] = ()
    expected: Tensor | None = None
    excess: Tensor | None = None
    gradient: Tensor | None = None


def sample(
    rule: Rule, side: Side, logits: Tensor, samples: Tensor, parameters: Sequence[Tensor]
) -> tuple[Float[Tensor, "K *logits"], Float[Tensor, "*batch"]]:
    """Return the samples, and the channel through which the backward pass of `mean` answers.

    Args:
        rule: the rule of the backward pass.
        side: what the estimator needs in addition to f at the samples.
        logits: the logits of q, which receive the estimate.
        samples: the samples.
        parameters: the learned numbers, in the order of `rule.learned.numbers`, which receive their own gradient.
    """
    x, channel = _Sample.apply(rule, side, logits, samples, *parameters)  # type: ignore[no-untyped-call]
    return x, channel


def combine(estimator: Estimator, values: Float[Tensor, "K *batch"]) -> Float[Tensor, "*batch"]:
    """Return the value of the objective: the mean of f, or the bound."""
    result: Tensor = log_mean_exp(values, axis=0) if estimator.needs.bound else values.mean(dim=0)
    return result


def mean(rule: Rule, values: Float[Tensor, "K *batch"], channel: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return the mean over the samples; its backward pass fills the channel with the weights of the loss."""
    result: Tensor = _Mean.apply(rule, values, channel)  # type: ignore[no-untyped-call]
    return result


def auxiliary(rule: Rule, aux: Any) -> Any:
    """Return auxiliary output whose gradient does not count as the gradient of f in x."""

    def guard(leaf: Any) -> Any:
        is_differentiable = isinstance(leaf, Tensor) and leaf.requires_grad
        return _Auxiliary.apply(rule, leaf) if is_differentiable else leaf  # type: ignore[no-untyped-call]

    return torch.utils._pytree.tree_map(guard, aux)


class _Sample(torch.autograd.Function):
    """The node of `sample`."""

    @staticmethod
    def forward(
        ctx: Any, rule: Rule, side: Side, logits: Tensor, samples: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the samples and zeros; what the formula needs is kept until the graph is freed."""
        ctx.rule = rule
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, samples, *side, *rule.learned.numbers.values(), *parameters)
        q = rule.family(logits)
        # A copy where f receives it, because f may change its argument in place.
        x = samples.clone() if rule.estimator.needs.gradient else samples.view_as(samples)
        return x, torch.zeros(q.batch_shape, dtype=samples.dtype, device=logits.device)

    @staticmethod
    def backward(ctx: Any, weighted_df: Tensor | None, weight: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the estimator's gradient for the logits and the derivative of its square for the numbers."""
        rule: Rule = ctx.rule
        logits, samples, *rest = ctx.saved_tensors
        side, rest = Side(*rest[: len(Side._fields)]), rest[len(Side._fields) :]
        held, parameters = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        if weight is None:
            return (None,) * (4 + len(parameters))
        assert rule.values is not None, "the weight and the values both come from the backward pass of mean"
        with torch.no_grad():
            if rule.estimator.needs.gradient:
                weighted_df = _checked_gradient(rule, weighted_df, samples, weight)
        numbers = dict(zip(rule.learned.numbers, held, strict=True))
        step = Step(
            logits.detach(),
            rule.mean,
            samples,
            rule.values,
            weight.detach(),
            None if weighted_df is None else weighted_df.detach(),
            rule.gradient,
            side,
            rule.learned._replace(numbers=numbers),
            rule.fixed,
            dict(zip(numbers, parameters, strict=True)),
        )
        backward = small_backward if is_small(rule.estimator, rule.pullback, step) else _backward
        of_logits, of_numbers, statistics = backward(rule.estimator, rule.family, rule.pullback, step)
        with torch.no_grad():
            rule.report(statistics)
        of_parameters = [of_numbers.get(name) for name in numbers]
        if torch.is_grad_enabled():
            depends_on = [logits, *parameters, weight, *rule.connected]
            rule.connected = ()
            if weighted_df is not None:
                depends_on.append(weighted_df)
            of_logits, *of_parameters = _differentiable_once([of_logits, *of_parameters], depends_on)
        return None, None, of_logits, None, *of_parameters


def _backward(
    estimator: Estimator, family: Callable[[Tensor], Distribution], pullback: Pullback | None, step: Step
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradients in the logits and the numbers, and the statistics of this step."""
    q = family(step.logits).widen().remember(step.mean)
    samples, weight, side = step.samples, step.weight, step.side
    with torch.no_grad():
        values = step.values.to(torch.promote_types(step.values.dtype, q.logits.dtype))
        # A batch element whose weight is too small to be divided by does not count.
        weight = torch.where(weight.abs() > smallest_weight(weight.dtype, samples.shape[0]), weight, 0)
        counts, df = weight != 0, None
        if estimator.needs.gradient:
            assert step.weighted_df is not None
            scale = torch.where(counts, samples.shape[0] / weight, 0)
            df = masked(q, scale, step.weighted_df.to(samples.dtype))
            if step.gradient is not None:
                df = only_where(counts, step.gradient)
        values = only_where(counts, values)
    # The control variate has a graph of its own, and gradients are off in a backward pass.
    with torch.enable_grad():
        side = side.only_where(counts)
    learned = step.learned
    if step.fixed is not None:
        assert isinstance(estimator, LinearEstimator)
        learned = learned._replace(numbers=dict(zip(estimator.held_names, step.fixed.unbind(), strict=True)))
    gradient, of_numbers, statistics = gradients(
        estimator, q, side.evaluation(samples, values, df), learned, weight, side.context, pullback
    )
    with torch.no_grad():
        of_logits = masked(q, weight, gradient).to(step.logits.dtype)
    return of_logits, total(of_numbers, step.parameters, weight), statistics


def _checked_gradient(rule: Rule, weighted_df: Tensor | None, samples: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient that the mean of f sent to the samples; raise if it is missing or has other parts."""
    counts = bool(weight.any()) if rule.check else False
    if weighted_df is None and counts:
        # The graph of a compiled model does not show beforehand that nothing comes back.
        raise missing_gradient(rule.estimator)
    total = torch.zeros_like(samples) if weighted_df is None else weighted_df
    if rule.excess is not None:
        total, rule.excess = total - rule.excess, None
    if not counts or total.numel() == 0:
        return total
    if rule.expected is not None:
        size = rule.expected.abs().max()
        if bool((total - rule.expected).abs().max() > 1e-3 * size + 1e-30):
            raise RuntimeError(
                "a loss other than the mean of f reached the samples, for example one on a tensor that f stored; its "
                "gradient would be taken for that of f. Return the tensor as auxiliary output instead: f returns "
                "(values, aux) and the call has has_aux=True"
            )
        rule.expected = None
    return total


class _Mean(torch.autograd.Function):
    """The node of `mean`."""

    @staticmethod
    def forward(
        ctx: Any, rule: Rule, values: Float[Tensor, "K *batch"], channel: Float[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """Return the mean; autograd makes sure that the saved values are not changed in the meantime."""
        ctx.rule = rule
        ctx.channel_type = channel.dtype
        ctx.save_for_backward(values)
        return combine(rule.estimator, values)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        """Return the share of every sample in the weight, 1 / K for a mean, and the weight for the channel."""
        (values,) = ctx.saved_tensors
        rule: Rule = ctx.rule
        rule.values = values.detach()
        rule.connected = (values,) if torch.is_grad_enabled() else ()
        cotangent = (weight / values.shape[0]).expand(values.shape)
        if rule.estimator.needs.bound:
            cotangent = weight * torch.softmax(values, dim=0)
            if rule.x is not None and values.requires_grad:
                # The weights of a bound may be too small to be divided by: a backward pass for the samples alone.
                (gradient,) = torch.autograd.grad(
                    values, rule.x, torch.ones_like(values), retain_graph=True, materialize_grads=True
                )
                rule.gradient = gradient.to(ctx.channel_type)
        if rule.check and rule.x is not None and values.requires_grad:
            (rule.expected,) = torch.autograd.grad(values, rule.x, cotangent, retain_graph=True, materialize_grads=True)
        return None, cotangent, weight.to(ctx.channel_type)


class _Auxiliary(torch.autograd.Function):
    """The node of `auxiliary`."""

    @staticmethod
    def forward(ctx: Any, rule: Rule, aux: Tensor) -> Tensor:
        """Return the auxiliary output."""
        ctx.rule = rule
        ctx.save_for_backward(aux)
        return aux.view_as(aux)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
        """Pass the gradient on, and note what part of it reaches the samples, where it does not count."""
        (aux,) = ctx.saved_tensors
        rule: Rule = ctx.rule
        if rule.x is not None and rule.x.requires_grad:
            (part,) = torch.autograd.grad(aux, rule.x, cotangent, retain_graph=True, allow_unused=True)
            if part is not None:
                rule.excess = part if rule.excess is None else rule.excess + part
        return None, cotangent


def _differentiable_once(gradients: list[Any], depends_on: list[Tensor]) -> list[Any]:
    """Return the same gradients, whose second derivative in anything that they depend on raises an error."""
    given = [gradient for gradient in gradients if gradient is not None]
    guarded = iter(_Once.apply(len(given), *given, *depends_on))  # type: ignore[no-untyped-call]
    return [None if gradient is None else next(guarded) for gradient in gradients]


class _Once(torch.autograd.Function):
    """The identity, which cannot be differentiated: no estimate of a second derivative exists."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the first tensors; the others are inputs so that a second derivative in them reaches this node."""
        return tuple(gradient.view_as(gradient) for gradient in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> None:
        """Refuse."""
        raise differentiated_twice(
            "the expectation",
            "call backward or torch.autograd.grad on it once, or hold its result constant with detach",
        )
