"""The toy experiment: follow each estimator's variance while it maximises E_q 1/D sum_i (x_i - p0)^2.

    from doublecv.lab.toy import run as toy

    results = toy.run(toy.ToySettings(dimension=10, iterations=500, seeds=2))
    results.curves["double-cv"].variance        # [seeds, records]

The figures of section 5.1 and of the appendix of Titsias and Shi (2022) are made of these curves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]

from doublecv.distributions import Bernoulli
from doublecv.estimators import RLOO, Estimator, LinearEstimator, Relax, RStar, Surrogate, make
from doublecv.estimators.linear import AVERAGE_RATE
from doublecv.jax import estimate
from doublecv.lab.toy.exact import exact_optimal_alpha, exact_variance, has_exact_variance
from doublecv.lab.toy.problem import ToyProblem, ToySettings
from doublecv.lab.toy.results import Curves, ToyResults, record_iterations
from doublecv.lab.vae.relax_network import RelaxNetwork, relax_with_input

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

CHUNK = 1_000_000
"""How many uniform numbers are drawn at once; beyond it the fresh estimates come in several parts, to spare memory."""


def run(settings: ToySettings, progress: Callable[[str], None] | None = None) -> ToyResults:
    """Run every estimator with every seed.

    All estimators get the same seeds. The random numbers of the variance are apart from those of the optimisation, so
    `every` and `draws` do not change the course of a run.

    Args:
        settings: what to run.
        progress: called with an estimator's name whenever one more of its records is done, from any thread.
    """
    settings.check()
    problem = ToyProblem(settings.target)
    seeds = tuple(range(1, settings.seeds + 1))
    curves = {
        name: _curves(settings, problem, _estimator(name, settings, problem), seeds, progress)
        for name in settings.estimators
    }
    return ToyResults(settings, seeds, record_iterations(settings), curves)


def _estimator(name: str, settings: ToySettings, problem: ToyProblem) -> Estimator:
    """The registered estimator, with what it must know of the problem."""
    estimator = make(name, samples=settings.samples)
    if isinstance(estimator, RStar):
        return replace(estimator, expected_f=problem.expected_f)
    if isinstance(estimator, Surrogate):
        # The toy problem has no input, so that the context is the same number for ever.
        directions = min(estimator.directions, settings.dimension)
        return replace(estimator, variables=settings.dimension, features=1, directions=directions, context=jnp.ones(1))
    if isinstance(estimator, Relax):
        return relax_with_input(_relax_network(settings, jax.random.key(0)), jnp.zeros(0), settings.samples)
    return estimator


def _relax_network(settings: ToySettings, key: PRNGKeyArray) -> RelaxNetwork:
    """A network of z alone: the toy problem has no input."""
    return RelaxNetwork(inputs=0, latents=settings.dimension, key=key)


class _Records(NamedTuple):
    """What the compiled program of one run returns, with an axis of records in front: JAX arrays, then NumPy arrays."""

    logits: Any
    alpha: Any
    variance: Any
    drawn_optimal_alpha: Any


def _curves(
    settings: ToySettings,
    problem: ToyProblem,
    estimator: Estimator,
    seeds: tuple[int, ...],
    progress: Callable[[str], None] | None,
) -> Curves:
    tick = None if progress is None else lambda: progress(estimator.name)
    with jax.enable_x64(True):
        program = jax.jit(_program(settings, problem, estimator, tick)).lower(jax.random.key(0)).compile()

    def one_run(seed: int) -> Curves:
        with jax.enable_x64(True):
            records = jax.tree.map(np.asarray, program(jax.random.key(seed)))
        return _with_exact_values(problem, estimator, records)

    # A run occupies one core, so the seeds share the machine's.
    with ThreadPoolExecutor(min(len(seeds), os.cpu_count() or 1)) as pool:
        runs = list(pool.map(one_run, seeds))
    return Curves(*(np.stack([getattr(one, field.name) for one in runs]) for field in fields(Curves)))


def _program(
    settings: ToySettings, problem: ToyProblem, estimator: Estimator, tick: Callable[[], None] | None
) -> Callable[[PRNGKeyArray], _Records]:
    """The whole of one run as one function of its random key."""
    ascend = optax.rmsprop(settings.learning_rate, decay=0.9, eps=1e-7, eps_in_sqrt=False)
    descend = optax.partition(
        {
            "averaged": optax.sgd(AVERAGE_RATE),
            "learned": optax.rmsprop(settings.coefficient_learning_rate, decay=0.9, eps=1e-7, eps_in_sqrt=False),
        },
        {name: "averaged" if name in estimator.averaged else "learned" for name in estimator.coefficients()},
    )
    optimum_from_draws = _has_alpha(estimator) and not has_exact_variance(estimator, settings.dimension)
    stops = record_iterations(settings)
    starts = np.append(0, stops[:-1])

    def program(key: PRNGKeyArray) -> _Records:
        learning_key, measuring_key, network_key = jax.random.split(key, 3)
        logits = jnp.zeros(settings.dimension)
        coefficients = estimator.coefficients()
        if isinstance(estimator, Relax):
            coefficients["network"] = _relax_network(settings, network_key)
        coefficients = jax.tree.map(lambda leaf: jnp.asarray(leaf, logits.dtype), coefficients)

        def step(iteration: Any, state: Any) -> Any:
            logits, coefficients, ascent, descent = state
            key = jax.random.fold_in(learning_key, iteration)
            found = estimate(problem.f, Bernoulli(logits=logits), estimator, coefficients, key)
            updates, ascent = ascend.update(-found.gradient, ascent)
            coefficient_updates, descent = descend.update(found.coefficient_gradient, descent)
            return (
                optax.apply_updates(logits, updates),
                optax.apply_updates(coefficients, coefficient_updates),
                ascent,
                descent,
            )

        def advance_and_record(state: Any, iterations: Any) -> tuple[Any, _Records]:
            start, stop = iterations
            state = jax.lax.fori_loop(start, stop, step, state)
            logits, coefficients, *_ = state
            keys = jax.random.split(jax.random.fold_in(measuring_key, stop), settings.draws)
            variance, optimal_alpha = _measure(
                problem, estimator, Bernoulli(logits=logits), coefficients, keys, optimum_from_draws
            )
            if tick is not None:
                jax.debug.callback(tick)
            alpha = estimator.numbers(coefficients)["alpha"] if _has_alpha(estimator) else jnp.nan
            return state, _Records(logits, jnp.asarray(alpha), variance, optimal_alpha)

        start = (logits, coefficients, ascend.init(logits), descend.init(coefficients))
        _, records = jax.lax.scan(advance_and_record, start, (starts, stops))
        return records

    return program


def _measure(
    problem: ToyProblem,
    estimator: Estimator,
    q: Bernoulli,
    coefficients: Mapping[str, Any],
    keys: PRNGKeyArray,
    optimum_from_draws: bool,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The mean over D of the variance over fresh estimates and, where asked for, E[g0 . h] / E[h . h] of the same."""

    def draw(key: PRNGKeyArray) -> tuple[Any, Any]:
        found = estimate(problem.f, q, estimator, coefficients, key)
        if not optimum_from_draws:
            return found.gradient, ()
        assert isinstance(estimator, LinearEstimator)
        g0, parts = estimator.parts(q, found.evaluation).vectors()
        return found.gradient, (-g0 @ parts["alpha"], parts["alpha"] @ parts["alpha"])

    numbers_a_draw = max(1, int(np.prod(estimator.noise_shape(q))))
    chunk = max(1, min(keys.shape[0], CHUNK // numbers_a_draw))
    gradients, products = jax.lax.map(draw, keys, batch_size=chunk)
    optimal_alpha = jnp.mean(products[0]) / jnp.mean(products[1]) if optimum_from_draws else jnp.asarray(jnp.nan)
    return jnp.mean(jnp.var(gradients, axis=0, ddof=1)), optimal_alpha


def _with_exact_values(problem: ToyProblem, estimator: Estimator, records: _Records) -> Curves:
    """The curves of one seed: the objective and, where they are known, the exact variances and the optimal alpha."""
    q = Bernoulli(logits=records.logits)
    at_records = [Bernoulli(logits=logits) for logits in records.logits]
    known = has_exact_variance(estimator, q.event_shape[0])
    unknown = np.full(records.alpha.shape, np.nan)

    def exact(estimator: Estimator, coefficients: list[dict[str, float]]) -> Float[np.ndarray, "records"]:
        pairs = zip(at_records, coefficients, strict=True)
        return np.array([exact_variance(problem, estimator, at, its_own).mean() for at, its_own in pairs])

    variance, rloo_variance, optimal_alpha = unknown, unknown, records.drawn_optimal_alpha
    if known:
        variance = exact(estimator, [{"alpha": alpha} if _has_alpha(estimator) else {} for alpha in records.alpha])
    if known and _has_alpha(estimator):
        optimal_alpha = np.array([exact_optimal_alpha(problem, estimator, at) for at in at_records])
    if estimator.samples >= RLOO.minimum_samples:
        rloo = RLOO(estimator.samples)
        if has_exact_variance(rloo, q.event_shape[0]):
            rloo_variance = exact(rloo, [{}] * len(at_records))
    return Curves(
        variance=records.variance,
        exact_variance=variance,
        objective=problem.expected_f(q),
        mean_probability=q.mean.mean(-1),
        alpha=records.alpha,
        optimal_alpha=optimal_alpha,
        exact_rloo_variance=rloo_variance,
    )


def _has_alpha(estimator: Estimator) -> bool:
    return isinstance(estimator, LinearEstimator) and estimator.starts().keys() == {"alpha"}
