"""Means, standard errors and differences, against numbers that were computed by hand."""

from math import sqrt

import pytest

from doublecv.lab.report.statistics import Estimate, difference_in_plus_minus, estimate


def test_mean_and_standard_error():
    """Mean 7/3; squared deviations 16/9, 1/9, 25/9; variance 7/3; standard error sqrt(7/9)."""
    found = estimate([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3)
    assert found.plus_minus == pytest.approx(sqrt(7) / 3)


def test_one_seed_has_no_standard_error():
    assert estimate([-3.0]) == Estimate(-3.0, None)


def test_difference_in_combined_standard_errors():
    """(5 - -5) / sqrt(3^2 + 4^2) = 2."""
    assert difference_in_plus_minus(Estimate(5.0, 3.0), Estimate(-5.0, 4.0)) == pytest.approx(2.0)
    assert difference_in_plus_minus(Estimate(-5.0, 4.0), Estimate(5.0, 3.0)) == pytest.approx(-2.0)


@pytest.mark.parametrize(("one", "other"), [(None, 1.0), (1.0, None), (0.0, 0.0)])
def test_no_difference_without_standard_errors(one, other):
    assert difference_in_plus_minus(Estimate(1.0, one), Estimate(2.0, other)) is None
