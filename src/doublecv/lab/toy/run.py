"""Run `doublecv toy`: record each estimator's variance while it maximises E_q 1/D sum_i (x_i - p0)^2.

The figures of section 5.1 and of the appendix of Titsias and Shi (2022) show these curves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import matplotlib  # noqa: F401  (if it is missing, this is said before the run and not after it)
import numpy as np
import optax
from rich.console import Console
from rich.progress import track

from doublecv.diagnostics.meter import mean_variance
from doublecv.distributions import Bernoulli
from doublecv.estimators import Estimator, Learned, LinearEstimator, make
from doublecv.jax import Expectation
from doublecv.jax.diagnostics import measure
from doublecv.lab.common import files
from doublecv.lab.toy.problem import ToyProblem, ToySettings
from doublecv.lab.toy.results import METRICS, Curves, ToyResults, record_iterations, table, write_figures, write_metrics

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

CHUNK = 1_000_000
"""The number of uniform numbers drawn at once; more fresh estimates are computed in parts, to save memory."""


def main(settings: ToySettings) -> None:
    """Run the experiment with a progress bar, write the folder and print the table."""
    settings.check()
    folder = settings.out
    with nullcontext() if folder is None else files.claimed(folder):
        run_and_show(settings, folder)


def run_and_show(settings: ToySettings, folder: Path | None) -> None:
    """Run the experiment, write its files into a folder that belongs to it, and print the table."""
    results = run(settings, show_progress=True)
    Console().print(table(results))
    if folder is not None:
        write_metrics(results, folder / METRICS)
        write_figures(results, folder)
        files.write_config(folder, "toy", settings.as_json(), [METRICS])
        print(f"written to {folder}")


def run(settings: ToySettings, show_progress: bool = False) -> ToyResults:
    """Run every estimator with every seed; a bar on standard error shows how many are done.

    All estimators get the same seeds. The random numbers of the variance are separate from those of the optimisation,
    so that `every` and `draws` do not influence the optimisation.
    """
    settings.check()
    console = Console(stderr=True)
    hidden = not (show_progress and console.is_terminal)
    names = track(settings.estimators, "toy problem", console=console, transient=True, disable=hidden)
    return ToyResults(settings, record_iterations(settings), {name: _curves(settings, name) for name in names})


def _curves(settings: ToySettings, name: str) -> Curves:
    problem = ToyProblem(settings.target)
    estimator = make(name, samples=settings.samples)
    if estimator.needs.expected_f:
        estimator = make(name, samples=settings.samples, expected_f=problem.expected_f)
    with jax.enable_x64(True):
        program = jax.jit(_program(settings, problem, estimator)).lower(jax.random.key(0)).compile()

    def one_run(seed: int) -> tuple[Float[np.ndarray, "records"], ...]:
        with jax.enable_x64(True):
            logits, alpha, variance = map(np.asarray, program(jax.random.key(seed)))
        q = Bernoulli(logits=logits)
        return variance, problem.expected_f(q), q.mean.mean(-1), alpha

    # A run occupies one core, so the seeds share the cores of the machine.
    with ThreadPoolExecutor(min(settings.seeds, os.cpu_count() or 1)) as pool:
        runs = list(pool.map(one_run, range(1, settings.seeds + 1)))
    return Curves(*map(np.stack, zip(*runs, strict=True)))


def _program(settings: ToySettings, problem: ToyProblem, estimator: Estimator) -> Callable[[PRNGKeyArray], Any]:
    """Return one complete run as a function of its random key: the logits, alpha and the variance at every record."""
    ascend = optax.rmsprop(settings.learning_rate, decay=0.9, eps=1e-7, eps_in_sqrt=False)
    descend = optax.rmsprop(settings.coefficient_learning_rate, decay=0.9, eps=1e-7, eps_in_sqrt=False)
    expectation = Expectation(estimator, descend)
    stops = record_iterations(settings)
    starts = np.append(0, stops[:-1])

    def program(key: PRNGKeyArray) -> Any:
        learning_key, measuring_key, _ = jax.random.split(key, 3)

        def step(iteration: Any, carry: Any) -> Any:
            logits, ascent, state = carry
            key = jax.random.fold_in(learning_key, iteration)
            found = expectation.estimate(problem.f, Bernoulli(logits=logits), state.learned, key)
            updates, ascent = ascend.update(-found.gradient, ascent)
            return optax.apply_updates(logits, updates), ascent, expectation.update(found.learned_gradient, state)

        def advance_and_record(carry: Any, iterations: Any) -> Any:
            start, stop = iterations
            carry = jax.lax.fori_loop(start, stop, step, carry)
            logits, _, state = carry
            key, q = jax.random.fold_in(measuring_key, stop), Bernoulli(logits=logits)

            def gradient(key: Any) -> Any:
                return expectation.estimate(problem.f, q, state.learned, key).gradient

            numbers_per_draw = max(1, prod(estimator.noise_shape(q)))
            chunk = max(1, min(settings.draws, CHUNK // numbers_per_draw))
            variance = mean_variance(measure(gradient, key, settings.draws, chunk))
            return carry, (logits, _alpha(estimator, state.learned), variance)

        logits = jnp.zeros(settings.dimension)
        start = (logits, ascend.init(logits), expectation.init(Bernoulli(logits=logits)))
        _, records = jax.lax.scan(advance_and_record, start, (starts, stops))
        return records

    return program


def _alpha(estimator: Estimator, learned: Learned) -> Float[Array, ""]:
    """Return the coefficient alpha, however it is learned; NaN if the estimator has no such coefficient."""
    if not isinstance(estimator, LinearEstimator) or estimator.needs.coefficients != ("alpha",):
        return jnp.asarray(jnp.nan)
    return jnp.asarray(estimator.coefficients(learned)["alpha"])
