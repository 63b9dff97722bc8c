"""Times that can be compared on a machine that is not quiet: all calls in turn, medians over rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from statistics import median
from time import perf_counter

ROUNDS = 20
"""The number of rounds of a comparison."""

FEWEST_ROUNDS = 3
"""The number of rounds however long they take."""

SHORTEST = 1e-3
"""The seconds that are timed at once, at least: shorter calls are repeated."""


def median_times(calls: Sequence[Callable[[], object]], rounds: int = ROUNDS, limit: float = inf) -> list[float]:
    """Return the seconds of each call, the median over the rounds of `round_times`."""
    return [median(of_call) for of_call in round_times(calls, rounds, limit)]


def round_times(calls: Sequence[Callable[[], object]], rounds: int, limit: float = inf) -> list[list[float]]:
    """Return the seconds of each call in each of the rounds in which all of them take turns.

    Other work on the machine then slows all of them alike. The order changes from round to round because a call is
    slower after one that has emptied the caches. Each is called twice beforehand, which compiles it.

    Args:
        calls: functions without arguments that return when their work is done.
        rounds: the number of rounds.
        limit: the seconds after which no further round is begun; there are at least three.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    repeats = []
    for call in calls:
        call()
        repeats.append(max(1, round(SHORTEST / max(_time(call, 1), 1e-9))))
    times: list[list[float]] = [[] for _ in calls]
    order, shuffle = list(range(len(calls))), Random(0).shuffle
    start = perf_counter()
    for number in range(rounds):
        if number >= FEWEST_ROUNDS and perf_counter() - start > limit:
            break
        shuffle(order)
        for index in order:
            times[index].append(_time(calls[index], repeats[index]))
    return times


def _time(call: Callable[[], object], repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats
