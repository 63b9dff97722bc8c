"""The estimators as differentiable JAX functions: `expect` to plug into a loss, `estimate` to look inside.

`expect` is one `custom_vjp` around f and all that f closes over. Its backward rule runs the ONE backward pass of f that
the model's own parameters need anyway; the cotangent that this pass leaves on the samples is the gradient of f in x up
to the loss's weights, and with it the estimator's formula has all that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from doublecv.arrays import register_pytree
from doublecv.checks import check_estimator, check_pullback, check_returned_shape, differentiated_twice
from doublecv.distributions import Bernoulli, Categorical, Distribution, event_size
from doublecv.estimators import Estimator, Evaluation

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

Function: TypeAlias = Callable[[Any], Any]
"""f, from points `[K, *batch, *event]` to numbers `[K, *batch]`."""

Pullback: TypeAlias = Callable[[Any], Any]
"""From a gradient in the logits to the gradient in what made them, as `jax.vjp` returns it."""

for _family in (Bernoulli, Categorical):
    register_pytree(_family, ("logits",))
register_pytree(Evaluation, Evaluation.fields)


class Estimate(NamedTuple):
    """What `estimate` returns.

    Attributes:
        value: the mean of f over the K samples.
        gradient: the estimate of d/dlogits E_q f, for every batch element.
        coefficient_gradient: the derivative of the mean square of `gradient` (over batch and coordinates) in the
            coefficients, shaped like them.
        evaluation: the samples, f at them, and what else the estimator asked for.
    """

    value: Float[Array, "*batch"]
    gradient: Float[Array, "*logits"]
    coefficient_gradient: Any
    evaluation: Evaluation


def expect(
    f: Function,
    q: Distribution,
    estimator: Estimator,
    coefficients: Mapping[str, Any],
    key: PRNGKeyArray,
    *,
    pullback: Pullback | None = None,
) -> Float[Array, "*batch"]:
    """The mean of f over K samples of q, for every batch element, to be differentiated once in reverse mode.

    From one forward and one backward pass of f, its derivative is

    - in all that f closes over: the ordinary gradient of the mean;
    - in q's logits: the estimator's gradient. If f itself depends on the logits, its ordinary gradient is added; close
      over `q.detach()` to hold them constant, as an ELBO with log q(x) in f wants it;
    - in the coefficients: the derivative of the mean square of the estimate (over batch and coordinates), so that any
      optimiser that descends along it reduces the variance. A batch element counts with the absolute weight that it
      has in the loss, so that neither a loss that is maximised nor one with padded examples misleads it. Coefficients
      that are running averages (`estimator.averaged`) get themselves minus this step's values, for `optax.sgd(0.01)`.

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]` that treats samples and batch elements one by one. It
            is differentiated in x only if `estimator.needs_df` (and at the mean of q if `estimator.needs_mean`, and at
            relaxed points, twice, if the estimator has `relaxed_points`).
            It is traced, as under jit: a simulator in NumPy goes through `jax.pure_callback`, or outside jit into
            `estimate`, which calls it with plain arrays.
        q: the distribution; its logits may be traced.
        estimator: any estimator of `doublecv`.
        coefficients: the estimator's coefficients, at first `estimator.coefficients()`.
        key: a JAX random key.
        pullback: where it is given, the coefficients' gradient is that of the squared norm of `pullback(gradient)`:
            with `logits, pullback = jax.vjp(encode, parameters)`, of the gradient in the encoder's parameters.
    """
    check_pullback(estimator, pullback)
    held, noise = _prepare(q, estimator, coefficients, key)
    x = estimator.draw(held, noise)
    side = _side(f, held, noise, x, estimator, coefficients)
    function = _closed(lambda x: _checked_values(f(x), estimator, held), x)
    weight = jnp.zeros(q.batch_shape, function.result.dtype)
    rule = _closed(partial(_gradients, estimator, pullback), held, coefficients, x, function.result, x, side, weight)
    value: Array = _expectation(
        function.call, rule.call, estimator.needs_df, q, coefficients, x, side, function.closed_over, rule.closed_over
    )
    return value


def estimate(
    f: Function,
    q: Distribution,
    estimator: Estimator,
    coefficients: Mapping[str, Any],
    key: PRNGKeyArray,
    *,
    pullback: Pullback | None = None,
) -> Estimate:
    """The value, the gradient in the logits and the coefficients' gradient, explicitly.

    The arguments are those of `expect`, and so is the coefficients' gradient, for a loss that is the mean over the
    batch. Nothing of f but its derivative in x is computed, so this is the form for logits that are themselves the
    parameters, for diagnostics, and for use outside automatic differentiation.
    """
    check_pullback(estimator, pullback)
    held, noise = _prepare(q, estimator, coefficients, key)
    x = estimator.draw(held, noise)
    values, df = evaluate(f, x, differentiate=estimator.needs_df)
    values = _checked_values(values, estimator, q)
    side = _side(f, held, noise, x, estimator, coefficients)
    weight = jnp.full(q.batch_shape, 1 / max(1, prod(q.batch_shape)), held.logits.dtype)
    rule = partial(_gradients, estimator, pullback)
    gradient, coefficient_gradient = rule(held, coefficients, x, values, df, side, weight)
    evaluation = Evaluation(x, values, df, *side.at_mean, *side.control)
    return Estimate(jnp.mean(values, axis=0), gradient, coefficient_gradient, evaluation)


def evaluate(
    f: Function, x: Float[Array, "K *logits"], differentiate: bool = True
) -> tuple[Float[Array, "K *batch"], Float[Array, "K *logits"] | None]:
    """f at the points x, and its gradient in x where that is wanted."""
    if not differentiate:
        return f(x), None
    values, pullback = jax.vjp(f, x)
    (df,) = pullback(jnp.ones_like(values))
    return values, df


class _Side(NamedTuple):
    """What the estimator asks for besides f at the samples; nothing of it reaches the model's own gradient.

    Attributes:
        at_mean: f and its gradient in x at the mean of q, or twice None.
        control: the control variate at the relaxed points and its gradient in the logits, or twice None.
        control_pullback: from a cotangent of `control` to one of the coefficients, on which the relaxed points depend.
    """

    at_mean: tuple[Any, Any]
    control: tuple[Any, Any]
    control_pullback: Any


def _prepare(
    q: Distribution, estimator: Estimator, coefficients: Mapping[str, Any], key: PRNGKeyArray
) -> tuple[Distribution, Float[Array, "..."]]:
    check_estimator(estimator)
    estimator.check_family(q)
    estimator.check_coefficients(coefficients)
    held = q.detach()
    # Noise of 8 or 11 bits would round the probabilities that are sampled away from those in the score.
    dtype = jnp.promote_types(held.logits.dtype, jnp.float32)
    return held, jax.random.uniform(key, estimator.noise_shape(held), dtype)


def _side(
    f: Function, q: Distribution, noise: Any, x: Any, estimator: Estimator, coefficients: Mapping[str, Any]
) -> _Side:
    at_mean: tuple[Any, Any] = (None, None)
    if estimator.needs_mean:
        values, df = evaluate(f, q.mean[None])
        check_returned_shape("f at the mean of q", values, (1, *q.batch_shape))
        at_mean = jax.tree.map(lambda leaf: leaf[0], (values, df))
    control: tuple[Any, Any] = (None, None)
    control_pullback = None
    if estimator.relaxed_points:
        control, control_pullback = jax.vjp(
            lambda c: _relaxed(f, q, noise, x, estimator, c), jax.lax.stop_gradient(coefficients)
        )
    # f closes over the model's parameters, to which no gradient may come from here.
    return jax.lax.stop_gradient(_Side(at_mean, control, control_pullback))


def _relaxed(
    f: Function, q: Distribution, noise: Any, x: Any, estimator: Estimator, coefficients: Mapping[str, Any]
) -> tuple[Any, Any]:
    """The control variate at the relaxed points, and its gradient in the logits of each."""
    logits = q.broadcast_to((estimator.relaxed_points, *q.batch_shape)).logits

    def control(logits: Any) -> Any:
        values = estimator.control(f, type(q)(logits=logits), noise, x, coefficients)
        check_returned_shape("f at the relaxed points", values, (estimator.relaxed_points, *q.batch_shape))
        return values

    return evaluate(control, logits)


def _checked_values(values: Any, estimator: Estimator, q: Distribution) -> Any:
    check_returned_shape("f", values, (estimator.samples, *q.batch_shape))
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values.astype(jnp.promote_types(q.logits.dtype, jnp.float32))
    return values


def _gradients(
    estimator: Estimator,
    pullback: Pullback | None,
    q: Distribution,
    coefficients: Mapping[str, Any],
    x: Any,
    values: Any,
    df: Any,
    side: _Side,
    weight: Float[Array, "*batch"],
) -> tuple[Any, Any]:
    """The estimate, and the derivative in the coefficients of its square, weighted by the loss's weights.

    Coefficients that the estimator learns from something else get the derivative of that.
    """

    def formula(coefficients: Mapping[str, Any], control: tuple[Any, Any]) -> Any:
        evaluation = Evaluation(x, values, df, *side.at_mean, *control)
        return estimator.gradient_and_loss(q, evaluation, coefficients, weight)

    (gradient, loss), formula_pullback = jax.vjp(formula, coefficients, side.control)
    if pullback is None:
        cotangent = 2 / max(1, event_size(q)) * q.weigh(jnp.abs(weight), gradient)
    else:
        weighted = q.weigh(weight, gradient).astype(q.logits.dtype)
        pulled_back, pushforward = jax.vjp(pullback, weighted)
        # The loss's own backward pass makes the same products. The barrier keeps XLA from turning these round to fit
        # the next ones, so that it sees that they are the same.
        (pushed_forward,) = pushforward(jax.lax.optimization_barrier(pulled_back))  # type: ignore[no-untyped-call]
        cotangent = 2 * q.weigh(weight, pushed_forward)
    coefficient_gradient, control_cotangent = formula_pullback(
        (cotangent.astype(gradient.dtype), jax.tree.map(jnp.ones_like, loss))
    )
    if side.control_pullback is not None:
        (through_control,) = side.control_pullback(control_cotangent)
        coefficient_gradient = jax.tree.map(jnp.add, coefficient_gradient, through_control)
    return gradient, coefficient_gradient


class _Closed(NamedTuple):
    """A function that closes over no array: what it closed over is its first argument.

    Attributes:
        call: from `closed_over` and the function's own arguments to its result.
        closed_over: the arrays, traced or not, that the function closed over.
        result: shape and type of the result.
    """

    call: Callable[..., Any]
    closed_over: list[Any]
    result: Any


def _closed(function: Callable[..., Any], *arguments: Any) -> _Closed:
    """Close a function over nothing.

    JAX traces the rules of a `custom_vjp` when it differentiates, and under scan or vmap what they closed over is then
    gone or has another batch. `jax.closure_convert` leaves integers closed over, which scan does not forgive.
    """
    program, result = jax.make_jaxpr(function, return_shape=True)(*arguments)

    def call(closed_over: list[Any], *arguments: Any) -> Any:
        results = jax.core.eval_jaxpr(program.jaxpr, closed_over, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(result), results)

    return _Closed(call, list(program.consts), result)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _expectation(
    function: Callable[..., Any],
    rule: Callable[..., Any],
    needs_df: bool,
    q: Distribution,
    coefficients: Any,
    x: Any,
    side: _Side,
    function_over: list[Any],
    rule_over: list[Any],
) -> Any:
    """The mean of f over the samples, which the two functions below teach JAX to differentiate."""
    return jnp.mean(function(function_over, x), axis=0)


def _forward(
    function: Callable[..., Any], rule: Callable[..., Any], needs_df: bool, *primals: Any
) -> tuple[Any, tuple[Any, ...]]:
    q, coefficients, x, side, function_over, rule_over = jax.tree.map(
        lambda primal: primal.value, primals, is_leaf=_is_primal
    )
    estimate_wanted = any(leaf.perturbed for leaf in jax.tree.leaves(primals[:2], is_leaf=_is_primal))
    # What is not being differentiated may well have no derivative: it stays outside the backward pass.
    differentiated = [
        array if primal.perturbed else None for array, primal in zip(function_over, primals[4], strict=True)
    ]

    def values_at(x: Any, differentiated: list[Any]) -> Any:
        merged = [array if new is None else new for array, new in zip(function_over, differentiated, strict=True)]
        return function(merged, x)

    if needs_df and estimate_wanted:
        values, pullback = jax.vjp(values_at, x, differentiated)
    else:
        values, pullback = jax.vjp(partial(values_at, x), differentiated)
    residuals = (q, coefficients, x, side, rule_over) if estimate_wanted else None
    return jnp.mean(values, axis=0), (values, pullback, residuals)


def _backward(
    function: Callable[..., Any], rule: Callable[..., Any], needs_df: bool, saved: tuple[Any, ...], weight: Any
) -> tuple[Any, ...]:
    values, pullback, residuals = saved
    if isinstance(weight, SymbolicZero):
        weight = jnp.zeros(values.shape[1:], values.dtype)
    *weighted_df, function_cotangent = pullback(jnp.broadcast_to(weight / values.shape[0], values.shape))
    if residuals is None:
        return None, None, None, None, function_cotangent, None
    q, coefficients, x, side, rule_over = residuals
    # weighted_df is weight / K times the gradient of f; where the weight is 0 the estimate does not count.
    scale = jnp.where(weight == 0, 0, values.shape[0] / jnp.where(weight == 0, 1, weight))
    df = q.weigh(scale, weighted_df[0]).astype(x.dtype) if weighted_df else jnp.zeros_like(x)
    gradient, coefficient_gradient = rule(rule_over, q, coefficients, x, values, df, side, weight)
    logits_gradient = q.weigh(weight, gradient).astype(q.logits.dtype)
    logits_gradient, coefficient_gradient = _differentiable_once((logits_gradient, coefficient_gradient))
    return jax.tree.map(lambda _: logits_gradient, q), coefficient_gradient, None, None, function_cotangent, None


_expectation.defvjp(_forward, _backward, symbolic_zeros=True)


def _is_primal(node: Any) -> bool:
    return hasattr(node, "perturbed")


@jax.custom_jvp
def _differentiable_once(gradients: Any) -> Any:
    """The identity, which cannot be differentiated: the derivative of one estimate estimates no second derivative."""
    return gradients


@_differentiable_once.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise differentiated_twice(
        "expect", "take jax.grad of it once, or hold its result constant with jax.lax.stop_gradient"
    )
