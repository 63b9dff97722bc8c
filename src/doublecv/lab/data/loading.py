"""From the name of a set to its images."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from doublecv.lab.data.dataset import Dataset
from doublecv.lab.data.digits import load_digits
from doublecv.lab.errors import InputError

NAMES = ("digits", "mnist", "fashion-mnist", "omniglot")


def load(name: str, directory: Path | None = None) -> Dataset:
    """The set of that name, from `directory` or wherever else it is found, otherwise from its public home."""
    if name not in NAMES:
        close = get_close_matches(str(name), NAMES, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"the sets are {', '.join(NAMES)}"
        raise InputError(f"unknown data set {name!r}; {remedy}")
    if name == "digits":
        return load_digits()
    raise InputError(f"the data set {name!r} cannot be read yet")
