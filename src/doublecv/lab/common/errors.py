"""Errors that the command line prints as one line, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
