"""Several estimators on one problem: variance with error bars, cost, time and bias, in one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

from doublecv.diagnostics.entrants import AnyEstimator, Entrant, collect
from doublecv.diagnostics.meter import Meter, SquaredBias, summarize
from doublecv.diagnostics.problem import Prepared, Problem
from doublecv.diagnostics.timing import ROUNDS, median_times
from doublecv.estimators import Estimator, Learned

TRAINING_STEPS = 300
"""The steps for which a state without best coefficients in closed form is trained before it is measured."""


@dataclass(frozen=True)
class Row:
    """Hold the measurements of one estimator.

    Attributes:
        name: the estimator's name in the registry.
        samples: K.
        estimator: the estimator.
        learned: the learned state that it was measured with.
        state: where that state comes from: "-" if there is none, "given", "best" for the best coefficients from
            separate draws, or "trained N" for a state trained for N steps on this problem.
        variance: the variance of the gradient, the mean over batch elements and coordinates.
        standard_error: the standard error of `variance`.
        evaluations: the number of points at which one estimate evaluates f.
        seconds: the time of one gradient.
        bias: the squared bias, for a biased estimator, or None.
    """

    name: str
    samples: int
    estimator: AnyEstimator
    learned: Learned
    state: str
    variance: float
    standard_error: float
    evaluations: int
    seconds: float = nan
    bias: SquaredBias | None = None

    @property
    def variance_times_evaluations(self) -> float:
        """Return the evaluations of f needed to average down to unit variance."""
        return self.variance * self.evaluations

    @property
    def variance_times_seconds(self) -> float:
        """Return the seconds needed to average down to unit variance."""
        return self.variance * self.seconds


@dataclass(frozen=True)
class Comparison:
    """Hold the rows of a comparison; printed, it is a table.

    A row is found by name, and by name and K where an estimator was measured for several: `comparison["rloo", 4]`.

    Attributes:
        rows: the rows; variances are also printed relative to the first.
        notes: sentences below the table.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __getitem__(self, key: str | tuple[str, int]) -> Row:
        name, samples = (key, None) if isinstance(key, str) else key
        found = [row for row in self.rows if row.name == name and samples in (None, row.samples)]
        if len(found) == 1:
            return found[0]
        if found:
            counts = ", ".join(str(row.samples) for row in found)
            raise KeyError(
                f"{name!r} was measured for K = {counts}; ask for one of them: [{name!r}, {found[0].samples}]"
            )
        raise KeyError(f"{key!r} is not among {[(row.name, row.samples) for row in self.rows]}")

    def __str__(self) -> str:
        with_bias = any(row.bias for row in self.rows)
        header = ["estimator", "K", "state", "variance", "+-", "relative"]
        header += ["squared bias", "+-"] if with_bias else []
        header += ["evaluations", "variance x evaluations", "time (ms)", "variance x time"]
        table = [header, *(self._cells(row, with_bias) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]) for cells in table]
        return "\n".join([*lines, *self.notes])

    def _cells(self, row: Row, with_bias: bool) -> list[str]:
        first = self.rows[0].variance
        cells = [row.name, str(row.samples), row.state, f"{row.variance:.4g}", f"{row.standard_error:.1g}"]
        cells.append(f"{row.variance / first:.3f}" if first else "-")
        if with_bias:
            cells += [f"{row.bias.squared_bias:.2g}", f"{row.bias.standard_error:.1g}"] if row.bias else ["0", "-"]
        cells += [str(row.evaluations), f"{row.variance_times_evaluations:.4g}"]
        timed = row.seconds == row.seconds
        return [*cells, *((f"{1e3 * row.seconds:.3g}", f"{row.variance_times_seconds:.3g}") if timed else ("-", "-"))]


def compare(
    problem: Problem,
    estimators: Iterable[AnyEstimator | str] | AnyEstimator | str,
    *,
    samples: int | Sequence[int] | None = None,
    draws: int = 1000,
    learned: Mapping[Any, Learned] | None = None,
    steps: int = TRAINING_STEPS,
    rounds: int = ROUNDS,
) -> Comparison:
    """Measure estimators on the same problem and the same random numbers.

    Args:
        problem: f and q in one framework.
        estimators: estimators or names; the others' variances are printed relative to the first.
        samples: one or several K, for each of which every estimator is measured; None to take estimators as they are.
        draws: the number of gradients of each.
        learned: learned states by the estimator or its name, in place of best coefficients or a short training.
        steps: the length of that training.
        rounds: the number of rounds of the timing; 0 for no timing.
    """
    if draws < 2:
        raise ValueError(f"draws must be at least 2, got {draws}")
    entrants, left_out = collect(estimators, samples)
    for entrant in entrants:
        problem.check_entrant(entrant.estimator)
    states = [_prepare(problem, entrant, learned or {}, draws, steps) for entrant in entrants]
    rows = [measure_row(problem, entrant, state, draws) for entrant, state in zip(entrants, states, strict=True)]
    if rounds:
        rows = with_times(problem, rows, rounds)
    return Comparison(tuple(rows), notes(problem, rows, left_out))


def measure_row(problem: Problem, entrant: Entrant, prepared: Prepared, draws: int) -> Row:
    """Measure the variance of one estimator, and its squared bias if it has one."""
    estimator = entrant.estimator
    if isinstance(estimator, Estimator):
        meter, bias = problem.measure(estimator, prepared.learned)(draws, 0), None
    else:
        meter, bias = problem.measure_biased(estimator, draws)
    return measured_row(entrant, prepared, meter, bias)


def measured_row(entrant: Entrant, prepared: Prepared, meter: Meter, bias: SquaredBias | None = None) -> Row:
    """Return the row of one estimator, without its time."""
    name, estimator = entrant
    variance, standard_error = summarize(meter)
    return Row(
        name,
        estimator.samples,
        estimator,
        prepared.learned,
        prepared.state,
        variance,
        standard_error,
        estimator.evaluations,
        bias=bias,
    )


def with_times(problem: Problem, rows: Sequence[Row], rounds: int) -> list[Row]:
    """Return the rows with the time of one gradient each, measured in turn."""
    seconds = median_times([problem.step(row.estimator) for row in rows], rounds)
    return [replace(row, seconds=time) for row, time in zip(rows, seconds, strict=True)]


def notes(problem: Problem, rows: Sequence[Row], left_out: Sequence[str]) -> tuple[str, ...]:
    """Return the sentences below a table."""
    states = {row.state.partition(" ")[0] for row in rows}
    sentences = []
    if "best" in states:
        sentences.append("state best: with the best coefficients, from separate draws.")
    if "trained" in states:
        sentences.append("state trained N: after N steps of training of its own state on this problem.")
    if any(row.bias for row in rows):
        against = "the exact gradient" if problem.is_enumerable() else "an average of unbiased gradients"
        sentences.append(f"squared bias: against {against}; it does not average out.")
    return (*sentences, *(f"left out: {sentence}" for sentence in left_out))


def _prepare(problem: Problem, entrant: Entrant, learned: Mapping[Any, Learned], draws: int, steps: int) -> Prepared:
    name, estimator = entrant
    for key in (estimator, name):
        if key in learned:
            return Prepared(learned[key], "given")
    return problem.prepare(estimator, draws, steps)
