"""The estimators as differentiable JAX functions: `expect` to plug into a loss, `estimate` to look inside.

`expect` puts two nodes around f. The first hands out the samples together with an empty channel, the second takes f at
the samples and the channel and returns the mean. In the backward pass the second node sends f and the loss's weights
back through the channel, and the samples collect the gradient of f in x on their way: so the first node has all that
the estimator's formula asks for after the ONE backward pass of f that the model's own parameters need anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from doublecv.arrays import register_pytree
from doublecv.checks import check_estimator, check_returned_shape, differentiated_twice
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
    gradient: Float[Array, "*batch *event"]
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
      has in the loss, so that neither a loss that is maximised nor one with padded examples misleads it.

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]` that treats samples and batch elements one by one. It
            is differentiated in x only if `estimator.needs_df` (and at the mean of q if `estimator.needs_mean`).
        q: the distribution; its logits may be traced.
        estimator: any estimator of `doublecv`.
        coefficients: the estimator's coefficients, at first `estimator.coefficients()`.
        key: a JAX random key.
        pullback: where it is given, the coefficients' gradient is that of the squared norm of `pullback(gradient)`:
            with `logits, pullback = jax.vjp(encode, parameters)`, of the gradient in the encoder's parameters.
    """
    held, noise = _prepare(q, estimator, coefficients, key)
    samples = estimator.draw(held, noise)
    side = _side(f, held, noise, samples, estimator, coefficients)
    rule, closed_over = _without_closure(estimator, pullback, held, coefficients, samples, side)
    x, channel = _sample(rule, q, coefficients, samples, side, closed_over)
    values = _checked_values(f(x if estimator.needs_df else samples), estimator, q)
    return _mean(values, channel)


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
    f: Function, x: Float[Array, "K *batch *event"], differentiate: bool = True
) -> tuple[Float[Array, "K *batch"], Float[Array, "K *batch *event"] | None]:
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
    # f closes over the model's parameters: without this they would get a gradient from here too.
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

    values, gradient = evaluate(control, logits)
    return values, gradient


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
    """The estimate, and the derivative in the coefficients of its square, weighted by the loss's weights."""

    def formula(coefficients: Mapping[str, Any], control: tuple[Any, Any]) -> Any:
        return estimator.gradient(q, Evaluation(x, values, df, *side.at_mean, *control), coefficients)

    gradient, formula_pullback = jax.vjp(formula, coefficients, side.control)
    if pullback is None:
        cotangent = 2 / max(1, event_size(q)) * q.weigh(jnp.abs(weight), gradient)
    else:
        weighted = q.weigh(weight, gradient).astype(q.logits.dtype)
        pulled_back, pushforward = jax.vjp(pullback, weighted)
        cotangent = 2 * q.weigh(weight, pushforward(pulled_back)[0])
    coefficient_gradient, control_cotangent = formula_pullback(cotangent.astype(gradient.dtype))
    if side.control_pullback is not None:
        (through_control,) = side.control_pullback(control_cotangent)
        coefficient_gradient = jax.tree.map(jnp.add, coefficient_gradient, through_control)
    return gradient, coefficient_gradient


def _without_closure(
    estimator: Estimator,
    pullback: Pullback | None,
    q: Distribution,
    coefficients: Mapping[str, Any],
    x: Any,
    side: _Side,
) -> tuple[Callable[..., Any], Any]:
    """`_gradients` as a function that closes over no traced array, and the arrays that it did close over.

    The estimator or the pullback may close over traced arrays, and under scan JAX traces a backward rule when those are
    gone: they must come to it as arguments.
    """
    values = jnp.zeros(x.shape[: x.ndim - q.event_axes], _channel_type())
    rule, closed_over = jax.closure_convert(
        partial(_gradients, estimator, pullback), q, coefficients, x, values, x, side, values[0]
    )
    return rule, jax.lax.stop_gradient(closed_over)


def _channel_type() -> Any:
    """The widest float that JAX has switched on, so that f passes through the channel unrounded."""
    return jnp.result_type(float)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sample(
    rule: Callable[..., Any], q: Distribution, coefficients: Any, x: Any, side: _Side, closed_over: Any
) -> tuple[Any, Any]:
    """The samples, and the channel through which the backward pass of `_mean` answers: f and the loss's weights."""
    return _with_channel(q, x)


def _with_channel(q: Distribution, x: Any) -> tuple[Any, Any]:
    return x, jnp.zeros((2, *x.shape[: x.ndim - q.event_axes]), _channel_type())


def _sample_forward(rule: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    q, _, x, *_ = arguments
    return _with_channel(q, x), arguments


def _sample_backward(rule: Callable[..., Any], arguments: Any, cotangents: Any) -> tuple[Any, ...]:
    q, coefficients, x, side, closed_over = arguments
    weighted_df, (values, weights) = cotangents
    weight = weights[0]
    # weighted_df is weight / K times the gradient of f; where the weight is 0 the estimate does not count.
    scale = jnp.where(weight == 0, 0, x.shape[0] / jnp.where(weight == 0, 1, weight))
    df = q.weigh(scale, weighted_df).astype(x.dtype)
    gradient, coefficient_gradient = rule(q, coefficients, x, values, df, side, weight, *closed_over)
    logits_gradient = q.weigh(weight, gradient).astype(q.logits.dtype)
    logits_gradient, coefficient_gradient = _differentiable_once((logits_gradient, coefficient_gradient))
    nothing = jax.tree.map(jnp.zeros_like, (x, side, closed_over))
    return jax.tree.map(lambda _: logits_gradient, q), coefficient_gradient, *nothing


_sample.defvjp(_sample_forward, _sample_backward)


@jax.custom_vjp
def _mean(values: Float[Array, "K *batch"], channel: Any) -> Float[Array, "*batch"]:
    """The mean over the samples; its backward pass fills the channel."""
    return jnp.mean(values, axis=0)


def _mean_forward(values: Any, channel: Any) -> tuple[Any, Any]:
    return jnp.mean(values, axis=0), values


def _mean_backward(values: Any, weight: Any) -> tuple[Any, Any]:
    weights = jnp.broadcast_to(weight, values.shape)
    return weights / values.shape[0], jnp.stack([values, weights]).astype(_channel_type())


_mean.defvjp(_mean_forward, _mean_backward)


@jax.custom_jvp
def _differentiable_once(gradients: Any) -> Any:
    """The identity, which cannot be differentiated: the derivative of one estimate estimates no second derivative."""
    return gradients


@_differentiable_once.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise differentiated_twice(
        "expect", "take jax.grad of it once, or hold its result constant with jax.lax.stop_gradient"
    )
