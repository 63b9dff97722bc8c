"""Means, standard errors and differences, against numbers that were computed by hand."""

from math import sqrt

import pytest

from doublecv.lab.report.collect import Records, Run
from doublecv.lab.report.statistics import Cell, CellKey, Estimate, estimate


def test_mean_and_standard_error():
    """Mean 7/3; squared deviations 16/9, 1/9, 25/9; variance 7/3; standard error sqrt(7/9)."""
    found = estimate([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3)
    assert found.plus_minus == pytest.approx(sqrt(7) / 3)


def test_one_seed_has_no_standard_error():
    assert estimate([-3.0]) == Estimate(-3.0, None)


def cell(values, paper):
    runs = [Run("run", records=Records(last={"train_elbo": value})) for value in values]
    return Cell(CellKey("bernoulli", 2, "mnist", "linear", "rloo"), 20, tuple(runs), paper)


def test_difference_in_combined_standard_errors():
    """The mean of 2 and 8 is 5 +- 3, and (5 - -5) / sqrt(3^2 + 4^2) = 2."""
    assert cell([2.0, 8.0], Estimate(-5.0, 4.0)).difference_in_plus_minus == pytest.approx(2.0)
    assert cell([-2.0, -8.0], Estimate(5.0, 4.0)).difference_in_plus_minus == pytest.approx(-2.0)


def test_a_single_seed_is_compared_by_the_papers_own():
    assert cell([5.0], Estimate(-5.0, 4.0)).difference_in_plus_minus == pytest.approx(10 / 4)


@pytest.mark.parametrize(
    ("values", "paper"),
    [([], Estimate(1.0, 1.0)), ([1.0], None), ([1.0], Estimate(2.0, None)), ([1.0], Estimate(2.0, 0.0))],
)
def test_no_difference_without_standard_errors(values, paper):
    assert cell(values, paper).difference_in_plus_minus is None
