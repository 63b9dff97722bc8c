"""Compute the statistics of a report: means over seeds, differences from the paper, and the order of the estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import hypot, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

CLEAR = 2.0
"""Two numbers differ clearly if they differ by more than this multiple of their combined +-."""


class Estimate(NamedTuple):
    """A mean and its +-: the standard error for our means; the paper does not say what its +- is.

    `plus_minus` is None where there is none, as for a single seed.
    """

    mean: float
    plus_minus: float | None = None


class OrderAgreement(NamedTuple):
    """The agreement of two rankings of the same estimators: how many of the `pairs` are in the same order in both.

    `clear` counts the pairs that differ clearly in both rankings; it is None where a measured mean has no +-.
    """

    pairs: int
    agreeing: int
    clear: int | None
    clear_agreeing: int | None
    tau: float


def estimate(values: Sequence[float]) -> Estimate:
    r"""Return the mean of n values with its standard error.

    .. math:: s / \sqrt{n}, \quad s^2 = \frac{1}{n - 1} \sum_i (v_i - \bar v)^2
    """
    return Estimate(fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None)


def difference_in_plus_minus(one: Estimate, other: Estimate) -> float | None:
    r"""Return the difference of two means over their combined +-; None where one is missing or both are 0.

    .. math:: (m_1 - m_2) / \sqrt{\pm_1^2 + \pm_2^2}

    >>> difference_in_plus_minus(Estimate(5.0, 3.0), Estimate(-5.0, 4.0))
    2.0
    """
    if one.plus_minus is None or other.plus_minus is None:
        return None
    combined = hypot(one.plus_minus, other.plus_minus)
    return (one.mean - other.mean) / combined if combined > 0 else None


def order_agreement(measured: Mapping[str, Estimate], paper: Mapping[str, Estimate]) -> OrderAgreement | None:
    r"""Compare the order of the estimators that are in both; return None if these are fewer than two.

    Kendall's tau (Kendall, 1938) is

    .. math:: \tau = (\text{agreeing} - \text{disagreeing}) / \text{pairs}

    where a pair that is tied in one of the two rankings neither agrees nor disagrees.
    """
    signs, clear_signs, known = [], [], True
    for one, other in combinations([name for name in paper if name in measured], 2):
        rankings = [(ranked[one], ranked[other]) for ranked in (measured, paper)]
        signs.append(_sign(*rankings[0]) * _sign(*rankings[1]))
        known = known and None not in (measured[one].plus_minus, measured[other].plus_minus)
        if all(abs(difference_in_plus_minus(*pair) or 0.0) > CLEAR for pair in rankings):
            clear_signs.append(signs[-1])
    if not signs:
        return None
    return OrderAgreement(
        pairs=len(signs),
        agreeing=signs.count(1),
        clear=len(clear_signs) if known else None,
        clear_agreeing=clear_signs.count(1) if known else None,
        tau=sum(signs) / len(signs),
    )


def _sign(one: Estimate, other: Estimate) -> int:
    return (one.mean > other.mean) - (one.mean < other.mean)
