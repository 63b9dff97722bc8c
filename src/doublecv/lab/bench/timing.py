"""Times that can be compared on a machine that is not quiet: all calls in turn, medians over rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter

WARM_UP = 3
"""Calls of each before the first that counts."""


@dataclass(frozen=True)
class Timing:
    """The milliseconds of a step in every round."""

    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return median(self.milliseconds)

    def relative_to(self, other: Timing) -> float:
        """The median over the rounds of the time relative to the other's in the same round."""
        return median(mine / theirs for mine, theirs in zip(self.milliseconds, other.milliseconds, strict=True))


def time_interleaved(
    calls: Mapping[str, Callable[[], None]], rounds: int, repeats: int, steps_a_call: int = 1
) -> dict[str, Timing]:
    """The time of a step of each call: in a round every call is made `repeats` times, in turn, and the fastest counts.

    What else the machine does then falls on all of them alike, and least on the fastest. The order is drawn anew for
    every turn, for a call is slower where the one before it has emptied the caches.
    """
    order, shuffle = list(calls.items()), Random(0).shuffle
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    of_rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        of_repeats: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            shuffle(order)
            for name, call in order:
                start = perf_counter()
                call()
                of_repeats[name].append(1000 * (perf_counter() - start) / steps_a_call)
        for name, times in of_repeats.items():
            of_rounds[name].append(min(times))
    return {name: Timing(tuple(times)) for name, times in of_rounds.items()}
