"""The tables as Markdown, to go into documents."""

from __future__ import annotations

from collections.abc import Sequence

from doublecv.lab.report.content import Content
from doublecv.lab.report.table import Table


def document(content: Content, tables: Sequence[Table]) -> str:
    """All tables below the command that made them."""
    return "\n".join([f"```\n{content.sweep.command}\n```\n", *map(_table, tables)])


def _table(table: Table) -> str:
    lines = [
        _row([column.heading for column in table.columns]),
        _row(["---:" if column.numeric else "---" for column in table.columns]),
        *(_row([entry.text for entry in row]) for row in table.rows),
    ]
    return f"### {table.title}\n\n{table.caption}\n\n" + "\n".join(lines) + "\n"


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
