"""The harm benchmark in small: learned control variates along short runs, relative to RLOO."""

import math

import pytest

from doublecv import estimators
from doublecv.jax import harm
from doublecv.jax.harm import KINDS, HarmProblem, problems
from doublecv.lab.bench.command import RECOMMENDED, harm_tables


def test_the_problems_cover_what_they_promise():
    chosen = problems()
    assert len(chosen) >= 60
    assert {problem.kind for problem in chosen} == set(KINDS)
    assert len({problem.name + str(problem.learning_rate) for problem in chosen}) == len(chosen)
    assert {1, 10, 200, 500} <= {problem.variables for problem in chosen}
    assert {2, 4, 8, 64} <= {problem.samples for problem in chosen}
    assert {1, 100} <= {problem.batch for problem in chosen}
    assert {1e-8, 1e8} <= {problem.scale for problem in chosen}
    assert set(RECOMMENDED) <= set(estimators.names())


@pytest.mark.parametrize(
    "problem",
    [
        HarmProblem("toy", 2, 3, learning_rate=0.05, spread=0.0),
        HarmProblem("network", 2, 4, 8, scale=1e-6, later=1e6, seed=1),
        HarmProblem("heavy-tailed", 2, 4, outlier=1e6, seed=2),
    ],
    ids=lambda problem: problem.name,
)
def test_the_quadratic_form_does_not_hurt(problem):
    row = harm.measure("quadratic-double-cv", problem, steps=150, numbers=16_000)
    assert row.ratios[0] == pytest.approx(1, abs=1e-5)
    assert row.worst <= 1.1
    assert row.mean < 1.02


def test_many_samples_of_few_variables_do_no_harm_in_early_steps():
    problem = HarmProblem("network", 32, 5, seed=8)
    row = harm.measure("quadratic-double-cv", problem, steps=150, numbers=100_000)
    assert row.worst <= 1.1
    assert row.mean < 0.8


def test_a_batch_lets_the_coefficients_work_at_once():
    row = harm.measure("quadratic-double-cv", HarmProblem("quadratic", 2, 5, 50, seed=3), steps=100, numbers=20_000)
    assert row.ratios[-1] < 0.7
    assert row.worst <= 1.1


def test_an_estimator_that_does_not_support_the_problem_is_left_out():
    assert harm.measure("disarm", HarmProblem("policy", 2, 2, categories=3)) is None


def test_the_table_takes_the_error_of_the_measurement_off():
    rows = [
        harm.HarmRow("a", "rloo", (0, 1, 8, 10), (1.3, math.nan, 0.5, 0.5), (0.2, 0.0, 0.0, 0.0)),
        harm.HarmRow("b", "rloo", (0,), (1.4,), (0.1,)),
    ]
    assert rows[0].worst == pytest.approx(0.9)
    # From 1.3 to 0.5 over the first eight of ten steps.
    assert rows[0].mean == pytest.approx((0.9 * 9 + 0.5 * 2) / 11)
    assert rows[1].mean == pytest.approx(1.4)
    (row,) = harm_tables(rows)[0].rows
    assert [entry.text for entry in row] == ["rloo", "2", "1.4", "1.2", "1", "1.114", "b"]
