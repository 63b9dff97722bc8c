"""What the command line says in one line and without a traceback."""

from __future__ import annotations


class InputError(ValueError):
    """A setting that cannot work; the message names it, what was given, and the remedy."""
