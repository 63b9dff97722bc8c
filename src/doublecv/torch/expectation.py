"""`Expectation`, the module, and `estimate`, the same in explicit form."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from doublecv.arrays import require_floating
from doublecv.checks import check_estimator, check_pullback
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, Evaluation
from doublecv.estimators.linear import AVERAGE_RATE
from doublecv.torch.coefficients import Coefficients, as_tensors, by_name, leaves, with_leaves
from doublecv.torch.evaluating import Function, checked_values, draw, evaluate, evaluate_side, wide
from doublecv.torch.families import as_family
from doublecv.torch.nodes import Pullback, Rule, mean, sample

if TYPE_CHECKING:
    from jaxtyping import Float


class Expectation(nn.Module):
    """The mean of f over K samples of q, to be differentiated once; the estimator's coefficients are its parameters.

    From one forward and one backward pass of f, `backward` gives

    - to all that f uses: the ordinary gradient of the mean;
    - to q's logits, and so to whatever produced them: the estimator's gradient. If f itself depends on the logits, its
      ordinary gradient is added; take `q.detach()` in f to hold them constant, as an ELBO with log q(x) in f wants it;
    - to the coefficients: the derivative of the mean square of the estimate (over batch and coordinates), so that any
      optimiser that is handed them reduces the variance. A batch element counts with the absolute weight that it has in
      the loss, so that neither a loss that is maximised nor one with padded examples misleads it.

    Coefficients that are running averages (`estimator.averaged`) are buffers, which `backward` moves by itself while
    the module is in training mode, as batch normalisation moves its own; no optimiser is needed for them.

    f may call a compiled model; `torch.compile` leaves the module itself as it is. REBAR and RELAX differentiate f
    twice to learn their coefficients, which torch does not do through a compiled model. The transforms of `torch.func`
    do not reach through the module; `estimate` gives its gradient explicitly.

    >>> import doublecv as dcv
    >>> expectation = Expectation(dcv.DoubleCV(samples=4))
    >>> logits = torch.zeros(3, 5, requires_grad=True)
    >>> expectation(lambda x: x.sum(-1), dcv.Bernoulli(logits=logits)).mean().backward()
    >>> logits.grad.shape, expectation.alpha.grad.shape
    (torch.Size([3, 5]), torch.Size([]))

    Args:
        estimator: any estimator of `doublecv`. RELAX's network is an `nn.Module`, which becomes a part of this one:
            `Expectation(doublecv.Relax(network=module, apply=lambda network, z: network(z)))`.
    """

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        check_estimator(estimator)
        self.estimator = estimator
        start = as_tensors(estimator.coefficients(), torch.get_default_dtype())
        self._names = tuple(start)
        for name, value in start.items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            elif name in estimator.averaged:
                self.register_buffer(name, value.detach().clone())
            else:
                self.register_parameter(name, nn.Parameter(value.detach().clone()))

    def coefficients(self) -> dict[str, Tensor | nn.Module]:
        """The learnable coefficients by name, as `estimate` takes them."""
        return {name: getattr(self, name) for name in self._names}

    # The two nodes speak to each other in the backward pass, which a compiled graph of both would not see.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        f: Function,
        q: Distribution | torch.distributions.Distribution,
        *,
        generator: torch.Generator | None = None,
        noise: Float[Tensor, "..."] | None = None,
        pullback: Pullback | None = None,
        **options: Any,
    ) -> Float[Tensor, "*batch"]:
        """The mean of f over K samples, for every batch element.

        Args:
            f: a function from `[K, *batch, *event]` to `[K, *batch]` that treats samples and batch elements one by one.
                It is differentiated in x only if `estimator.needs_df` (and at the mean of q if `estimator.needs_mean`).
            q: a distribution of doublecv, or `torch.distributions.Bernoulli` or `OneHotCategorical`, or `Independent`
                of one; the last axis of a Bernoulli's logits is that of the variables, as in doublecv.
            generator: where the noise comes from; torch's global generator if None.
            noise: uniform noise on [0, 1) of shape `estimator.noise_shape(q)`, in place of a generator.
            pullback: where it is given, the coefficients' gradient is that of the squared norm of `pullback(gradient)`.
                It is differentiated too: `lambda g: torch.autograd.grad(logits, parameters, g, create_graph=True)`.
            options: fields of the estimator that depend on the batch and so change from call to call, such as `apply`
                of Relax, `expected_f` of RStar and `context` of Surrogate.
        """
        estimator = replace(self.estimator, **options) if options else self.estimator
        check_pullback(estimator, pullback)
        coefficients = self._followed(self.coefficients())
        q = _checked_family(q, estimator, coefficients)
        noise = _checked_noise(q, estimator, generator, noise)
        held = q.detach()
        samples = draw(held, noise, estimator)
        tensors = leaves(coefficients)
        learned = any(tensor.requires_grad for tensor in tensors)
        if not (torch.is_grad_enabled() and (learned or q.logits.requires_grad)):
            return checked_values(f(samples), estimator, held).mean(dim=0)
        held_tensors = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
        side = evaluate_side(f, held, noise, samples, estimator, with_leaves(coefficients, held_tensors), learned)
        rule = Rule(estimator, type(held), coefficients, pullback)
        x, channel = sample(rule, side, held_tensors, q.logits, samples, tensors)
        values = checked_values(f(x if estimator.needs_df else samples), estimator, held)
        return mean(rule, values, channel)

    def _followed(self, coefficients: dict[str, Tensor | nn.Module]) -> dict[str, Tensor | nn.Module]:
        """The coefficients with copies for running averages: the gradient of a copy moves the average itself."""
        if not (self.training and torch.is_grad_enabled()):
            return coefficients
        followed = dict(coefficients)
        for name in self.estimator.averaged:
            average = self.get_buffer(name)
            copy = average.clone().requires_grad_()
            copy.register_post_accumulate_grad_hook(partial(_move, average))  # type: ignore[no-untyped-call]
            followed[name] = copy
        return followed

    def extra_repr(self) -> str:
        """The estimator."""
        return repr(self.estimator)


class Estimate(NamedTuple):
    """What `estimate` returns; nothing of it has a graph.

    Attributes:
        value: the mean of f over the K samples.
        gradient: the estimate of d/dlogits E_q f, for every batch element.
        coefficient_gradient: the derivative of the mean square of `gradient` (over batch and coordinates) in the
            coefficients, by name; in a module, by the names of its parameters.
        evaluation: the samples, f at them, and what else the estimator asked for.
    """

    value: Float[Tensor, "*batch"]
    gradient: Float[Tensor, "*logits"]
    coefficient_gradient: dict[str, Any]
    evaluation: Evaluation


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

    The coefficients' gradient is that of `Expectation` for a loss that is the mean over the batch. Nothing of f but its
    derivative in x is computed, so this is the form for logits that are themselves the parameters, for diagnostics, and
    for use outside automatic differentiation.

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, of doublecv or of torch.
        estimator: any estimator of `doublecv`.
        coefficients: the estimator's coefficients: `estimator.coefficients()` or `expectation.coefficients()`.
        generator: where the noise comes from; torch's global generator if None.
        noise: uniform noise on [0, 1) of shape `estimator.noise_shape(q)`, in place of a generator.
        pullback: where it is given, the coefficients' gradient is that of the squared norm of `pullback(gradient)`.
    """
    check_estimator(estimator)
    check_pullback(estimator, pullback)
    q = _checked_family(q, estimator, coefficients).detach()
    noise = _checked_noise(q, estimator, generator, noise)
    x = draw(q, noise, estimator)
    values, df = evaluate(f, x) if estimator.needs_df else (f(x), None)
    values = checked_values(values, estimator, q).detach()
    given = as_tensors(coefficients, wide(q.logits), q.logits.device)
    held_tensors = [tensor.detach().requires_grad_() for tensor in leaves(given)]
    side = evaluate_side(f, q, noise, x, estimator, with_leaves(given, held_tensors), learned=True)
    weight = torch.full(q.batch_shape, 1 / max(1, prod(q.batch_shape)), dtype=wide(q.logits), device=q.logits.device)
    evaluation = Evaluation(x, values, df, *side.at_mean, *side.control)
    gradient, derivatives = Rule(estimator, type(q), given, pullback).gradients(q, held_tensors, evaluation, weight)
    evaluation = replace(evaluation, **{name: _detached(getattr(evaluation, name)) for name in ("control", "dcontrol")})
    return Estimate(values.mean(dim=0), gradient, by_name(given, derivatives), evaluation)


def _move(average: Tensor, copy: Tensor) -> None:
    assert copy.grad is not None
    average.sub_(AVERAGE_RATE * copy.grad)
    copy.grad = None


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _checked_family(q: Any, estimator: Estimator, coefficients: Coefficients) -> Distribution:
    family: Distribution = as_family(q)
    estimator.check_family(family)
    estimator.check_coefficients(coefficients)
    if not isinstance(family.logits, Tensor):
        raise TypeError(
            f"logits of q must be a torch tensor, got {type(family.logits).__name__}; convert them first, for example "
            f"with torch.as_tensor(logits)"
        )
    return family


def _checked_noise(
    q: Distribution, estimator: Estimator, generator: torch.Generator | None, noise: Tensor | None
) -> Float[Tensor, "..."]:
    if noise is None:
        shape, logits = estimator.noise_shape(q), q.logits
        return torch.rand(shape, dtype=wide(logits), device=logits.device, generator=generator)
    if generator is not None:
        raise ValueError("noise and generator were both given, but noise takes the generator's place; leave one out")
    require_floating("noise", noise)
    return noise
