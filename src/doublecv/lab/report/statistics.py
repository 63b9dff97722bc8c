"""The statistics of a report: means over seeds, differences in standard errors, and the order of the estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot, sqrt
from statistics import fmean, stdev

CLEAR = 2.0
"""Two means are clearly apart when they differ by more than so many of their combined standard errors."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error; None where there is no such thing, as for a single seed."""

    mean: float
    standard_error: float | None = None


@dataclass(frozen=True)
class OrderAgreement:
    """How far two rankings of the same estimators agree.

    Attributes:
        pairs: the number of pairs of estimators.
        agreeing: the pairs that both put into the same order.
        clear: the pairs that are clearly apart in both; None where some measured mean has no standard error.
        clear_agreeing: those of them that both put into the same order; None in the same case.
        tau: Kendall's tau.
    """

    pairs: int
    agreeing: int
    clear: int | None
    clear_agreeing: int | None
    tau: float

    @property
    def is_whole(self) -> bool:
        """Whether every pair agrees."""
        return self.agreeing == self.pairs


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of n values with the standard error s / sqrt(n), s^2 = 1/(n-1) sum_i (v_i - mean)^2."""
    return Estimate(fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None)


def difference_in_standard_errors(one: Estimate, other: Estimate) -> float | None:
    """(one - other) / sqrt(se_one^2 + se_other^2); None where a standard error is missing or both are 0."""
    if one.standard_error is None or other.standard_error is None:
        return None
    combined = hypot(one.standard_error, other.standard_error)
    return (one.mean - other.mean) / combined if combined > 0 else None


def order_agreement(measured: Mapping[str, Estimate], paper: Mapping[str, Estimate]) -> OrderAgreement | None:
    """Compare the order of the estimators that both know; None if these are fewer than two.

    Kendall's tau (Kendall, 1938) is the agreeing pairs less the disagreeing ones, over all pairs

        tau = (agreeing - disagreeing) / pairs

    where a pair that is tied in one of the two rankings is neither.
    """
    pairs = list(combinations([name for name in paper if name in measured], 2))
    if not pairs:
        return None
    signs = [_sign(measured, pair) * _sign(paper, pair) for pair in pairs]
    distances = [(_distance(measured, pair), _distance(paper, pair)) for pair in pairs]
    known = all(measured[name].standard_error is not None for pair in pairs for name in pair)
    clear = [
        sign
        for sign, distance in zip(signs, distances, strict=True)
        if all(apart is not None and abs(apart) > CLEAR for apart in distance)
    ]
    return OrderAgreement(
        pairs=len(pairs),
        agreeing=signs.count(1),
        clear=len(clear) if known else None,
        clear_agreeing=clear.count(1) if known else None,
        tau=sum(signs) / len(pairs),
    )


def _sign(ranked: Mapping[str, Estimate], pair: tuple[str, str]) -> int:
    one, other = (ranked[name].mean for name in pair)
    return (one > other) - (one < other)


def _distance(ranked: Mapping[str, Estimate], pair: tuple[str, str]) -> float | None:
    one, other = (ranked[name] for name in pair)
    return difference_in_standard_errors(one, other)
