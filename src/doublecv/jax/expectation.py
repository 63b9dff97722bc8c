"""`Expectation` in JAX: the state of an estimator, the differentiable mean of f, and the update of the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from doublecv.checks import check_estimator, check_function, check_pullback, check_sequential
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, Evaluation, Learned
from doublecv.jax.drawing import draw, uniform
from doublecv.jax.rule import (
    Function,
    Pullback,
    check_gradient_exists,
    checked_function,
    closure_convert,
    combine,
    evaluate,
    evaluate_side,
    expectation,
    gradients,
    vary_over,
)
from doublecv.sequential import Sequential

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

RATE = 1e-3
"""The learning rate of the numbers that descend."""


class State(NamedTuple):
    """Hold the state of an estimator, a pytree that is ready to be checkpointed.

    Attributes:
        learned: what the estimator has learned; the argument of `Expectation` that is differentiated.
        optimizer: the state of the optimizer that moves the learned numbers.
    """

    learned: Learned
    optimizer: Any


class Estimate(NamedTuple):
    """Hold the result of `Expectation.estimate`.

    Attributes:
        value: the mean of f over the K samples.
        gradient: the estimate of the gradient of E_q f in the logits, for every batch element; on a path, in the
            logits that each sample visited, with the samples in front.
        learned_gradient: the gradient of the learned state, for `Expectation.update`.
        evaluation: the samples, f at them, and what else the estimator needs.
        q: the distribution that the samples came from, with its logits held constant: the visited ones of a path.
        aux: the auxiliary output of f, or None.
    """

    value: Float[Array, "*batch"]
    gradient: Float[Array, "*logits"]
    learned_gradient: Learned
    evaluation: Evaluation
    q: Distribution
    aux: Any


@dataclass(frozen=True)
class Expectation:
    r"""Compute :math:`E_q f` over K samples, with an estimator's gradient in the logits of q.

    >>> import doublecv as dcv
    >>> expectation = Expectation(dcv.QuadraticDoubleCV(samples=4))
    >>> q = dcv.Bernoulli(logits=jnp.zeros((3, 5)))
    >>> state = expectation.init(q)
    >>> def loss(logits, learned, key):
    ...     return expectation(lambda x: x.sum(-1), dcv.Bernoulli(logits=logits), learned, key).mean()
    >>> gradients, learned_gradients = jax.grad(loss, argnums=(0, 1))(q.logits, state.learned, jax.random.key(0))
    >>> state = expectation.update(learned_gradients, state)

    Attributes:
        estimator: any estimator of doublecv.
        optimizer: the optax transformation that moves the learned numbers of the estimator; it never touches the
            running averages. The default is Adam with rate 1e-3.
    """

    estimator: Estimator
    optimizer: optax.GradientTransformation = field(default_factory=lambda: optax.adam(RATE), repr=False, compare=False)

    def __post_init__(self) -> None:
        check_estimator(self.estimator)

    def init(
        self,
        q: Distribution | Sequential,
        *,
        context: Float[Array | np.ndarray, "*#batch features"] | None = None,
        learned: Learned | None = None,
    ) -> State:
        """Return the initial state; its sizes come from q and the context, whose values are not used.

        Args:
            q: a distribution like those of the calls to come. If it is `Autoregressive`, it is checked to be causal.
            context: features of each batch element, if the calls to come have any.
            learned: what to start from, such as the result of `optimal_coefficients`; None for the estimator's own
                start.
        """
        check_arrays(q)
        if isinstance(q, Sequential):
            check_sequential(self.estimator)
            q.check(uniform(jax.random.key(0)))
        else:
            self.estimator.check_family(q)
        if learned is not None:
            self.estimator.check_learned(learned)
        own = self.estimator.init(None if isinstance(q, Sequential) else q, context)
        start = own if learned is None else learned
        learned = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), start)
        return State(learned, self.optimizer.init(learned.numbers))

    def __call__(
        self,
        f: Function,
        q: Distribution | Sequential,
        learned: Learned,
        key: PRNGKeyArray,
        *,
        context: Float[Array | np.ndarray, "*#batch features"] | None = None,
        has_aux: bool = False,
        pullback: Pullback | None = None,
    ) -> Any:
        r"""Return the mean of f over K samples of q, for every batch element, to be differentiated in reverse mode.

        From one forward and one backward pass of f, its derivative is

        - in everything that f closes over: the ordinary gradient of the mean;
        - in q's logits: the estimator's gradient. If f itself depends on the logits, its ordinary gradient is added;
          close over `q.detach()` to hold them constant, as an ELBO with log q(x) in f needs it;
        - in `learned`: what `update` needs. A batch element counts with the absolute weight that it has in the loss.

        Args:
            f: a function from `[K, *batch, *event]` to `[K, *batch]` that treats samples and batch elements one by one.
                It is differentiated in x only if the estimator needs it. It is traced, as under jit: a simulator in
                NumPy needs `jax.pure_callback`.
            q: the distribution; its logits may be traced. For a `Product`, `Layers` or `Autoregressive`, f receives a
                dictionary, a tuple of layers or sequences, with the samples in front.
            learned: `state.learned`.
            key: a JAX random key.
            context: features of each batch element, for estimators that use them; the others ignore it.
            has_aux: whether f returns a pair of values and auxiliary output. The result is then a pair, too. The
                auxiliary output is differentiable in what f closes over, with the samples held constant.
            pullback: if given, the learned numbers minimise the squared norm of `pullback(gradient)`: with
                `logits, pullback = jax.vjp(encode, parameters)`, of the gradient in the encoder's parameters.
        """
        estimator = self.estimator
        self._check(f, q, learned, key, pullback)
        learned = jax.tree.map(jnp.asarray, learned)
        f, q, held, noise, x = draw(f, q, estimator, key)
        checked = checked_function(f, held, has_aux, q.logits.dtype)
        context = _held(context)
        function = closure_convert(checked, x)
        if estimator.needs.gradient:
            check_gradient_exists(function, x, estimator)
        converted = None if pullback is None else closure_convert(pullback, held.logits)
        q, held, learned, noise, x, context = vary_over(function.varying, (q, held, learned, noise, x, context))
        side = vary_over(function.varying, evaluate_side(checked, held, noise, x, estimator, learned, context))
        try:
            value, aux = expectation(
                function.call,
                None if converted is None else converted.call,
                estimator,
                q,
                learned,
                x,
                side,
                function.constants,
                [] if converted is None else converted.constants,
            )
        except TypeError as error:
            if "forward-mode" not in str(error):
                raise
            raise TypeError(
                "the expectation was differentiated in forward mode (jax.jvp, jax.jacfwd, jax.linearize), but an "
                "estimator gives gradients in reverse mode only; take jax.grad, jax.vjp or jax.jacrev"
            ) from error
        return (value, aux) if has_aux else value

    def estimate(
        self,
        f: Function,
        q: Distribution | Sequential,
        learned: Learned,
        key: PRNGKeyArray,
        *,
        context: Float[Array | np.ndarray, "*#batch features"] | None = None,
        has_aux: bool = False,
        pullback: Pullback | None = None,
    ) -> Estimate:
        """Return the value, the gradient in the logits and the gradient of the learned state, explicitly.

        The arguments are those of `__call__`, and so is the learned state's gradient, for a loss that is the mean over
        the batch. Of f, only the derivative in x is computed, so this is the form for logits that are themselves the
        parameters, for diagnostics, and for an f that is not traced.
        """
        estimator = self.estimator
        self._check(f, q, learned, key, pullback)
        learned = jax.tree.map(jnp.asarray, learned)
        f, q, held, noise, x = draw(f, q, estimator, key)
        checked = checked_function(f, held, has_aux, q.logits.dtype)
        values, df, aux = evaluate(checked, x, estimator.needs.gradient, estimator)
        side = evaluate_side(checked, held, noise, x, estimator, learned, _held(context))
        weight = jnp.full(q.batch_shape, 1 / max(1, prod(q.batch_shape)), held.logits.dtype)
        gradient, of_learned = gradients(estimator, pullback, held, learned, x, values, df, side, weight)
        evaluation = side.evaluation(x, values, df)
        gradient = gradient.astype(q.logits.dtype)
        return Estimate(combine(estimator, values), gradient, of_learned, evaluation, held, aux)

    def update(self, gradients: Learned, state: State) -> State:
        """Move the state by the gradients of one step: the numbers by the optimizer, the averages by the statistics.

        Args:
            gradients: the gradient of the loss in `state.learned`, from `jax.grad` or `estimate`.
            state: the state that the gradients were computed with.
        """
        if not isinstance(gradients, Learned) or not isinstance(state, State):
            raise TypeError(
                f"update takes the gradient in state.learned and the state, got {type(gradients).__name__} and "
                f"{type(state).__name__}"
            )
        learned = state.learned
        updates, optimizer = self.optimizer.update(gradients.numbers, state.optimizer, learned.numbers)
        numbers: Any = optax.apply_updates(learned.numbers, updates)
        averages = self.estimator.advance(learned.averages, gradients.statistics)
        return State(Learned(numbers, averages, learned.statistics), optimizer)

    def _check(self, f: Any, q: Any, learned: Any, key: Any, pullback: Any) -> None:
        check_function(f, q)
        check_arrays(q)
        if isinstance(q, Sequential):
            check_sequential(self.estimator)
        else:
            self.estimator.check_family(q)
        if isinstance(learned, State):
            raise TypeError("learned is a State; pass state.learned, which is what is differentiated")
        self.estimator.check_learned(learned, q if self.estimator.needs.sized else None)
        check_key(key)
        check_pullback(self.estimator, pullback)


def _held(context: Any) -> Any:
    """Return the context, held constant, with 0 where it is not finite."""
    if context is None:
        return None
    if isinstance(context, jax.Array | np.ndarray):
        # Any context is valid. NaN in padding that a mask removes would otherwise stay in the learned numbers.
        return jax.lax.stop_gradient(jnp.where(jnp.isfinite(context), context, 0))
    raise TypeError(
        f"context must be a JAX array [*batch, features], got {type(context).__name__}; convert it with jnp.asarray"
    )


def check_arrays(q: Any) -> None:
    """Raise if the logits of q are not an array that JAX takes."""
    logits = q.like if isinstance(q, Sequential) else getattr(q, "logits", None)
    if isinstance(q, Distribution | Sequential) and type(logits).__module__.partition(".")[0] == "torch":
        raise TypeError("logits of q is a torch tensor; use doublecv.torch.Expectation, or make q of a JAX array")


def check_key(key: Any) -> None:
    """Raise unless `key` is one JAX random key."""
    given = type(key).__name__
    if hasattr(key, "dtype"):
        is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if key.ndim == (0 if is_typed else 1) and (is_typed or key.dtype == jnp.uint32):
            return
        given += f" of type {key.dtype} and shape {key.shape}"
    raise TypeError(f"key must be a JAX random key such as jax.random.key(0), got {given}")


Folded: TypeAlias = Callable[[Any], Any]


def fold(f: Callable[..., Any], *data: Any) -> Folded:
    """Turn a model written for `[batch, ...]` into an f for `[K, batch, ...]`.

    K is folded into the batch axis and the data is repeated K times, so that the model sees one batch of K times as
    many examples.

    >>> import doublecv as dcv
    >>> def negative_log_likelihood(z, y):  # one number per example
    ...     return ((y - z) ** 2).sum(-1)
    >>> f = fold(negative_log_likelihood, jnp.ones((8, 3)))
    >>> f(jnp.zeros((4, 8, 3))).shape
    (4, 8)

    Args:
        f: a function of x with shape `[K * batch, *event]`, and of the data, that returns one number per example, or a
            pair of these and auxiliary output, which is passed through.
        data: arrays, or pytrees of arrays, whose first axis is the batch.
    """

    def folded(x: Any) -> Any:
        samples, batch = jax.tree.leaves(x)[0].shape[:2]

        def merge(leaf: Any) -> Any:
            return leaf.reshape(samples * batch, *leaf.shape[2:])

        def repeat(leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array | np.ndarray):
                raise TypeError(f"data must be JAX arrays, got {type(leaf).__name__}; close over anything else in f")
            if leaf.ndim == 0 or leaf.shape[0] != batch:
                raise ValueError(f"data must have the batch axis {batch} in front, got shape {leaf.shape}")
            return merge(jnp.broadcast_to(leaf, (samples, *leaf.shape)))

        returned = f(jax.tree.map(merge, x), *jax.tree.map(repeat, data))
        values, *aux = returned if isinstance(returned, tuple) else (returned,)
        if values.shape[:1] != (samples * batch,):
            raise ValueError(f"f must return one number per example, {samples * batch} of them, got {values.shape}")
        unfolded = values.reshape(samples, batch, *values.shape[1:])
        return (unfolded, *aux) if aux else unfolded

    return folded
