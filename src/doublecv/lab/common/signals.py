"""Interruption on request: the first Ctrl-C lets the running chunk end, so that the run saves and stops."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM came; a second one raises `KeyboardInterrupt`."""
    received: list[int] = []

    def request(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
