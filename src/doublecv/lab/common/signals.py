"""Interruption on request: the first Ctrl-C lets the running chunk end, so that the run saves and stops."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Flag that the first SIGINT or SIGTERM sets."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """Return whether an interruption was requested."""
        return self.requested


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Turn the first SIGINT or SIGTERM into a request; the second one raises `KeyboardInterrupt`."""
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
