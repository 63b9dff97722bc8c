"""One table in every format, and hostile text in each of them."""

import csv
import io

import pytest
from rich.console import Console

from doublecv.lab.common.tables import (
    MINUS,
    Column,
    Entry,
    Table,
    escape_latex,
    escape_markdown,
    number,
    significant,
    words,
)

TABLE = Table(
    "a-name",
    "A title",
    "A caption.",
    (Column("estimator", numeric=False), Column("ELBO", key="elbo", error="elbo_error"), Column("ms")),
    (
        (words("RLOO", "rloo"), number(-1234.5, error=0.25), number(1.0, 1)),
        (words("Double CV", "double-cv"), Entry(), number(2.0, 1)),
    ),
)


def test_a_table_of_mappings():
    """A column is numeric if none of its values is a word."""
    column = Column("b", "key")
    rows = [{"a": words("x"), column: number(None)}, {"a": words(""), column: number(1)}]
    table = Table.of("name", "T", "C", rows)
    assert [(column.name, column.numeric) for column in table.columns] == [("a", False), ("key", True)]
    assert [[entry.value for entry in row] for row in table.rows] == [["x", None], ["", 1]]
    assert Table.of("name", "T", "C", []).rows == ()


def hostile(text):
    return Table("name", text, text, (Column(text, numeric=False),), ((words(text),),))


def test_csv_has_values_and_errors():
    assert list(csv.reader(io.StringIO(TABLE.to_csv()))) == [
        ["estimator", "elbo", "elbo_error", "ms"],
        ["rloo", "-1234.5", "0.25", "1.0"],
        ["double-cv", "", "", "2.0"],
    ]


def test_latex_has_rules_and_mathematics():
    text = TABLE.to_latex()
    assert r"\begin{tabular}{lrr}" in text
    assert r"RLOO & $-1{,}234.50\pm 0.25$ & $1.0$ \\" in text
    assert r"Double CV &  & $2.0$ \\" in text


def test_the_terminal_shows_text_as_it_is():
    console = Console(file=io.StringIO(), width=80)
    console.print(hostile("[red]a[/b]"))
    console.print(TABLE)
    assert console.file.getvalue().count("[red]a[/b]") == 4
    assert "-1,234.50 ± 0.25" in console.file.getvalue()


@pytest.mark.parametrize("text", ["=cmd|'/C calc'!A0", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_csv_text_is_no_formula(text):
    (_, (value,)) = csv.reader(io.StringIO(hostile(text).to_csv()))
    assert not value.lstrip().startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize(
    "text", [r"\input{/etc/passwd}", r"\write18{rm}", "a^^5cinput b", "$x$", "50%\n\\end", "#1~&_"]
)
def test_latex_text_is_no_command(text):
    escaped = escape_latex(text)
    left = escaped
    for known in ("textbackslash", "textasciitilde", "textasciicircum", "textbar", "textless", "textgreater"):
        left = left.replace(f"\\{known}{{}}", "")
    for character in "&%$#_{}":
        left = left.replace(f"\\{character}", "")
    assert not set(left) & set("\\&%$#_{}~^\n\r")


@pytest.mark.parametrize("text", ["<script>", "[a](javascript:b)", "![a](http://b)", "a|b", "`c`", "**d**", "x\n\n# y"])
def test_markdown_text_is_no_markup(text):
    from markdown_it import MarkdownIt

    (paragraph,) = MarkdownIt("gfm-like", {"linkify": False}).enable("table").parse(escape_markdown(text))[1:2]
    assert {child.type for child in paragraph.children} <= {"text", "text_special"}
    assert "".join(child.content for child in paragraph.children) == "".join(c if c != "\n" else " " for c in text)
    cell = hostile(text).to_markdown().splitlines()[-1]
    assert cell.replace("\\|", "").count("|") == 2


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (number(None), ""),
        (number(float("nan")), ""),
        (number(-0.5, 1, signed=True), "-0.5"),
        (number(2.0, 0), "2"),
        (significant(1.23456e-7, error=1e-9), "1.23e-07 ± 1.0e-09"),
        (significant(12.3456), "12.3"),
    ],
)
def test_numbers_as_text(entry, text):
    assert entry.text.replace(MINUS, "-") == text
