"""Measure whether learned control variates ever hurt: the variance relative to RLOO along short training runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from doublecv import Bernoulli, Categorical, estimators
from doublecv.estimators import Estimator
from doublecv.jax import Expectation
from doublecv.lab.bench.harm_problems import KINDS, HarmProblem, problems
from doublecv.lab.bench.results import BenchSettings
from doublecv.lab.common.files import write_atomically

if TYPE_CHECKING:
    from rich.table import Table

RECOMMENDED = ("double-cv-moments", "quadratic-double-cv", "surrogate-quadratic-double-cv")
"""The estimators that are measured if none is named."""

STEPS = 600

CHECKPOINTS = (0, 1, 2, 4, 8, 15, 30, 60, 120, 199, 201, 205, 230, 299, 301, 305, 330, 400, 500, 599)
"""The steps before which the variance is measured, out of 600: dense at the start and after a change of the scale."""

NUMBERS = 200_000
"""The number of gradient entries that are drawn per measurement."""


@dataclass(frozen=True)
class HarmRow:
    """Hold the variance of one estimator relative to RLOO along one run.

    Attributes:
        problem: the description of the problem.
        estimator: the estimator's name in the registry.
        steps: the steps before which the variance was measured.
        ratios: the variance relative to RLOO at the same parameters, before each of them; NaN where RLOO has none.
        errors: the standard errors of the ratios.
    """

    problem: str
    estimator: str
    steps: tuple[int, ...]
    ratios: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def largest(self) -> float:
        """Return the largest ratio."""
        return float(np.nanmax(self.ratios))

    @property
    def worst(self) -> float:
        """Return the largest ratio after two standard errors of its measurement are taken off."""
        return float(np.nanmax(np.asarray(self.ratios) - 2 * np.asarray(self.errors)))

    @property
    def mean(self) -> float:
        """Return the mean ratio over the steps of the run, linear between those at which it was measured."""
        steps, ratios = (np.asarray(values, dtype=float) for values in (self.steps, self.ratios))
        known = np.isfinite(ratios)
        if not known.any():
            return float("nan")
        every = np.arange(steps[0], steps[-1] + 1)
        return float(np.mean(np.interp(every, steps[known], ratios[known])))


def main(settings: BenchSettings) -> None:
    """Measure, print the table and write a JSON and a Markdown file."""
    from rich.console import Console

    console, rows = Console(), []
    for name in settings.estimators or RECOMMENDED:
        for problem in problems():
            if (row := measure(name, problem)) is not None:
                rows.append(row)
                console.print(f"{name}: {problem.name}: worst {row.worst:.3g}, mean {row.mean:.3g}")
    console.print(table(rows))
    if settings.out is not None:
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(settings.out, (json.dumps([*map(asdict, rows)], indent=2) + "\n").encode())
        write_atomically(settings.out.with_suffix(".md"), markdown(rows).encode())


def table(rows: list[HarmRow]) -> Table:
    """Return the worst and the mean ratio of every estimator."""
    from rich.table import Table

    shown = Table("estimator", "problems", "worst ratio", "above 1.1", "mean ratio", "worst problem")
    for name in dict.fromkeys(row.estimator for row in rows):
        own = [row for row in rows if row.estimator == name]
        worst = max(own, key=lambda row: row.worst)
        above = sum(row.worst > 1.1 for row in own)
        mean = float(np.mean([row.mean for row in own]))
        shown.add_row(name, f"{len(own)}", f"{worst.worst:.3g}", f"{above}", f"{mean:.3f}", worst.problem)
    return shown


def markdown(rows: list[HarmRow]) -> str:
    """Return the tables of a page: all problems of each estimator, and the problems of each kind.

    >>> print(markdown([HarmRow("toy D=1", "rloo", (0, 1), (1.0, 0.5), (0.0, 0.1))]))
    | estimator | problems | largest ratio | less 2 standard errors | mean ratio |
    |---|---|---|---|---|
    | `rloo` | 1 | 1.000 | 1.000 | 0.750 |
    <BLANKLINE>
    | largest and mean ratio | `rloo` |
    |---|---|
    | toy | 1.00, 0.75 (1) |
    <BLANKLINE>
    """
    names = [*dict.fromkeys(row.estimator for row in rows)]
    kinds = [*dict.fromkeys(row.problem.split()[0] for row in rows)]

    def chosen(name: str, kind: str = "") -> list[HarmRow]:
        return [row for row in rows if row.estimator == name and row.problem.startswith(kind)]

    lines = ["| estimator | problems | largest ratio | less 2 standard errors | mean ratio |", "|---|---|---|---|---|"]
    for name in names:
        own = chosen(name)
        largest, worst = max(row.largest for row in own), max(row.worst for row in own)
        lines.append(f"| `{name}` | {len(own)} | {largest:.3f} | {worst:.3f} | {np.mean([r.mean for r in own]):.3f} |")
    lines += [
        "",
        "| largest and mean ratio |" + "".join(f" `{name}` |" for name in names),
        "|---" * (1 + len(names)) + "|",
    ]
    for kind in kinds:
        cells = []
        for name in names:
            own = chosen(name, kind)
            mean = float(np.mean([row.mean for row in own])) if own else float("nan")
            cells.append(f"{max(row.largest for row in own):.2f}, {mean:.2f} ({len(own)})" if own else "")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def measure(name: str, problem: HarmProblem, steps: int = STEPS, numbers: int = NUMBERS) -> HarmRow | None:
    """Train with an estimator and measure its variance along the run; None if it does not support the problem."""
    try:
        estimator = estimators.make(name, samples=problem.samples)
        estimator.check_family(_distribution(problem)(logits=np.zeros((1, *_event(problem)))))
    except (TypeError, ValueError):
        return None
    rng = np.random.default_rng(problem.seed)
    constants, model = KINDS[problem.kind].make(rng, problem)
    parameters = {"bias": problem.start + problem.spread * rng.normal(size=_event(problem)), "model": model}
    if KINDS[problem.kind].encoder:
        parameters["weight"] = 0.3 * rng.normal(size=(constants["images"].shape[1], problem.variables))
    arrays = jax.tree.map(partial(jnp.asarray, dtype=jnp.float32), (constants, parameters))
    checkpoints = tuple(sorted({min(steps - 1, step * steps // STEPS) for step in CHECKPOINTS}))
    run = _program(estimator, problem.shape, checkpoints, numbers)
    factors = jnp.float32([problem.scale, problem.later, problem.outlier, problem.learning_rate])
    ratios, errors = run(*arrays, factors, jnp.int32(steps), jax.random.key(problem.seed))
    return HarmRow(problem.name, name, checkpoints, tuple(map(float, ratios)), tuple(map(float, errors)))


def _event(problem: HarmProblem) -> tuple[int, ...]:
    return (problem.variables, problem.categories) if problem.categories else (problem.variables,)


def _distribution(problem: HarmProblem) -> Any:
    return Categorical if problem.categories else Bernoulli


@cache
def _program(estimator: Estimator, problem: HarmProblem, checkpoints: tuple[int, ...], numbers: int) -> Any:
    """Return the compiled run, which problems of the same shape share."""
    kind, expectation, rloo = KINDS[problem.kind], Expectation(estimator), Expectation(estimators.RLOO(problem.samples))
    event, batch = _event(problem), problem.batch
    # Adam without its rate, which is an argument.
    optimizer = optax.scale_by_adam(eps=1e-30)
    draws = max(20, min(2000, numbers // (batch * int(np.prod(event)) * problem.samples)))

    def distribution(parameters: Any, data: Any) -> Any:
        logits = jnp.broadcast_to(parameters["bias"], (batch, *event))
        return _distribution(problem)(logits=logits + data @ parameters["weight"] if kind.encoder else logits)

    def function(constants: Any, model: Any, data: Any, factor: Any) -> Any:
        return lambda x: factor * kind.f(constants, model, jnp.reshape(x, (*x.shape[:2], -1)), data)

    @jax.jit
    def run(constants: Any, parameters: Any, factors: Any, steps: Any, key: Any) -> Any:
        scale, later, outlier, rate = factors

        def factor_at(step: Any) -> Any:
            return scale * jnp.where(step >= steps // 2, later, 1) * jnp.where(step == steps // 3, outlier, 1)

        def train(step: Any, carry: Any) -> Any:
            parameters, moments, state = carry
            data_key, draw_key = jax.random.split(jax.random.fold_in(key, step))
            data = kind.data(constants, data_key, batch)

            def loss(parameters: Any, learned: Any) -> Any:
                f = function(constants, parameters["model"], data, factor_at(step))
                return jnp.mean(expectation(f, distribution(parameters, data), learned, draw_key))

            gradient, of_learned = jax.grad(loss, argnums=(0, 1))(parameters, state.learned)
            updates, moments = optimizer.update(gradient, moments)
            parameters = jax.tree.map(lambda leaf, update: leaf - rate * update, parameters, updates)
            return parameters, moments, expectation.update(of_learned, state)

        def variance(step: Any, parameters: Any, state: Any) -> Any:
            data_key, draw_key = jax.random.split(jax.random.fold_in(key, -1 - step))
            data = kind.data(constants, data_key, batch)
            f = function(constants, parameters["model"], data, factor_at(step))
            q = distribution(parameters, data)

            def both(key: Any) -> Any:
                own = expectation.estimate(f, q, state.learned, key).gradient
                # Divided by the scale, so that the squares are in the range of the numbers.
                return own / scale, rloo.estimate(f, q, rloo.init(q).learned, key).gradient / scale

            drawn = jax.lax.map(both, jax.random.split(draw_key, draws), batch_size=min(draws, 100))
            own, base = (jnp.sum(jnp.square(g - g.mean(0)).reshape(draws, -1), axis=1) for g in drawn)
            ratio = own.sum() / base.sum()
            return ratio, jnp.sqrt(jnp.sum(jnp.square(own - ratio * base))) / base.sum()

        def until_checkpoint(carry: Any, checkpoint: Any) -> Any:
            first, *rest = carry
            rest = jax.lax.fori_loop(first, checkpoint, train, tuple(rest))
            return (checkpoint, *rest), variance(checkpoint, rest[0], rest[2])

        state = expectation.init(distribution(parameters, kind.data(constants, key, batch)))
        start = (jnp.int32(0), parameters, optimizer.init(parameters), state)
        return jax.lax.scan(until_checkpoint, start, jnp.int32(checkpoints))[1]

    return run
