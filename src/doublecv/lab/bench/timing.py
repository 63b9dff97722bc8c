"""Measure times that can be compared on a busy machine: interleaved calls, medians over rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter

WARM_UP = 3
"""The number of calls before the first that is timed."""


@dataclass(frozen=True)
class Timing:
    """Hold the milliseconds per step of every round."""

    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return median(self.milliseconds)

    def relative_to(self, other: Timing) -> float:
        """Return the median over the rounds of the time relative to that of `other` in the same round."""
        return median(mine / theirs for mine, theirs in zip(self.milliseconds, other.milliseconds, strict=True))


def time_interleaved(
    calls: Mapping[str, Callable[[], None]], rounds: int, repeats: int, steps_per_call: int = 1
) -> dict[str, Timing]:
    """Return the time per step of each call; of the `repeats` calls in a round the fastest counts.

    Interleaving spreads the load of other processes evenly over the calls. The order within a turn is random, because a
    call is slower if the previous one has emptied the caches.
    """
    order, shuffle = list(calls.items()), Random(0).shuffle
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    per_round: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        per_repeat: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            shuffle(order)
            for name, call in order:
                start = perf_counter()
                call()
                per_repeat[name].append(1000 * (perf_counter() - start) / steps_per_call)
        for name, times in per_repeat.items():
            per_round[name].append(min(times))
    return {name: Timing(tuple(times)) for name, times in per_round.items()}
