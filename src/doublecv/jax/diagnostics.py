"""Diagnostics in JAX: variance, best coefficients, comparison, recommendation and a check of f."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from doublecv.checks import check_estimator, check_function
from doublecv.diagnostics import coefficients, comparison, recommendation
from doublecv.diagnostics.comparison import TRAINING_STEPS, Comparison
from doublecv.diagnostics.entrants import AnyEstimator, check_any_estimator
from doublecv.diagnostics.meter import Meter, Variance, add, empty, summarize
from doublecv.diagnostics.one_by_one import SAMPLES, Check, verify
from doublecv.diagnostics.problem import (
    FIT_STREAM,
    Measure,
    Problem,
    check_distribution,
    made_distribution,
    total_gradient,
)
from doublecv.diagnostics.recommendation import CANDIDATES, Recommendation
from doublecv.diagnostics.timing import ROUNDS
from doublecv.distributions import Distribution
from doublecv.estimators import RLOO, Estimator, Learned
from doublecv.estimators.judgement import least_variance
from doublecv.exact import exact_gradient
from doublecv.jax.drawing import draw, uniform
from doublecv.jax.expectation import Expectation, check_arrays, check_key
from doublecv.jax.rule import Function, checked_function, closure_convert, evaluate
from doublecv.sequential import Sequential

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

RUN_A_FEW_TIMES = {"xla_backend_optimization_level": 1}
"""Options of the compiler for programs whose time is not measured and that spend more of it in compilation than in use.
"""

NUMBERS_AT_ONCE = 2**20
"""The coordinates of all points at which f is evaluated at once, at most, if that is more than one estimate's."""

TRAINING_RATE = 1e-2
"""The rate of Adam in the short training of a state, ten times that of `Expectation`."""


def variance(
    f: Function,
    q: Distribution | Sequential,
    estimator: AnyEstimator,
    learned: Learned | None = None,
    *,
    key: PRNGKeyArray,
    draws: int = 1000,
    context: Float[Array | np.ndarray, "*#batch features"] | None = None,
    has_aux: bool = False,
) -> Variance:
    """Return the variance of an estimator over independent draws, with its standard error.

    For a `Layers` or `Autoregressive` it is the variance of the sum over the samples of the gradients in the logits
    that they visited: of the gradient in numbers that are added to the logits of all samples, the biases of the layers.

    >>> import doublecv as dcv
    >>> q = dcv.Bernoulli(logits=jnp.zeros((2, 3)))
    >>> measured = variance(lambda x: x.sum(-1) ** 2, q, dcv.RLOO(samples=2), key=jax.random.key(0))
    >>> measured.standard_error < measured.variance
    True

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution.
        estimator: the estimator.
        learned: its learned state (`state.learned`, or the result of `optimal_coefficients`); None for the initial one.
        key: a JAX random key.
        draws: the number of gradients.
        context: features of each batch element, for estimators that use them.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
    """
    if draws < 2:
        raise ValueError(f"draws must be at least 2, got {draws}")
    check_any_estimator(estimator)
    problem = JaxProblem.make(f, q, key, context, has_aux)
    problem.check_entrant(estimator)
    if learned is None and isinstance(estimator, Estimator):
        learned = Expectation(estimator).init(q, context=context).learned
    return summarize(problem.measure(estimator, learned or Learned({}, {}, {}))(draws, 0))


def optimal_coefficients(
    f: Function,
    q: Distribution | Sequential,
    estimator: Estimator,
    *,
    key: PRNGKeyArray | None = None,
    draws: int = 1000,
    context: Float[Array | np.ndarray, "*#batch features"] | None = None,
    has_aux: bool = False,
) -> Learned:
    r"""Return the coefficients of least variance, as a learned state for `Expectation`, `variance` and `compare`.

    The estimate is linear in them, :math:`g = g_0 + \sum_i c_i h_i`, so that they solve
    :math:`E[h h^T] c = -E[h g_0]`. Without a key the expectations are exact, by enumeration of all outcomes; with a key
    they are means over draws.

    >>> import doublecv as dcv
    >>> q = dcv.Bernoulli(logits=jnp.zeros((2, 3)))
    >>> learned = optimal_coefficients(lambda x: x.sum(-1), q, dcv.DoubleCV(samples=2))
    >>> round(float(learned.numbers["alpha"]), 3)
    -1.0

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution.
        estimator: an estimator that is linear in its coefficients.
        key: a JAX random key; None for exact expectations.
        draws: the number of draws, with a key.
        context: features of each batch element, for estimators that use them.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
    """
    if key is None:
        check_function(f, q)
        check_distribution(q)
        check_arrays(q)
        check_estimator(estimator)
        if isinstance(q, Sequential):
            raise TypeError(f"key is None, but all paths of a {type(q).__name__} cannot be enumerated; give a key")
        only = _values_only(f, has_aux)

        def df(x: Any) -> Any:
            return evaluate(lambda x: (only(x), None), x, needed_by=estimator)[1]

        return coefficients.optimal_coefficients(only, q, estimator, df=df)
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    problem = JaxProblem.make(f, q, key, context, has_aux)
    return problem.optimal_coefficients(estimator, draws)


def compare(
    f: Function,
    q: Distribution | Sequential | Callable[[], Distribution],
    estimators: Iterable[AnyEstimator | str] | AnyEstimator | str,
    *,
    key: PRNGKeyArray,
    samples: int | Sequence[int] | None = None,
    draws: int = 1000,
    learned: Mapping[Any, Learned] | None = None,
    context: Float[Array | np.ndarray, "*#batch features"] | None = None,
    has_aux: bool = False,
    differentiate_f: bool = True,
    steps: int = TRAINING_STEPS,
    rounds: int = ROUNDS,
) -> Comparison:
    """Measure estimators on the same f, q and random numbers: variance, cost, time per gradient and bias.

    The time is that of all gradients of a training step around f: in the logits, in the learned state, which is also
    updated, and, with `differentiate_f`, in the floating-point arrays that f closes over; without compilation, and the
    median over rounds in which the estimators take turns. `doublecv.biased` has estimators with a bias that are in
    common use.

    >>> import doublecv as dcv
    >>> q = dcv.Bernoulli(logits=jnp.zeros((2, 3)))
    >>> table = compare(lambda x: x.sum(-1) ** 2, q, ["rloo", "reinmax"], samples=2, key=jax.random.key(0), draws=100)
    >>> [row.name for row in table.rows]
    ['rloo', 'reinmax']

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, or a function without arguments that makes it: the time then includes the function and the
            gradient in the floating-point arrays that it closes over, as when an encoder makes the logits.
        estimators: estimators or names; the others' variances are printed relative to the first.
        key: a JAX random key.
        samples: one or several K, for each of which every estimator is measured; None to take estimators as they are.
        draws: the number of gradients of each.
        learned: learned states by the estimator or its name. Estimators without one are measured with the best
            coefficients from separate draws where they are linear in them, and otherwise after a short training.
        context: features of each batch element, for estimators that use them.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
        differentiate_f: whether the time includes the gradient in the arrays that f closes over, as when f is trained.
        steps: the length of the short training.
        rounds: the number of rounds of the timing; 0 for no timing.
    """
    problem = JaxProblem.make(f, q, key, context, has_aux, differentiate_f)
    return comparison.compare(
        problem, estimators, samples=samples, draws=draws, learned=learned, steps=steps, rounds=rounds
    )


def recommend(
    f: Function,
    q: Distribution | Sequential | Callable[[], Distribution],
    *,
    key: PRNGKeyArray,
    budget: float = 60.0,
    estimators: Sequence[AnyEstimator | str] | AnyEstimator | str = CANDIDATES,
    samples: int | Sequence[int] = recommendation.SAMPLES,
    context: Float[Array | np.ndarray, "*#batch features"] | None = None,
    has_aux: bool = False,
    differentiate_f: bool = True,
) -> Recommendation:
    """Recommend the estimator and K with the least variance per second on this f, q and machine, by a pilot run.

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, or a function without arguments that makes it: the time then includes the function and the
            gradient in the floating-point arrays that it closes over, as when an encoder makes the logits.
        key: a JAX random key.
        budget: the seconds that the pilot run may take, compilation included.
        estimators: the candidates.
        samples: the numbers of samples, in the order in which they are tried while the budget lasts, two at a time.
        context: features of each batch element, for estimators that use them.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
        differentiate_f: whether the time includes the gradient in the arrays that f closes over, as when f is trained.
    """
    problem = JaxProblem.make(f, q, key, context, has_aux, differentiate_f)

    def has_gradient() -> bool:
        return check(f, problem.q, key=key, has_aux=has_aux).has_gradient

    return recommendation.recommend(problem, has_gradient, budget, estimators, samples)


def check(
    f: Function,
    q: Distribution | Sequential,
    estimator: Estimator | None = None,
    *,
    key: PRNGKeyArray,
    has_aux: bool = False,
) -> Check:
    """Verify on one drawn batch that f treats samples and batch elements one by one and meets an estimator's needs.

    It raises an error that names the remedy if f mixes samples or batch elements, returns a wrong shape, type or NaN,
    or has no gradient in x while the estimator needs one.

    >>> import doublecv as dcv
    >>> print(check(lambda x: x.sum(-1), dcv.Bernoulli(logits=jnp.zeros((2, 3))), key=jax.random.key(0)))
    f maps [4, 2, 3] to [4, 2] (float32), treats samples and batch elements one by one, and its gradient in x exists.

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution.
        estimator: the estimator that f is for; None to find out which ones can be used.
        key: a JAX random key.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
    """
    problem = JaxProblem.make(f, q, key, None, has_aux)
    if estimator is not None:
        check_estimator(estimator)
        problem.check_entrant(estimator)
    drawn = draw(problem.f, q, RLOO(samples=SAMPLES) if estimator is None else estimator, key)
    held, x = drawn.held, drawn.x
    checked = checked_function(drawn.f, held, False, drawn.q.logits.dtype)
    values_at = jax.jit(lambda x: checked(x)[0])
    return verify(held, x, values_at, lambda x: evaluate(checked, x)[1], estimator)


def measure(gradient: Callable[[Any], Any], key: PRNGKeyArray, draws: int, chunk: int = 1) -> Meter:
    """Return the meter of `gradient(key)` over independent keys; traceable.

    Args:
        gradient: a function from a key to a gradient.
        key: a JAX random key.
        draws: the number of gradients.
        chunk: the number of gradients that are computed at once.
    """

    def add_chunk(meter: Meter, keys: Any) -> tuple[Meter, None]:
        gradients = jax.vmap(gradient)(keys) if chunk > 1 else gradient(keys[0])[None]
        return add(meter, gradients.astype(meter.mean.dtype)), None

    keys = jax.random.split(key, draws)
    shape = jax.eval_shape(gradient, keys[0])
    meter = empty(jnp.zeros(shape.shape, jnp.promote_types(shape.dtype, jnp.float32)))
    whole = draws // chunk * chunk
    meter, _ = jax.lax.scan(add_chunk, meter, keys[:whole].reshape(-1, chunk, *keys.shape[1:]))
    return add_chunk(meter, keys[whole:])[0] if whole < draws else meter


def best_coefficients(
    f: Function,
    q: Distribution | Sequential,
    estimator: Estimator,
    key: PRNGKeyArray,
    draws: int,
    context: Float[Array | np.ndarray, "*#batch features"] | None = None,
) -> Learned:
    """Return the coefficients of least variance over draws; traceable, and solved in the type of the logits."""
    linear = coefficients.require_linear(estimator)
    if linear is None:
        return Learned({}, {}, {})
    best = least_variance(mean_products(f, q, estimator, key, draws, context))
    return Learned({name: best[index] for index, name in enumerate(linear.needs.coefficients)}, {}, {})


def mean_products(
    f: Function,
    q: Distribution | Sequential,
    estimator: Estimator,
    key: PRNGKeyArray,
    draws: int,
    context: Float[Array | np.ndarray, "*#batch features"] | None = None,
) -> Float[Array, "parts parts"]:
    r"""Return the mean over draws of :math:`(g_0, h) (g_0, h)^T`, for the best coefficients; traceable."""
    linear = coefficients.require_linear(estimator)
    assert linear is not None
    expectation = Expectation(linear)
    learned = expectation.init(q, context=context).learned

    def products(key: Any) -> Any:
        estimate = expectation.estimate(f, q, learned, key, context=context)
        return coefficients.products_of_parts(linear.parts(estimate.q, estimate.evaluation), linear)

    mean: jax.Array = measure(products, key, draws, chunk_size(q, estimator, draws)).mean
    return mean


def chunk_size(q: Distribution | Sequential, estimator: AnyEstimator, draws: int) -> int:
    """Return the number of estimates that are computed at once: a divisor of `draws` if there is a large one.

    With a remainder, the program would contain the estimate twice, and take twice the time to compile.
    """
    if isinstance(q, Sequential):
        sample = jax.eval_shape(lambda: q.visit(1, uniform(jax.random.key(0))).x).shape
    else:
        sample = q.logits.shape
    size: int = prod(sample) * estimator.evaluations
    most = max(1, min(draws, 100, NUMBERS_AT_ONCE // max(1, size)))
    return next((chunk for chunk in range(most, most // 2, -1) if draws % chunk == 0), most)


@dataclass(frozen=True, eq=False)
class JaxProblem(Problem):
    """f and q in JAX.

    Attributes:
        f: the function, without auxiliary output.
        q: the distribution.
        key: the random key of all streams.
        context: features of each batch element.
        differentiate_f: whether a step includes the gradient in the arrays that f closes over.
        make_q: a function that makes q, if a step includes it and the gradient in the arrays that it closes over.
    """

    f: Function
    q: Distribution | Sequential
    key: Any
    context: Any
    differentiate_f: bool
    make_q: Callable[[], Distribution] | None = None

    @classmethod
    def make(
        cls, f: Any, q: Any, key: Any, context: Any, has_aux: bool = False, differentiate_f: bool = True
    ) -> JaxProblem:
        """Check the arguments and return the problem."""
        check_function(f, q)
        q, make_q = made_distribution(q)
        check_distribution(q)
        check_arrays(q)
        check_key(key)
        return cls(_values_only(f, has_aux), q, key, context, differentiate_f, make_q)

    def optimal_coefficients(self, estimator: Estimator, draws: int) -> Learned:
        """Return the coefficients of least variance from draws of `FIT_STREAM`."""
        check_estimator(estimator)
        linear = coefficients.require_linear(estimator)
        if linear is None:
            return Learned({}, {}, {})
        products = jax.jit(
            lambda key: mean_products(self.f, self.q, estimator, key, draws, self.context),
            compiler_options=RUN_A_FEW_TIMES,
        )
        return coefficients.solve(linear, products(self._key(FIT_STREAM)))

    def train(self, estimator: Estimator, steps: int) -> Learned:
        """Return the learned state after some steps on this problem."""
        expectation = Expectation(estimator, optax.adam(TRAINING_RATE))

        def step(state: Any, key: Any) -> tuple[Any, None]:
            estimate = expectation.estimate(self.f, self.q, state.learned, key, context=self.context)
            return expectation.update(estimate.learned_gradient, state), None

        start = expectation.init(self.q, context=self.context)
        keys = jax.random.split(self._key(FIT_STREAM), steps)
        state, _ = jax.jit(lambda start, keys: jax.lax.scan(step, start, keys))(start, keys)
        learned: Learned = state.learned
        return learned

    def measure(self, estimator: AnyEstimator, learned: Learned) -> Measure:
        """Return a function that draws gradients."""

        @partial(jax.jit, static_argnums=1, compiler_options=RUN_A_FEW_TIMES)
        def run(key: Any, draws: int) -> Meter:
            chunk = chunk_size(self.q, estimator, draws)
            return measure(lambda key: self._gradient(estimator, learned, key), key, draws, chunk)

        return lambda draws, stream: run(self._key(stream), draws)

    def step(self, estimator: AnyEstimator) -> Callable[[], object]:
        """Return a function that computes all gradients of a training step around f, once."""
        if isinstance(self.q, Sequential):
            return self._sequential_step(estimator, self.q)
        q, shape = self.q, (estimator.samples, *self.q.logits.shape)
        of_f = _close(self.f, self.differentiate_f, jnp.zeros(shape, q.logits.dtype))
        of_q = _Closed(lambda arrays, held: q.with_logits(arrays[0]), [q.logits], [])
        if self.make_q is not None:
            of_q = _close(self.make_q, True)
        arrays, held = (of_q.arrays, of_f.arrays), (of_q.held, of_f.held)

        def f_at(arrays: Any, held: Any) -> Function:
            # The estimator may also ask for f at other numbers of points, where it is not differentiated in these.
            return lambda x: of_f.call(arrays[1], held[1], x) if x.shape == shape else self.f(x)

        if isinstance(estimator, Estimator):
            expectation = Expectation(estimator)
            state = expectation.init(q, context=self.context)

            def loss(arrays: Any, learned: Any, held: Any, key: Any) -> Any:
                q = of_q.call(arrays[0], held[0])
                return expectation(f_at(arrays, held), q, learned, key, context=self.context).mean()

            @jax.jit
            def program(arrays: Any, state: Any, held: Any, key: Any) -> Any:
                gradients, of_learned = jax.grad(loss, argnums=(0, 1))(arrays, state.learned, held, key)
                return gradients, expectation.update(of_learned, state)

            return lambda: _finished(program(arrays, state, held, self.key))

        @jax.jit
        def biased_program(arrays: Any, held: Any, key: Any) -> Any:
            q, pullback = jax.vjp(lambda arrays: of_q.call(arrays, held[0]), arrays[0])
            value, gradient, of_arrays = _biased_step(
                lambda of_f: f_at((arrays[0], of_f), held), q, estimator, arrays[1], key
            )
            return value, pullback(q.with_logits(gradient.astype(q.logits.dtype))), of_arrays

        return lambda: _finished(biased_program(arrays, held, self.key))

    def _sequential_step(self, estimator: AnyEstimator, q: Sequential) -> Callable[[], object]:
        """Return a training step in the arrays that f and the functions of q close over."""
        assert isinstance(estimator, Estimator)
        expectation, f = Expectation(estimator), self.f
        learned = expectation.init(q).learned
        if not self.differentiate_f:
            visit = q.visit(estimator.samples, uniform(self.key))
            converted = closure_convert(self.f, visit.structure(visit.x))

            def f(x: Any) -> Any:
                return converted.call(jax.lax.stop_gradient(converted.constants), x)

        def loss(learned: Any, key: Any) -> Any:
            return expectation(f, q, learned, key).mean()

        whole = closure_convert(loss, learned, self.key)
        smooth = [jnp.issubdtype(jnp.result_type(array), jnp.floating) for array in whole.constants]

        def of_arrays(differentiated: list[Any], learned: Any, key: Any) -> Any:
            given = iter(differentiated)
            constants = [
                next(given) if wanted else array for array, wanted in zip(whole.constants, smooth, strict=True)
            ]
            return whole.call(constants, learned, key)

        differentiated = [array for array, wanted in zip(whole.constants, smooth, strict=True) if wanted]
        program = jax.jit(jax.value_and_grad(of_arrays, argnums=(0, 1)))
        return lambda: _finished(program(differentiated, learned, self.key))

    def exact_gradient(self) -> Float[np.ndarray, "*logits"]:
        """Return the exact gradient by enumeration."""
        assert isinstance(self.q, Distribution)
        return np.asarray(exact_gradient(self.f, self.q), dtype=float)

    def _gradient(self, estimator: AnyEstimator, learned: Learned, key: Any) -> Any:
        if isinstance(estimator, Estimator):
            estimate = Expectation(estimator).estimate(self.f, self.q, learned, key, context=self.context)
            return total_gradient(estimate.q, estimate.gradient)
        assert isinstance(self.q, Distribution)
        return _biased_step(lambda _: self.f, self.q, estimator, None, key)[1]

    def _key(self, stream: int) -> Any:
        return jax.random.fold_in(self.key, stream)


class _Closed(NamedTuple):
    """Hold a function whose first arguments are the arrays that it closed over.

    Attributes:
        call: the function.
        arrays: the arrays in which it is differentiated.
        held: the other arrays.
    """

    call: Callable[..., Any]
    arrays: list[Any]
    held: list[Any]


def _close(function: Callable[..., Any], differentiate: bool, *arguments: Any) -> _Closed:
    """Return a function of the arrays that it closed over; the floating-point ones are differentiated if wanted."""
    converted = closure_convert(function, *arguments)
    constants = [jnp.asarray(constant) for constant in converted.constants]
    wanted = [differentiate and jnp.issubdtype(array.dtype, jnp.floating) for array in constants]

    def call(arrays: list[Any], held: list[Any], *arguments: Any) -> Any:
        ones, others = iter(arrays), iter(held)
        return converted.call([next(ones) if chosen else next(others) for chosen in wanted], *arguments)

    chosen, others = (
        [array for array, is_wanted in zip(constants, wanted, strict=True) if is_wanted is choice]
        for choice in (True, False)
    )
    return _Closed(call, chosen, others)


def _biased_step(
    f: Callable[[Any], Function], q: Distribution, estimator: AnyEstimator, differentiated: Any, key: Any
) -> tuple[Any, Any, Any]:
    """Return the mean of f, a biased estimate of its gradient, and its gradient in what f closes over."""
    assert not isinstance(estimator, Estimator)
    held = q.detach().widen()
    noise = jax.random.uniform(key, estimator.noise_shape(held), held.logits.dtype)
    x = estimator.draw(held, noise)

    def values(x: Any, differentiated: Any) -> Any:
        return checked_function(f(differentiated), held, False, q.logits.dtype)(x)[0]

    found, pullback = jax.vjp(values, x, differentiated)
    df, of_differentiated = pullback(jnp.ones_like(found))
    return found.mean(), estimator.estimate(held, noise, x, df), of_differentiated


def _finished(results: Any) -> Any:
    """Wait until the results are computed."""
    return jax.block_until_ready(results)  # type: ignore[no-untyped-call]


def _values_only(f: Function, has_aux: bool) -> Function:
    return (lambda x: f(x)[0]) if has_aux else f
