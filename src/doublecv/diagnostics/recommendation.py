"""Recommend an estimator and K: a pilot run that finds the least variance per second on the user's own problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import hypot, prod
from time import perf_counter
from typing import NamedTuple

from doublecv.biased import BiasedEstimator
from doublecv.diagnostics.comparison import Comparison, Row, measured_row, notes
from doublecv.diagnostics.entrants import AnyEstimator, Entrant, UnknownName, by_name, name_of
from doublecv.diagnostics.meter import merge
from doublecv.diagnostics.problem import Problem
from doublecv.diagnostics.timing import median_times, time_compiled
from doublecv.estimators import Estimator

CANDIDATES = ("rloo", "quadratic-double-cv", "arms", "double-cv")
"""The estimators of the pilot run, in the order in which they are measured: the first ones differ most."""

SIMPLE_FIRST = ("rloo", "arms", "double-cv", "quadratic-double-cv")
"""The same from simple to complex. Among estimators of the same cost, K and variance the simplest is recommended."""

SAMPLES = (4, 16, 64, 8, 32, 2)
"""The numbers of samples, in the order in which they are tried while the budget lasts: two of them with all estimators,
then the next two, so that a small and a large K are compared early."""

EQUAL = 1.25
"""Two costs whose ratio is below this are equal: the time of a short run is not known much better, and the cost hardly
changes with K near its least value, while the memory of a step grows with K."""

ENOUGH_GRADIENTS, DRAWS, MOST_DRAWS = 2000, 20, 400
"""A variance is measured from so many gradients of single batch elements, an error of about 5 percent, `DRAWS` draws at
a time."""

SHARE_OF_CANDIDATE = 0.1
"""The share of the budget after which no further draws of one candidate are begun."""

TRAINING_STEPS = 100
ROUNDS = 15


@dataclass(frozen=True)
class Recommendation:
    """Hold the result of a pilot run; printed, it is a table and a sentence.

    Attributes:
        estimator: the recommended estimator, ready for `Expectation`.
        comparison: all measurements, least variance per second first.
        sentence: what to take, and how much better it is than others.
    """

    estimator: Estimator
    comparison: Comparison
    sentence: str

    def __str__(self) -> str:
        return f"{self.comparison}\n{self.sentence}"


def recommend(
    problem: Problem,
    has_gradient: Callable[[], bool],
    budget: float,
    estimators: Sequence[AnyEstimator | str] | AnyEstimator | str = CANDIDATES,
    samples: int | Sequence[int] = SAMPLES,
) -> Recommendation:
    """Measure candidates until the budget is used, then recommend one.

    A candidate is begun if it can be expected to be ready within the budget, going by the candidates before it, and is
    given up if the first of its training steps show that it would not be: the time of some estimators grows faster than
    their evaluations of f. The first candidate is measured in any case. The coefficients of a candidate are learned
    beforehand, because a run has learned them after a while, and its time is that of a complete training step, because
    a run makes many.

    Args:
        problem: f and q in one framework.
        has_gradient: returns whether f has a gradient in x; estimators that need one are left out otherwise.
        budget: the seconds that the pilot run may take.
        estimators: names of the candidates.
        samples: one K or several, in the order in which they are tried, two at a time.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0:
        raise ValueError(f"budget must be a positive number of seconds, got {budget!r}")
    end = perf_counter() + budget
    entrants = candidates(problem, has_gradient(), estimators, samples)
    pilot, not_tried = _Pilot(problem, budget, end), []
    for entrant in entrants:
        if not pilot.measure(entrant):
            not_tried.append(f"{entrant.name} with K = {entrant.estimator.samples}")
    below = notes(problem, pilot.rows, [])
    if not_tried:
        below = (*below, f"not measured within {budget:g} seconds: {', '.join(not_tried)}.")
    return choose(pilot.timed_rows(), below, complete=len(not_tried) < len(pilot.rows))


class _Cost(NamedTuple):
    """Hold the time of a candidate.

    Attributes:
        fixed: the seconds of compilation.
        work: the seconds of all steps and draws.
        evaluations: the number of points at which one estimate evaluates f.
    """

    fixed: float
    work: float
    evaluations: int


class _Pilot:
    """Measure candidates one after another, with an eye on the clock."""

    def __init__(self, problem: Problem, budget: float, end: float) -> None:
        self.rows: list[Row] = []
        self._problem, self._budget, self._end = problem, budget, end
        self._steps: list[Callable[[], object]] = []
        self._costs: dict[str, _Cost] = {}

    def measure(self, entrant: Entrant) -> bool:
        """Learn the coefficients of a candidate and measure its variance and time; return whether there was time."""
        problem, estimator, begin = self._problem, entrant.estimator, perf_counter()
        if not self._has_time(self._expected(entrant)):
            return False
        step = problem.step(estimator)
        seconds = time_compiled(step)
        # The state and the first draws take about a step each, and a program of each is compiled as the step's was.
        compiling = perf_counter() - begin - 2 * seconds
        if not self._has_time((self._draws() + DRAWS) * seconds + 2 * compiling):
            return False
        prepared = problem.prepare(estimator, self._draws(), TRAINING_STEPS)
        draw = problem.measure(estimator, prepared.learned)
        meters = [draw(DRAWS, 0)]
        stop = begin + SHARE_OF_CANDIDATE * self._budget
        while DRAWS * len(meters) < self._draws() and perf_counter() < min(stop, self._end):
            meters.append(draw(DRAWS, len(meters)))
        self.rows.append(replace(measured_row(entrant, prepared, reduce(merge, meters)), seconds=seconds))
        self._steps.append(step)
        taken, work = perf_counter() - begin, (self._draws() + DRAWS * len(meters)) * seconds
        cost = _Cost(max(0.0, taken - work), min(taken, work), estimator.evaluations)
        self._costs[entrant.name] = max(self._costs.get(entrant.name, cost), cost, key=lambda each: each.evaluations)
        return True

    def _expected(self, entrant: Entrant) -> float:
        """Return the time that a candidate can be expected to take: that of the same estimator with another K, if any.

        Compilation takes about the same for every K; the rest grows with the evaluations of f.
        """
        known = self._costs.get(entrant.name)
        costs = self._costs.values() if known is None else [known]
        evaluations = entrant.estimator.evaluations
        return max((cost.fixed + cost.work * max(1, evaluations / cost.evaluations) for cost in costs), default=0.0)

    def _has_time(self, seconds: float) -> bool:
        """Return whether so much work and a round of timing end in time; the first candidate is always measured."""
        return not self.rows or perf_counter() + seconds + sum(row.seconds for row in self.rows) < self._end

    def timed_rows(self) -> list[Row]:
        """Return the rows with the times of rounds in which all candidates take turns, if there is time for one."""
        left, expected = self._end - perf_counter(), [row.seconds for row in self.rows]
        if left < sum(expected):
            return self.rows
        seconds = median_times(self._steps, ROUNDS, left, expected)
        return [replace(row, seconds=time) for row, time in zip(self.rows, seconds, strict=True)]

    def _draws(self) -> int:
        return max(DRAWS, min(MOST_DRAWS, ENOUGH_GRADIENTS // max(1, prod(self._problem.q.batch_shape))))


def candidates(
    problem: Problem,
    has_gradient: bool,
    estimators: Sequence[AnyEstimator | str] | AnyEstimator | str,
    samples: int | Sequence[int],
) -> list[Entrant]:
    """Return the candidates that exist for this problem, in the order in which they are measured."""
    entrants = []
    names = [estimators] if isinstance(estimators, Estimator | BiasedEstimator | str) else list(estimators)
    counts = [samples] if isinstance(samples, int) else list(samples)
    pairs = [counts[start : start + 2] for start in range(0, len(counts), 2)]
    for name, count in ((name, count) for pair in pairs for name in names for count in pair):
        try:
            estimator = by_name(name, count) if isinstance(name, str) else name
            problem.check_entrant(estimator)
        except UnknownName:
            raise
        except (TypeError, ValueError):
            # Not every estimator exists for every K and family.
            continue
        if not isinstance(estimator, Estimator):
            raise ValueError(f"estimators must be unbiased for a recommendation, got {name!r}; take compare")
        if _uses_gradient(estimator) and not has_gradient:
            continue
        entrants.append(Entrant(name_of(estimator), estimator))
    if not entrants:
        raise ValueError("none of the estimators supports this f and q with these numbers of samples")
    return list(dict.fromkeys(entrants))


def choose(rows: Sequence[Row], below: tuple[str, ...] = (), complete: bool = True) -> Recommendation:
    """Return the recommendation for timed rows: the least variance per second with as few evaluations as that takes.

    Rows whose cost is within `EQUAL` of the least are equally good. Among them the fewest evaluations of f decide, then
    whether the estimator works without the gradient of f in x, then the least variance. Of variances that cannot be
    told apart the simplest estimator's is taken.

    Args:
        rows: the rows.
        below: sentences below the table.
        complete: whether most candidates were measured; otherwise the sentence says that they were not.
    """
    ordered = sorted(rows, key=lambda row: row.variance_times_seconds)
    least = ordered[0].variance_times_seconds
    equal = [row for row in ordered if row.variance_times_seconds <= EQUAL * least]
    first, *group = sorted(equal, key=lambda row: (_demands(row), row.variance))
    group = [row for row in group if _demands(row) == _demands(first) and not _differ(row, first)]
    best = min([first, *group], key=_complexity)
    others = [row for row in ordered if row.name != best.name]
    place = f"is within {EQUAL - 1:.0%} of" if best.variance_times_seconds > least else "has"
    sentence = (
        f"Take {best.name} with K = {best.samples}: with {best.evaluations} evaluations of f per step it {place} the "
        f"least variance per second of all that were measured on this f, q and machine"
    )
    if others:
        ratio = others[0].variance_times_seconds / best.variance_times_seconds if best.variance_times_seconds else 1.0
        sentence += (
            f"; the best of the other estimators, {others[0].name} with K = {others[0].samples}, needs {ratio:.2f} "
            f"times its time for the same accuracy"
        )
    if not complete:
        sentence += "; most candidates were not measured, so a larger budget may find a better one"
    assert isinstance(best.estimator, Estimator)
    return Recommendation(best.estimator, Comparison(tuple(ordered), below), f"{sentence}.")


def _demands(row: Row) -> tuple[int, bool]:
    """Return the evaluations of f, and whether its gradient in x is needed."""
    assert isinstance(row.estimator, Estimator)
    return row.evaluations, _uses_gradient(row.estimator)


def _uses_gradient(estimator: Estimator) -> bool:
    return estimator.needs.gradient or estimator.needs.mean or estimator.needs.relaxed_points > 0


def _differ(row: Row, other: Row) -> bool:
    """Return whether two variances differ by more than twice the standard error of their difference."""
    return abs(row.variance - other.variance) > 2 * hypot(row.standard_error, other.standard_error)


def _complexity(row: Row) -> int:
    """Return the place of the estimator in the order from simple to complex."""
    return SIMPLE_FIRST.index(row.name) if row.name in SIMPLE_FIRST else len(SIMPLE_FIRST)
