"""Ctrl-C as a request: the chunk that is running ends, and then the run saves and stops."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Whether it was asked for."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """Whether it was asked for."""
        return self.requested


@contextmanager
def interruption() -> Iterator[Interruption]:
    """The first SIGINT or SIGTERM is a request; the second Ctrl-C interrupts at once, as always."""
    asked = Interruption()

    def request(number: int, frame: FrameType | None) -> None:
        if asked.requested:
            raise KeyboardInterrupt
        asked.requested = True

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
