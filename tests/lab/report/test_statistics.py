"""Means, standard errors, differences and orders, against numbers that were computed by hand."""

from itertools import permutations
from math import sqrt

import pytest
from scipy.stats import kendalltau

from doublecv.lab.report.statistics import Estimate, difference_in_plus_minus, estimate, order_agreement


def ranked(**means):
    return {name: Estimate(float(mean), 0.1) for name, mean in means.items()}


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


def test_order_with_one_swap():
    found = order_agreement(ranked(a=4, b=2, c=3, d=1), ranked(a=40, b=30, c=20, d=10))
    assert (found.pairs, found.agreeing) == (6, 5)
    assert found.tau == pytest.approx((5 - 1) / 6)


def test_tau_is_scipys_for_every_order():
    for order in permutations(range(4)):
        measured = dict(zip("abcd", order, strict=True))
        found = order_agreement(ranked(**measured), ranked(a=0, b=1, c=2, d=3))
        assert found.tau == pytest.approx(kendalltau(order, range(4)).statistic)
        assert (found.agreeing == found.pairs) == (order == (0, 1, 2, 3))


def test_a_tie_neither_agrees_nor_disagrees():
    found = order_agreement(ranked(a=1, b=1, c=2), ranked(a=1, b=2, c=3))
    assert (found.pairs, found.agreeing) == (3, 2)
    assert found.tau == pytest.approx(2 / 3)


def test_only_estimators_that_both_have_are_ranked():
    assert order_agreement(ranked(a=1, own=2), ranked(a=1, b=2)) is None
    assert order_agreement(ranked(a=1, own=5, b=2), ranked(a=1, b=2, c=3)).pairs == 1
