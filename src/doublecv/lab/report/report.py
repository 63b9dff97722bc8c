"""Reports of sweeps, as a function.

from doublecv.lab.report import report

report.write(Path("results"))            # the paths of the page and of the tables
"""

from __future__ import annotations

from pathlib import Path

from doublecv.lab.common.files import write_atomically
from doublecv.lab.report import csv as report_csv
from doublecv.lab.report import latex as report_latex
from doublecv.lab.report import markdown as report_markdown
from doublecv.lab.report.content import Content, PaperNumbers, content
from doublecv.lab.report.html import page
from doublecv.lab.report.paper_numbers import paper_numbers
from doublecv.lab.report.table import Table
from doublecv.lab.report.tables import (
    elbo_table,
    order_table,
    other_table,
    times_table,
    toy_table,
    uncounted_table,
)
from doublecv.lab.report.wall_clock import wall_clock_table
from doublecv.lab.sweep import plan as sweep

FOLDER = "report"


def write(folder: Path, paper: PaperNumbers | None = None) -> list[Path]:
    """Write the report of the sweep in a folder, and tell the paths; an older report is replaced.

    Args:
        folder: a sweep, finished or not.
        paper: the numbers to compare with; without it the paper's.
    """
    found = content(sweep.load(folder), paper or paper_numbers())
    written = {
        "report.html": page(found),
        "tables.md": report_markdown.document(found, tables(found)),
        "tables.tex": report_latex.document(found),
        **report_csv.files(found),
    }
    target = folder / FOLDER
    target.mkdir(exist_ok=True)
    for name in report_csv.NAMES:
        if name not in written:
            (target / name).unlink(missing_ok=True)
    for name, text in written.items():
        write_atomically(target / name, text.encode())
    return [target / name for name in written]


def tables(found: Content) -> list[Table]:
    """All tables of results, in the order of the page."""
    several = [
        order_table(found),
        *(elbo_table(found, table) for table in found.tables),
        *(wall_clock_table(found, table) for table in found.tables),
        *(other_table(found, table) for table in found.tables),
        *(toy_table(toy) for toy in found.runs.toy),
        *(times_table(found, table) for table in found.times),
        uncounted_table(found),
    ]
    return [table for table in several if table is not None and table.rows]
