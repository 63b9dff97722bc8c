"""Times that can be compared on a machine that is not quiet: all calls in turn, medians over rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from statistics import median
from time import perf_counter

ROUNDS = 20
"""The number of rounds of a comparison."""

SHORTEST = 1e-3
"""The seconds that are timed at once, at least: shorter calls are repeated."""


def median_times(
    calls: Sequence[Callable[[], object]],
    rounds: int = ROUNDS,
    limit: float = inf,
    expected: Sequence[float] | None = None,
) -> list[float]:
    """Return the seconds of each call, the median over the rounds of `round_times`."""
    return [median(of_call) for of_call in round_times(calls, rounds, limit, expected)]


def round_times(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    limit: float = inf,
    expected: Sequence[float] | None = None,
) -> list[list[float]]:
    """Return the seconds of each call in each of the rounds in which all of them take turns.

    Other work on the machine then slows all of them alike. The order changes from round to round because a call is
    slower after one that has emptied the caches.

    Args:
        calls: functions without arguments that return when their work is done.
        rounds: the number of rounds.
        limit: the seconds after which no round should end; at least one round is made.
        expected: about how long each takes, once it is compiled; None to call each twice beforehand.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    start = perf_counter()
    if expected is None:
        expected = [time_compiled(call) for call in calls]
    repeats = [max(1, round(SHORTEST / max(seconds, 1e-9))) for seconds in expected]
    times: list[list[float]] = [[] for _ in calls]
    order, shuffle, length = list(range(len(calls))), Random(0).shuffle, 0.0
    for number in range(rounds):
        begin = perf_counter()
        if number and begin + length > start + limit:
            break
        shuffle(order)
        for index in order:
            times[index].append(_time(calls[index], repeats[index]))
        length = perf_counter() - begin
    return times


def time_compiled(call: Callable[[], object]) -> float:
    """Return the seconds of the second of two calls; the first one compiles it."""
    call()
    return _time(call, 1)


def _time(call: Callable[[], object], repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats
