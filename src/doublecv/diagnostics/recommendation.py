"""Recommend an estimator and K: a pilot run that finds the least variance per second on the user's own problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter

from doublecv.diagnostics.comparison import Comparison, Row, measure_row, notes, with_times
from doublecv.diagnostics.entrants import AnyEstimator, Entrant, UnknownName, by_name, name_of
from doublecv.diagnostics.problem import Problem
from doublecv.estimators import Estimator

CANDIDATES = ("rloo", "arms", "quadratic-double-cv")
"""The estimators of the pilot run, simple ones first. Among equals the earlier one is recommended.

Double CV is the quadratic form with all but one coefficient fixed, so it takes part only on request.
"""

SAMPLES = (4, 16, 8, 64, 2, 32)
"""The numbers of samples, in the order in which they are tried while the budget lasts."""

LARGEST_WITH_PAIRS = 16
"""The largest K for estimators that use the gradient of f: they compare every sample with every other."""

EQUAL = 1.1
"""Two costs whose ratio is below this are equal: the time of a short run is not known better."""

ENOUGH_GRADIENTS, FEWEST_DRAWS, MOST_DRAWS = 2000, 20, 400
"""A variance is measured from so many gradients of single batch elements, an error of about 5 percent."""

SHARE_OF_TIMING = 0.25
"""The share of the budget that is kept for the timing, in which all candidates take turns."""

MINIMUM = 3
"""The number of candidates that are measured whatever the budget is."""

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
    has_gradient: bool,
    budget: float,
    estimators: Sequence[AnyEstimator | str] = CANDIDATES,
    samples: Sequence[int] = SAMPLES,
) -> Recommendation:
    """Measure candidates until the budget is used, then recommend one.

    Args:
        problem: f and q in one framework.
        has_gradient: whether f has a gradient in x; estimators that need one are left out otherwise.
        budget: the seconds that the pilot run may take. Three candidates are measured in any case.
        estimators: names of the candidates.
        samples: the numbers of samples, in the order in which they are tried.
    """
    if not budget > 0:
        raise ValueError(f"budget must be a positive number of seconds, got {budget!r}")
    start, limit = perf_counter(), (1 - SHARE_OF_TIMING) * budget
    entrants = candidates(problem, has_gradient, estimators, samples)
    draws = max(FEWEST_DRAWS, min(MOST_DRAWS, ENOUGH_GRADIENTS // max(1, prod(problem.q.batch_shape))))
    rows: list[Row] = []
    of_last = 0.0
    for entrant in entrants:
        elapsed = perf_counter() - start
        if len(rows) >= MINIMUM and elapsed + of_last > limit:
            break
        rows.append(measure_row(problem, entrant, problem.prepare(entrant.estimator, draws, TRAINING_STEPS), draws))
        of_last = perf_counter() - start - elapsed
    not_tried = [f"{name} with K = {estimator.samples}" for name, estimator in entrants[len(rows) :]]
    timed = with_times(problem, rows, ROUNDS, SHARE_OF_TIMING * budget)
    below = notes(problem, timed, [])
    if not_tried:
        below = (*below, f"not measured within {budget:g} seconds: {', '.join(not_tried)}.")
    return choose(timed, below)


def candidates(
    problem: Problem, has_gradient: bool, estimators: Sequence[AnyEstimator | str], samples: Sequence[int]
) -> list[Entrant]:
    """Return the candidates that exist for this problem, in the order in which they are measured."""
    entrants = []
    for count in samples:
        for name in estimators:
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
            uses_gradient = estimator.needs.gradient or estimator.needs.mean or estimator.needs.relaxed_points > 0
            if uses_gradient and (not has_gradient or count > LARGEST_WITH_PAIRS):
                continue
            entrants.append(Entrant(name_of(estimator), estimator))
    if not entrants:
        raise ValueError("none of the estimators supports this f and q with these numbers of samples")
    return list(dict.fromkeys(entrants))


def choose(rows: Sequence[Row], below: tuple[str, ...] = ()) -> Recommendation:
    """Return the recommendation for timed rows: the least variance per second, or something simpler that is as good."""
    ordered = sorted(rows, key=lambda row: row.variance_times_seconds)
    least = ordered[0].variance_times_seconds
    equal = [row for row in ordered if row.variance_times_seconds <= EQUAL * least]
    best = min(equal, key=lambda row: (_complexity(row), row.samples))
    others = [row for row in ordered if row.name != best.name]
    sentence = f"Take {best.name} with K = {best.samples}: "
    if best.variance_times_seconds > least:
        sentence += f"within {EQUAL - 1:.0%} of the least variance per second"
    else:
        sentence += "it has the least variance per second"
    sentence += " of all that were measured on this f, q and machine"
    if others:
        ratio = others[0].variance_times_seconds / best.variance_times_seconds if best.variance_times_seconds else 1.0
        sentence += (
            f"; the best of the other estimators, {others[0].name} with K = {others[0].samples}, needs {ratio:.2f} "
            f"times its time for the same accuracy"
        )
    assert isinstance(best.estimator, Estimator)
    return Recommendation(best.estimator, Comparison(tuple(ordered), below), f"{sentence}.")


def _complexity(row: Row) -> int:
    """Return the place of the estimator in the order from simple to complex."""
    return CANDIDATES.index(row.name) if row.name in CANDIDATES else len(CANDIDATES)
