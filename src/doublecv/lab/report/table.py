"""A table as the report shows it, whatever it is written as: headings, rows of entries, and a caption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from doublecv.lab.report.statistics import Estimate

MINUS = "\N{MINUS SIGN}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"


class Entry(NamedTuple):
    """One entry: what is read, and what it is sorted by; both empty where there is nothing to say."""

    text: str = ""
    value: float | str = ""


class Column(NamedTuple):
    """A heading, and whether numbers are below it."""

    heading: str
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Attributes:
        name: a word for files and links.
        title: what it is.
        caption: what was run, at which scale, and how to read it.
        columns: the headings; the first `row_headings` of them are those of the rows.
        rows: the entries, one for each column.
        row_headings: how many entries at the beginning of a row say what the row is.
    """

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    row_headings: int = 1


def words(text: str) -> Entry:
    """An entry that is sorted by its own text."""
    return Entry(text, text)


def number(value: float | None, decimals: int = 2, signed: bool = False) -> Entry:
    """A number with so many decimals; empty for None."""
    return Entry() if value is None else Entry(_with_minus(f"{value:{'+' if signed else ''},.{decimals}f}"), value)


def significant(value: float | None, digits: int = 3) -> Entry:
    """A number with so many digits, in powers of ten where it is small or large; empty for None."""
    if value is None:
        return Entry()
    plain = value == 0 or 1e-3 <= abs(value) < 1e5
    return Entry(_with_minus(f"{value:.{digits}g}" if plain else f"{value:.{digits - 1}e}"), value)


def with_error(estimate: Estimate | None, decimals: int = 2) -> Entry:
    """A mean and its standard error, sorted by the mean; the mean alone where there is no standard error."""
    if estimate is None:
        return Entry()
    mean = number(estimate.mean, decimals)
    if estimate.standard_error is None:
        return mean
    return Entry(f"{mean.text} {PLUS_MINUS} {estimate.standard_error:.{decimals}f}", estimate.mean)


def _with_minus(text: str) -> str:
    return text.replace("-", MINUS)
