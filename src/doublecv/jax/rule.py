"""The expectation as a differentiable JAX function: one forward and one backward pass of f give every gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from doublecv.arrays import log_mean_exp, register_pytree
from doublecv.checks import check_returned_shape, differentiated_twice, missing_gradient, split_aux
from doublecv.distributions import Bernoulli, Categorical, Distribution, event_size
from doublecv.estimators import Applied, Estimator, Evaluation, Learned, RelaxedEstimator
from doublecv.estimators.evaluation import FIELDS
from doublecv.exact import expected_value

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

Function: TypeAlias = Callable[[Any], Any]
"""f, from points `[K, *batch, *event]` to numbers `[K, *batch]`."""

Pullback: TypeAlias = Callable[[Any], Any]
"""From a gradient in the logits to the gradient in what made them, as `jax.vjp` returns it."""

for _family in (Bernoulli, Categorical):
    register_pytree(_family, ("logits",))
register_pytree(Evaluation, FIELDS)


class Side(NamedTuple):
    """Hold what the estimator needs in addition to f at the samples; none of it reaches the model's own gradient.

    Attributes:
        f_mean: f at the mean of q, or None.
        df_mean: its gradient in x there, or None.
        expected_f: the exact mean of f, or None.
        control: the control variate at the relaxed points, or None.
        dcontrol: its gradient in the logits, or None.
        control_pullback: a function from cotangents of `control` and `dcontrol` to one of the numbers, or None.
        context: features of each batch element, or None.
    """

    f_mean: Any
    df_mean: Any
    expected_f: Any
    control: Any
    dcontrol: Any
    control_pullback: Any
    context: Any

    def evaluation(self, x: Any, values: Any, df: Any) -> Evaluation:
        """Return the evaluation that the formula takes."""
        return Evaluation(x, values, df, self.f_mean, self.df_mean, self.expected_f, self.control, self.dcontrol)

    def only_where(self, counts: Any) -> Side:
        """Return the same with zeros for batch elements that do not count, even if f is not finite there."""
        f_mean, df_mean, expected_f = (only_where(counts, self[i], False) for i in range(3))
        control, dcontrol = (only_where(counts, self[i]) for i in range(3, 5))
        return Side(f_mean, df_mean, expected_f, control, dcontrol, self.control_pullback, self.context)


def draw_noise(q: Distribution, estimator: Estimator, key: PRNGKeyArray) -> Float[Array, "..."]:
    """Draw the uniform noise of the samples."""
    # Noise of 8 or 11 bits would round the sampled probabilities away from those in the score.
    return jax.random.uniform(key, estimator.noise_shape(q), jnp.promote_types(q.logits.dtype, jnp.float32))


def evaluate(
    f: Function, x: Float[Array, "K *logits"], differentiate: bool = True, needed_by: Estimator | None = None
) -> tuple[Float[Array, "K *batch"], Float[Array, "K *logits"] | None, Any]:
    """Return f at the points x, its gradient in x where wanted, and its auxiliary output; f returns (values, aux).

    Args:
        f: the function.
        x: the points.
        differentiate: whether the gradient is wanted.
        needed_by: the estimator that needs the gradient, for the error if it is missing; None for no error.
    """
    if not differentiate:
        values, aux = f(x)
        return values, None, aux
    probe = GradientProbe()
    values, pullback, aux = jax.vjp(probe.watch(f), x, has_aux=True)
    if needed_by is not None:
        probe.check(needed_by)
    (df,) = pullback(jnp.ones_like(values))
    return values, df, aux


class GradientProbe:
    """Find out, while a function is differentiated, whether its derivative is known to be zero everywhere.

    JAX carries derivatives that are zero whatever the numbers are (of a threshold, an index, a constant) as symbols. A
    derivative whose numbers are all 0 at some points is not one of them.
    """

    def __init__(self) -> None:
        self._found = False

    def watch(self, f: Function) -> Function:
        """Return f, a function to (values, aux), whose derivative is noted."""

        @jax.custom_jvp
        def noted(values: Any) -> Any:
            return values

        def rule(primals: Any, tangents: Any) -> Any:
            (values,), (tangent,) = primals, tangents
            if isinstance(tangent, SymbolicZero):
                return values, jnp.zeros_like(values)
            self._found = True
            return values, tangent

        noted.defjvp(rule, symbolic_zeros=True)

        def watched(x: Any) -> tuple[Any, Any]:
            values, aux = f(x)
            return noted(values), aux

        return watched

    def check(self, estimator: Estimator) -> None:
        """Raise if the function was differentiated and its derivative is zero everywhere."""
        if not self._found:
            raise missing_gradient(estimator)


def checked_function(f: Function, q: Distribution, has_aux: bool, dtype: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return a function that calls f with points of the type `dtype`, checks the result, and returns (values, aux)."""

    def checked(x: Any) -> tuple[Any, Any]:
        try:
            values, aux = split_aux(f(x.astype(dtype)), has_aux)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
            raise TypeError(NOT_TRACEABLE) from error
        except Exception as error:
            if type(error).__name__ not in TRACE_ERRORS:
                raise
            raise TypeError(
                "f changes state that lives outside of it (a module's BatchNorm statistics, a dropout key, a list), "
                "which JAX cannot trace. Pass the state into f as a value and return the new one as auxiliary output "
                "with has_aux=True; for flax, call nnx.merge(..., copy=True) inside f and return nnx.state(module)"
            ) from error
        check_returned_shape("f", values, (x.shape[0], *q.batch_shape), q)
        if not isinstance(values, jax.Array | np.ndarray):
            raise TypeError(f"f must return a JAX array, got {type(values).__name__}; use doublecv.torch for a torch f")
        values = jnp.asarray(values)
        if not jnp.issubdtype(values.dtype, jnp.floating):
            values = values.astype(jnp.promote_types(q.logits.dtype, jnp.float32))
        return values, aux

    return checked


NOT_TRACEABLE = (
    "f turns x into a NumPy array or a Python number, which is impossible while JAX traces it. Wrap that part in "
    "jax.pure_callback, or call Expectation.estimate outside of jit with an estimator that does not need the gradient "
    "of f"
)

TRACE_ERRORS = ("TraceContextError", "UnexpectedTracerError", "JaxTransformError", "LeakedTracerError")
"""The errors of JAX and flax for a function that changes state outside of itself."""


def evaluate_side(
    f: Callable[[Any], tuple[Any, Any]],
    q: Distribution,
    noise: Any,
    x: Any,
    estimator: Estimator,
    learned: Learned,
    context: Any,
) -> Side:
    """Evaluate what the estimator needs in addition to f at the samples; q is held constant and f is checked."""
    f_mean = df_mean = expected_f = control = dcontrol = control_pullback = None
    if estimator.needs.mean:
        values, df, _ = evaluate(f, q.mean[None], needed_by=estimator)
        f_mean, df_mean = jax.tree.map(lambda leaf: leaf[0], (values, df))
    if estimator.needs.expected_f:
        expected_f = expected_value(lambda points: f(points)[0], q, estimator)
    if isinstance(estimator, RelaxedEstimator):
        points = (estimator.needs.relaxed_points, *q.batch_shape)
        # One copy of a scalar per point and batch element: the derivatives in the copies of a batch element that does
        # not count can be left out, even if f is not finite there.
        numbers = jax.tree.map(
            lambda number: jnp.broadcast_to(number, points) if jnp.ndim(number) == 0 else number,
            jax.lax.stop_gradient(learned.numbers),
        )
        (control, dcontrol), control_pullback = jax.vjp(
            lambda numbers: _relaxed(f, q, noise, x, estimator, numbers, context), numbers
        )
    # f closes over the model's parameters, which must not receive a gradient from here.
    return jax.lax.stop_gradient(Side(f_mean, df_mean, expected_f, control, dcontrol, control_pullback, context))


def _relaxed(
    f: Callable[[Any], tuple[Any, Any]],
    q: Distribution,
    noise: Any,
    x: Any,
    estimator: RelaxedEstimator,
    numbers: Any,
    context: Any,
) -> tuple[Any, Any]:
    """Return the control variate at the relaxed points and its gradient in the logits of each."""
    points, probe = estimator.needs.relaxed_points, GradientProbe()
    logits, watched = q.broadcast_to((points, *q.batch_shape)).logits, probe.watch(f)

    def control(logits: Any) -> tuple[Any, None]:
        values = estimator.control(lambda z: watched(z)[0], q.with_logits(logits), noise, x, numbers, context)
        check_returned_shape("f at the relaxed points", values, (points, *q.batch_shape), q)
        return values, None

    values, gradient, _ = evaluate(control, logits)
    probe.check(estimator)
    return values, gradient


def gradients(
    estimator: Estimator,
    pullback: Pullback | None,
    q: Distribution,
    learned: Learned,
    x: Any,
    values: Any,
    df: Any,
    side: Side,
    weight: Float[Array, "*batch"],
) -> tuple[Any, Learned]:
    """Return the estimate and the cotangent of the learned state.

    The numbers receive the derivative of the squared estimate, weighted as the loss weights the batch elements, and of
    the estimator's own loss; the averages receive zeros, and the statistics those of this step.
    """
    x, df = (None if array is None else array.astype(q.logits.dtype) for array in (x, df))
    absolute, counts = jnp.abs(weight), weight != 0
    values, side = only_where(counts, values), side.only_where(counts)

    def formula(numbers: Any, control: Any, dcontrol: Any) -> Applied:
        evaluation = side._replace(control=control, dcontrol=dcontrol).evaluation(x, values, df)
        return estimator.apply(q, evaluation, learned._replace(numbers=numbers), absolute, side.context)

    def differentiable(numbers: Any, control: Any) -> Any:
        applied = formula(numbers, *control)
        return (applied.gradient, applied.loss), applied.statistics

    numbers: Any
    if estimator.gives_derivatives or not learned.numbers:
        applied = formula(learned.numbers, side.control, side.dcontrol)
        gradient, statistics = applied.gradient, applied.statistics
        cotangent = _cotangent(q, gradient, weight, pullback)
        numbers = applied.derivatives(cotangent) if applied.derivatives and learned.numbers else {}
    else:
        (gradient, loss), formula_pullback, statistics = jax.vjp(
            differentiable, learned.numbers, (side.control, side.dcontrol), has_aux=True
        )
        cotangent = _cotangent(q, gradient, weight, pullback)
        numbers, of_control = formula_pullback((cotangent, jax.tree.map(jnp.ones_like, loss)))
        if side.control_pullback is not None:
            unit = _unit(cotangent, side.control)
            (through_control,) = side.control_pullback(jax.tree.map(lambda leaf: leaf / unit, of_control))
            numbers = jax.tree.map(
                lambda number, through: number + unit * _total(counts, through, number), numbers, through_control
            )
    found = Learned(numbers, jax.tree.map(jnp.zeros_like, learned.averages), statistics)
    # The learned state may be NumPy arrays, whose float64 JAX may not have.
    return gradient, jax.tree.map(lambda new, old: new.astype(jnp.asarray(old).dtype), found, learned)


def _cotangent(q: Distribution, gradient: Any, weight: Any, pullback: Pullback | None) -> Any:
    """Return the derivative of the weighted square of the estimate in the estimate."""
    if pullback is None:
        return (2 / max(1, event_size(q)) * masked(q, jnp.abs(weight), gradient)).astype(gradient.dtype)
    pulled_back, pushforward = jax.vjp(pullback, masked(q, weight, gradient))
    # The loss's own backward pass makes the same products. The barrier keeps XLA from transposing these to fit the next
    # ones, so that it recognizes that they are the same.
    (pushed_forward,) = pushforward(jax.lax.optimization_barrier(pulled_back))  # type: ignore[no-untyped-call]
    return (2 * masked(q, weight, pushed_forward)).astype(gradient.dtype)


def _unit(cotangent: Any, control: Any) -> Any:
    """Return the power of two by which cotangents are divided on their way through f, whose type may be narrow.

    The derivative of the squared estimate grows as the square of f, which overflows in 16 bits where f does not.
    """
    size = jnp.max(jnp.abs(cotangent), initial=0) * jnp.max(jnp.abs(control), initial=1e-3)
    usable = jnp.isfinite(size) & (size > 0)
    _, exponent = jnp.frexp(jnp.where(usable, size, 1))
    return jnp.ldexp(jnp.ones_like(size), exponent - 1)


def _total(counts: Any, derivative: Any, number: Any) -> Any:
    """Return the derivative in a number, from those in its copies, if any, of the batch elements that count."""
    return derivative if derivative.ndim == number.ndim else jnp.sum(only_where(counts, derivative))


def only_where(counts: Any, array: Any, has_points: bool = True) -> Any:
    """Return the array with zeros for batch elements that do not count; its points, if any, are in front."""
    if array is None:
        return None
    behind = array.ndim - counts.ndim - has_points
    return jnp.where(counts[(..., *(None,) * behind)], array, 0)


def masked(q: Distribution, weight: Float[Array, "*batch"], v: Float[Array, "*logits"]) -> Float[Array, "*logits"]:
    """Return weight times v, and 0 where the weight is 0, even if v is not finite there."""
    counts = (weight != 0)[(..., *(None,) * q.event_axes)]
    return jnp.where(counts, q.scale(weight, v), 0)


class ClosureConverted(NamedTuple):
    """Hold a function that closes over no array: what it closed over is its first argument.

    Attributes:
        call: a function of `constants` and the original arguments.
        constants: the arrays, traced or not, that the function closed over.
        result: shapes and types of the result.
        varying: the mesh axes over which the result varies, inside of `jax.shard_map`.
    """

    call: Callable[..., Any]
    constants: list[Any]
    result: Any
    varying: frozenset[str]


def closure_convert(function: Callable[..., Any], *arguments: Any) -> ClosureConverted:
    """Turn what a function closes over into an argument.

    JAX traces the rules of a `custom_vjp` when it differentiates, and under scan or vmap what they closed over is then
    gone or has another batch axis. `jax.closure_convert` leaves integers closed over, which scan refuses.
    """
    program, result = jax.make_jaxpr(function, return_shape=True)(*arguments)

    def call(constants: list[Any], *arguments: Any) -> Any:
        results = jax.core.eval_jaxpr(program.jaxpr, constants, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(result), results)

    varying = frozenset().union(*map(_varying_axes, program.out_avals))
    return ClosureConverted(call, list(program.consts), result, varying)


def _varying_axes(kind: Any) -> frozenset[str]:
    """Return the mesh axes over which an array of this type varies, inside of `jax.shard_map`."""
    manual = getattr(kind, "manual_axis_type", None)
    # JAX 0.9 has the axes in another place.
    return frozenset(getattr(kind, "vma", ()) if manual is None else manual.varying)


def vary_over(axes: frozenset[str], tree: Any) -> Any:
    """Mark all arrays as varying over the mesh axes, so that their cotangents are summed over them."""

    def vary(leaf: Any) -> Any:
        missing = tuple(axes - _varying_axes(jax.typeof(leaf)))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(vary, tree) if axes else tree


def check_gradient_exists(function: ClosureConverted, x: Any, estimator: Estimator) -> None:
    """Raise if the gradient of f in x is zero everywhere and the estimator needs it."""
    probe = GradientProbe()
    watched = probe.watch(partial(function.call, function.constants))
    jax.eval_shape(lambda x: jax.jvp(lambda x: watched(x)[0], (x,), (x,)), x)
    probe.check(estimator)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def expectation(
    function: Callable[..., Any],
    pullback: Callable[..., Any] | None,
    estimator: Estimator,
    q: Distribution,
    learned: Learned,
    x: Any,
    side: Side,
    constants: list[Any],
    pullback_constants: list[Any],
) -> Any:
    """Return the mean of f over the samples and its auxiliary output; the two functions below differentiate it."""
    values, aux = function(constants, x)
    return combine(estimator, values), aux


def combine(estimator: Estimator, values: Float[Array, "K *batch"]) -> Float[Array, "*batch"]:
    """Return the value of the objective: the mean of f, or the bound."""
    result: Array = log_mean_exp(values, axis=0) if estimator.needs.bound else jnp.mean(values, axis=0)
    return result


def _forward(
    function: Callable[..., Any], pullback: Callable[..., Any] | None, estimator: Estimator, *primals: Any
) -> tuple[Any, tuple[Any, ...]]:
    q, learned, x, side, constants, pullback_constants = jax.tree.map(
        lambda primal: primal.value, primals, is_leaf=_is_primal
    )
    estimate_wanted = any(leaf.perturbed for leaf in jax.tree.leaves(primals[:2], is_leaf=_is_primal))
    # What is not being differentiated may have no derivative, so it stays outside the backward pass.
    differentiated = [array if primal.perturbed else None for array, primal in zip(constants, primals[4], strict=True)]

    def values_at(x: Any, differentiated: list[Any]) -> Any:
        merged = [array if new is None else new for array, new in zip(constants, differentiated, strict=True)]
        values, aux = function(merged, x)
        leaves, structure = jax.tree.flatten(aux)
        smooth = [leaf if _is_floating(leaf) else None for leaf in leaves]
        rest = [None if _is_floating(leaf) else leaf for leaf in leaves]
        return (values, smooth), (rest, jax.tree.unflatten(structure, [0] * len(leaves)))

    if estimator.needs.gradient and estimate_wanted:
        (values, smooth), f_pullback, (rest, like) = jax.vjp(values_at, x, differentiated, has_aux=True)
    else:
        (values, smooth), f_pullback, (rest, like) = jax.vjp(partial(values_at, x), differentiated, has_aux=True)
    leaves = [new if old is None else old for new, old in zip(smooth, rest, strict=True)]
    aux = jax.tree.unflatten(jax.tree.structure(like), leaves)
    residuals = (x, side, pullback_constants) if estimate_wanted else None
    return (combine(estimator, values), aux), (values, smooth, f_pullback, (q, learned), residuals)


def _backward(
    function: Callable[..., Any],
    pullback: Callable[..., Any] | None,
    estimator: Estimator,
    saved: tuple[Any, ...],
    cotangents: Any,
) -> tuple[Any, ...]:
    values, smooth, f_pullback, (q, learned), residuals = saved
    weight, aux_cotangent = cotangents
    if isinstance(weight, SymbolicZero):
        weight = jnp.zeros(values.shape[1:], values.dtype)
    of_values = jnp.broadcast_to(weight / values.shape[0], values.shape)
    *weighted_df, of_constants = f_pullback((of_values, jax.tree.map(jnp.zeros_like, smooth)))
    if estimator.needs.bound:
        # The weights of a bound may be too small to be divided by, so its samples need a backward pass of their own.
        of_bound = (weight * jax.nn.softmax(values, axis=0)).astype(values.dtype)
        *_, of_constants = f_pullback((of_bound, jax.tree.map(jnp.zeros_like, smooth)))
    of_aux = [leaf for leaf in jax.tree.leaves(aux_cotangent, is_leaf=_is_zero) if not _is_integer_cotangent(leaf)]
    if any(not isinstance(leaf, SymbolicZero) for leaf in of_aux):
        # Auxiliary output is an ordinary function of f's own parameters; the samples are constants for it.
        given = iter(of_aux)
        filled = [None if leaf is None else _instantiate(next(given), leaf) for leaf in smooth]
        *_, more = f_pullback((jnp.zeros_like(values), filled))
        of_constants = jax.tree.map(jnp.add, of_constants, more)
    of_constants = _constant_in_logits(of_constants, (q, learned))
    if residuals is None:
        return None, None, None, None, of_constants, None
    x, side, pullback_constants = residuals
    # weighted_df is weight / K times the gradient of f. Where the weight is 0, or too small to be divided by, the batch
    # element does not count.
    tiny = float(jnp.finfo(weight.dtype).smallest_normal) * values.shape[0] * 4  # type: ignore[no-untyped-call]
    counts = jnp.abs(weight) > tiny
    weight = jnp.where(counts, weight, 0)
    scale = jnp.where(counts, values.shape[0] / jnp.where(counts, weight, 1), 0)
    df = masked(q, scale, weighted_df[0]) if weighted_df else None
    apply_pullback = None if pullback is None else partial(pullback, pullback_constants)
    wide = q.widen()
    gradient, of_learned = gradients(estimator, apply_pullback, wide, learned, x, values, df, side, weight)
    of_logits = masked(q, weight, gradient).astype(q.logits.dtype)
    of_logits, of_learned = _differentiable_once((of_logits, of_learned))
    return q.with_logits(of_logits), of_learned, None, None, of_constants, None


expectation.defvjp(_forward, _backward, symbolic_zeros=True)


def _is_primal(node: Any) -> bool:
    return hasattr(node, "perturbed")


def _is_zero(node: Any) -> bool:
    return isinstance(node, SymbolicZero)


def _is_floating(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def _is_integer_cotangent(leaf: Any) -> bool:
    return bool(leaf.dtype == jax.dtypes.float0)


def _instantiate(cotangent: Any, like: Any) -> Any:
    return jnp.zeros_like(like) if isinstance(cotangent, SymbolicZero) else cotangent


def _refuse_second_derivative() -> TypeError:
    return differentiated_twice(
        "the expectation", "take jax.grad of it once, or hold its result constant with jax.lax.stop_gradient"
    )


@jax.custom_jvp
def _differentiable_once(cotangents: Any) -> Any:
    """Return the argument, which cannot be differentiated: no estimate of a second derivative exists."""
    return cotangents


@_differentiable_once.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise _refuse_second_derivative()


@jax.custom_jvp
def _constant_in_logits(cotangents: Any, estimated: Any) -> Any:
    """Return the first argument; a derivative in the second, on which it depends through the samples, is refused."""
    return cotangents


def _refuse_estimated(primals: Any, tangents: Any) -> Any:
    if any(not isinstance(leaf, SymbolicZero) for leaf in jax.tree.leaves(tangents[1], is_leaf=_is_zero)):
        raise _refuse_second_derivative()
    return primals[0], jax.tree.map(
        lambda tangent, primal: jnp.zeros_like(primal) if isinstance(tangent, SymbolicZero) else tangent,
        tangents[0],
        primals[0],
        is_leaf=_is_zero,
    )


_constant_in_logits.defjvp(_refuse_estimated, symbolic_zeros=True)
