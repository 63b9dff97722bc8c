"""Run `doublecv toy`: record each estimator's variance while it maximises E_q 1/D sum_i (x_i - p0)^2.

::

    from doublecv.lab.toy.problem import ToySettings
    from doublecv.lab.toy.run import run

    results = run(ToySettings(dimension=10, iterations=500, seeds=2))
    results.curves["double-cv"].variance        # [seeds, records]

The figures of section 5.1 and of the appendix of Titsias and Shi (2022) show these curves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib  # noqa: F401  (if it is missing, this is said before the run and not after it)
import numpy as np
import optax
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from doublecv.diagnostics.meter import mean_variance
from doublecv.distributions import Bernoulli
from doublecv.estimators import RLOO, Estimator, Learned, LinearEstimator, make
from doublecv.jax import Expectation
from doublecv.jax.diagnostics import measure
from doublecv.lab.common import files
from doublecv.lab.common.charts import appearance
from doublecv.lab.toy.exact import exact_optimal_alpha, exact_variance, has_exact_variance
from doublecv.lab.toy.problem import ToyProblem, ToySettings
from doublecv.lab.toy.results import (
    METRICS,
    Curves,
    ToyResults,
    record_iterations,
    table,
    write_figures,
    write_metrics,
)

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

CHUNK = 1_000_000
"""The number of uniform numbers drawn at once; more fresh estimates are computed in parts, to save memory."""


def main(settings: ToySettings) -> None:
    """Run the experiment with a progress bar, write the folder and print the table."""
    settings.check()
    folder = settings.out
    with nullcontext() if folder is None else files.claimed(folder, settings.as_json()):
        run_and_show(settings, folder)


def run_and_show(settings: ToySettings, folder: Path | None) -> None:
    """Run the experiment, write its files into a folder that belongs to it, and print the table."""
    wall, cpu = time.perf_counter(), time.process_time()
    results = run_with_progress(settings)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if folder is not None:
        with (folder / METRICS).open("w", newline="") as file:
            write_metrics(results, file)
        write_figures(results, folder)
        files.write_config(folder, "toy", settings.as_json(), [METRICS])
    console = Console()
    console.print(table(results))
    console.print(f"{wall:.0f} s, {cpu:.0f} s of CPU time", highlight=False)
    if folder is not None:
        console.print(f"written to {folder}", highlight=False, soft_wrap=True, markup=False)


def run_with_progress(settings: ToySettings) -> ToyResults:
    """Call `run` with a progress bar on standard error."""
    records = len(record_iterations(settings)) * settings.seeds * len(settings.estimators)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=records)
        return run(settings, lambda name: bar.update(task, advance=1, description=appearance(name).label))


def run(settings: ToySettings, progress: Callable[[str], None] | None = None) -> ToyResults:
    """Run every estimator with every seed.

    All estimators get the same seeds. The random numbers of the variance are separate from those of the optimisation,
    so that `every` and `draws` do not influence the optimisation. `progress` is called with the name of an estimator,
    from any thread, after each of its records.
    """
    settings.check()
    problem = ToyProblem(settings.target)
    seeds = tuple(range(1, settings.seeds + 1))
    curves = {name: _curves(settings, problem, name, seeds, progress) for name in settings.estimators}
    return ToyResults(settings, seeds, record_iterations(settings), curves)


class _Records(NamedTuple):
    """Hold the records of one run, each array with a leading axis of records."""

    logits: Any
    alpha: Any
    variance: Any


def _curves(
    settings: ToySettings,
    problem: ToyProblem,
    name: str,
    seeds: tuple[int, ...],
    progress: Callable[[str], None] | None,
) -> Curves:
    tick = None if progress is None else lambda: progress(name)
    estimator = make(name, samples=settings.samples)
    if estimator.needs.expected_f:
        estimator = make(name, samples=settings.samples, expected_f=problem.expected_f)
    with jax.enable_x64(True):
        program = jax.jit(_program(settings, problem, estimator, tick)).lower(jax.random.key(0)).compile()

    def one_run(seed: int) -> Curves:
        with jax.enable_x64(True):
            records = jax.tree.map(np.asarray, program(jax.random.key(seed)))
        return _with_exact_values(problem, estimator, records)

    # A run occupies one core, so the seeds share the cores of the machine.
    with ThreadPoolExecutor(min(len(seeds), os.cpu_count() or 1)) as pool:
        runs = list(pool.map(one_run, seeds))
    return Curves(*(np.stack([getattr(one, field.name) for one in runs]) for field in fields(Curves)))


def _program(
    settings: ToySettings, problem: ToyProblem, estimator: Estimator, tick: Callable[[], None] | None
) -> Callable[[PRNGKeyArray], _Records]:
    """Return one complete run as a function of its random key."""
    ascend = optax.rmsprop(settings.learning_rate, decay=0.9, eps=1e-7, eps_in_sqrt=False)
    descend = optax.rmsprop(settings.coefficient_learning_rate, decay=0.9, eps=1e-7, eps_in_sqrt=False)
    expectation = Expectation(estimator, descend)
    stops = record_iterations(settings)
    starts = np.append(0, stops[:-1])

    def program(key: PRNGKeyArray) -> _Records:
        learning_key, measuring_key, _ = jax.random.split(key, 3)

        def step(iteration: Any, carry: Any) -> Any:
            logits, ascent, state = carry
            key = jax.random.fold_in(learning_key, iteration)
            found = expectation.estimate(problem.f, Bernoulli(logits=logits), state.learned, key)
            updates, ascent = ascend.update(-found.gradient, ascent)
            return optax.apply_updates(logits, updates), ascent, expectation.update(found.learned_gradient, state)

        def advance_and_record(carry: Any, iterations: Any) -> tuple[Any, _Records]:
            start, stop = iterations
            carry = jax.lax.fori_loop(start, stop, step, carry)
            logits, _, state = carry
            key, q = jax.random.fold_in(measuring_key, stop), Bernoulli(logits=logits)

            def gradient(key: Any) -> Any:
                return expectation.estimate(problem.f, q, state.learned, key).gradient

            numbers_per_draw = max(1, prod(estimator.noise_shape(q)))
            chunk = max(1, min(settings.draws, CHUNK // numbers_per_draw))
            variance = mean_variance(measure(gradient, key, settings.draws, chunk))
            if tick is not None:
                jax.debug.callback(tick)
            return carry, _Records(logits, _alpha(estimator, state.learned), variance)

        logits = jnp.zeros(settings.dimension)
        start = (logits, ascend.init(logits), expectation.init(Bernoulli(logits=logits)))
        _, records = jax.lax.scan(advance_and_record, start, (starts, stops))
        return records

    return program


def _with_exact_values(problem: ToyProblem, estimator: Estimator, records: _Records) -> Curves:
    """Return the curves of one seed, with exact variances and the optimal alpha where they are known."""
    q = Bernoulli(logits=records.logits)
    at_records = [Bernoulli(logits=logits) for logits in records.logits]
    known = has_exact_variance(estimator, q.event_shape[0])
    unknown = np.full(records.alpha.shape, np.nan)

    def exact(estimator: Estimator, coefficients: list[dict[str, float]]) -> Float[np.ndarray, "records"]:
        pairs = zip(at_records, coefficients, strict=True)
        return np.array([exact_variance(problem, estimator, at, its_own).mean() for at, its_own in pairs])

    variance, rloo_variance, optimal_alpha = unknown, unknown, unknown
    if known:
        variance = exact(estimator, [{"alpha": alpha} if _has_alpha(estimator) else {} for alpha in records.alpha])
    if known and _has_alpha(estimator):
        optimal_alpha = np.array([exact_optimal_alpha(problem, estimator, at) for at in at_records])
    if estimator.samples > 1:
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
    return estimator.needs.coefficients == ("alpha",)


def _alpha(estimator: Estimator, learned: Learned) -> Float[Array, ""]:
    """Return the coefficient alpha, however it is learned; NaN if the estimator has no such coefficient."""
    if not isinstance(estimator, LinearEstimator) or not _has_alpha(estimator):
        return jnp.asarray(jnp.nan)
    return jnp.asarray(estimator.coefficients(learned)["alpha"])
