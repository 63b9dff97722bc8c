"""How programs end early: errors that are printed as one line, and interruption on request."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from types import FrameType


class InputError(ValueError):
    """Report input that cannot work; the message names it, what was given, and the remedy."""


def unknown_name(what: str, given: str, known: Iterable[str]) -> InputError:
    """Return the error for a name of some kind that does not exist, with the closest one that does as a suggestion."""
    names = list(known)
    close = get_close_matches(given, names, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}"
    return InputError(f"unknown {what} {shortened(repr(given))}; {remedy}")


def shortened(text: str, length: int = 80) -> str:
    """Return a text, cut in the middle where it is too long for a message."""
    return text if len(text) <= length else f"{text[: length // 2]}...{text[-length // 2 + 3 :]}"


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM came; a second signal raises `KeyboardInterrupt`."""
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
