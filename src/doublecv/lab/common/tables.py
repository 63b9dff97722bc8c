r"""One table model, rendered as Markdown, LaTeX, CSV, a terminal table, and by the report's page as HTML.

All text is treated as foreign: each format escapes what it would otherwise interpret. An entry holds the text that
people read, and the value that files and sorting use:

>>> table = Table.of("speed", "Speed", "Medians.", [{"estimator": words("rloo"), "ms": number(3.14159)}])
>>> table.to_csv()
'estimator,ms\nrloo,3.14159\n'
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MINUS, PLUS_MINUS = "\N{MINUS SIGN}", "\N{PLUS-MINUS SIGN}"

_LATEX = {character: rf"\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    MINUS: "$-$",
    PLUS_MINUS: r"$\pm$",
}
_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~&$]|:(?=//)|(?<=www)\.)")
_FORMULA = ("=", "+", "-", "@", MINUS)
"""A spreadsheet reads text that begins with one of these as a formula."""


class Column(NamedTuple):
    """A column: its heading, its name in CSV files and that of its errors, and whether it is aligned as numbers.

    An empty name is made from the heading; without a name for the errors none are written.
    """

    heading: str
    key: str = ""
    error: str = ""
    numeric: bool = True

    @property
    def name(self) -> str:
        """The name in files."""
        return self.key or re.sub(r"\W+", "_", self.heading)


class Entry(NamedTuple):
    """An entry of a table: what people read, what files hold and tables are sorted by, and the error of this value.

    `mark` is a word that the page colours the entry by.
    """

    text: str = ""
    value: float | str | None = None
    error: float | None = None
    mark: str = ""


Row: TypeAlias = Mapping[Any, Entry]
"""Entries by column; a heading stands for a column that has only this."""


@dataclass(frozen=True)
class Table:
    """A table; `name` is a word for files and links, and `caption` says what was run and how to read it.

    The first `row_headings` columns say what a row is.
    """

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    row_headings: int = 1

    @classmethod
    def of(cls, name: str, title: str, caption: str, rows: Iterable[Row], row_headings: int = 1) -> Table:
        """Make a table from rows with the same columns; a column is numeric if none of its values is a word."""
        found = list(rows)
        columns = []
        for key in found[0] if found else ():
            column = Column(key) if isinstance(key, str) else key
            columns.append(column._replace(numeric=not any(isinstance(row[key].value, str) for row in found)))
        return cls(name, title, caption, tuple(columns), tuple(tuple(row.values()) for row in found), row_headings)

    def to_markdown(self) -> str:
        """Return the table below its title and caption."""
        lines = [
            [escape_markdown(column.heading) for column in self.columns],
            ["---:" if column.numeric else "---" for column in self.columns],
            *([escape_markdown(entry.text) for entry in row] for row in self.rows),
        ]
        body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return f"### {escape_markdown(self.title)}\n\n{escape_markdown(self.caption)}\n\n{body}"

    def to_latex(self) -> str:
        """Return a table environment, which needs the package booktabs."""
        layout = "".join("r" if column.numeric else "l" for column in self.columns)
        headings = [escape_latex(column.heading) for column in self.columns]
        lines = [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", " & ".join(headings) + r" \\", r"\midrule"]
        lines += [" & ".join(map(_latex_entry, row, self.columns)) + r" \\" for row in self.rows]
        caption = f"{escape_latex(self.title)}. {escape_latex(self.caption)}"
        label = re.sub(r"[^A-Za-z0-9-]", "-", self.name)
        lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", rf"\label{{tab:{label}}}"]
        return "\n".join([r"\begin{table*}[t]", r"\footnotesize", r"\centering", *lines, r"\end{table*}", ""])

    def to_csv(self) -> str:
        """Return the values and errors, empty where there is none; text is never a spreadsheet's formula."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_csv_value(name) for column in self.columns for name in (column.name, column.error) if name)
        for row in self.rows:
            pairs = zip(self.columns, row, strict=True)
            written = [one for column, entry in pairs for one in (entry.value, entry.error)[: 1 + bool(column.error)]]
            writer.writerow(map(_csv_value, written))
        return file.getvalue()

    def __rich__(self) -> RichTable:
        """Return the table as `rich` prints it to a terminal; a heading breaks at its newlines."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(title=Text(self.title), caption=Text(self.caption), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in self.columns:
            justify: Literal["right", "left"] = "right" if column.numeric else "left"
            shown.add_column(Text(column.heading), justify=justify, no_wrap=column.numeric, overflow="fold")
        for row in self.rows:
            shown.add_row(*(Text(entry.text.replace(MINUS, "-")) for entry in row))
        return shown


def words(text: str, value: str | None = None, mark: str = "") -> Entry:
    """Return an entry of text; its value is the text unless another is given."""
    return Entry(text, text if value is None else value, mark=mark)


def number(value: float | None, decimals: int = 2, signed: bool = False, error: float | None = None) -> Entry:
    """Return a number with some decimals and its error after a plus-minus sign; empty for None, NaN and infinity."""
    sign = "+" if signed else ""
    return _entry(value, error, f"{sign},.{decimals}f", f",.{decimals}f")


def significant(value: float | None, digits: int = 3, error: float | None = None) -> Entry:
    """Return a number with some significant digits, in powers of ten where it is small or large; empty for None."""
    return _entry(value, error, _significant(value, digits), _significant(error, 2))


def _entry(value: float | None, error: float | None, layout: str, error_layout: str) -> Entry:
    if value is None or not isfinite(value):
        return Entry()
    text = f"{value:{layout}}" if error is None else f"{value:{layout}} {PLUS_MINUS} {error:{error_layout}}"
    return Entry(text.replace("-", MINUS), value, error)


def escape_latex(text: str) -> str:
    """Return plain text for LaTeX, in which nothing is a command."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def escape_markdown(text: str) -> str:
    """Return plain text for Markdown, in which nothing is markup."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def _significant(value: float | None, digits: int) -> str:
    plain = not value or 1e-3 <= abs(value) < 1e5
    return f".{digits}g" if plain else f".{digits - 1}e"


def _latex_entry(entry: Entry, column: Column) -> str:
    if not (column.numeric and isinstance(entry.value, int | float)):
        return escape_latex(entry.text)
    text = entry.text.replace(MINUS, "-").replace(f" {PLUS_MINUS} ", r"\pm ").replace("%", r"\%").replace(",", "{,}")
    return f"${text}$"


def _csv_value(value: float | str | None) -> float | str:
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
    return value


def one_line(text: str) -> str:
    """Return the text with every control character, line break and direction mark replaced by a space."""
    return "".join(character if character.isprintable() else " " for character in text)
