"""Run `doublecv report`: write the report of a sweep.

The page is one file that requests nothing from any network and runs no code but its own: everything that came from the
sweep is escaped, and a content security policy admits only the one script of the template, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from doublecv.lab.common.charts import Chart
from doublecv.lab.common.files import inside, write_atomically
from doublecv.lab.common.options import Option, ProgramSettings
from doublecv.lab.common.tables import Table, one_line
from doublecv.lab.report import frames
from doublecv.lab.report.collect import collect
from doublecv.lab.report.frames import Content, column_title, scale, table_title, training_charts
from doublecv.lab.report.statistics import CellKey, Estimate, make_cells, paper_elbos
from doublecv.lab.sweep import plan as sweeps
from doublecv.lab.toy import results as toy

FOLDER = "report"
TITLE = "Double control variates: measured beside the paper"
LATEX = "% Tables for \\input; they need \\usepackage{booktabs}."
CSV_FILES = ("cells.csv", "time.csv", "toy.csv", "runs.csv")


@dataclass(frozen=True)
class ReportSettings(ProgramSettings):
    """Compare the results of a sweep with the paper's: a web page, and tables as CSV, LaTeX and Markdown.

    The page is one file that opens from disk and requests nothing from any network. All files are written to
    DIR/report; an older report there is replaced. A sweep that is not complete can be reported too: unfinished runs are
    shown as far as they got, and damaged runs are listed with the reason.

    Example: doublecv report reproduction
    """

    folder: Annotated[Path, Option(metavar="DIR", positional=True)]
    """The folder of a sweep, as doublecv reproduce makes it."""


def main(settings: ReportSettings) -> None:
    """Write the report and print the paths."""
    for path in write(settings.folder):
        print(path)


class Group(NamedTuple):
    """A part of a section: tables and charts under a heading."""

    heading: str = ""
    caption: str = ""
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


class Section(NamedTuple):
    """A section of the page; one without groups is left out."""

    name: str
    heading: str
    groups: list[Group]


def write(folder: Path, published: Mapping[CellKey, Estimate] | None = None) -> list[Path]:
    """Write the report of the sweep in a folder and return the paths; an older report is replaced.

    The numbers to compare with are the paper's, unless others are given.
    """
    content = read(folder, published)
    target = inside(folder, FOLDER)
    target.mkdir(exist_ok=True)
    shown = sections(content)
    written = {
        "report.html": page(content, shown),
        "tables.md": "\n".join([*_command(content, "    "), "", *(one.to_markdown() for one in tables(shown))]),
        "tables.tex": "\n".join([LATEX, *_command(content, "% "), "", *(one.to_latex() for one in tables(shown))]),
        **_csv_files(content),
    }
    for name in set(CSV_FILES) - written.keys():
        (target / name).unlink(missing_ok=True)
    for name, text in written.items():
        write_atomically(target / name, text.encode())
    return [target / name for name in written]


def read(folder: Path, published: Mapping[CellKey, Estimate] | None = None) -> Content:
    """Read a sweep and sort its runs into the paper's cells."""
    faults: dict[str, str] = {}
    sweep = sweeps.load(folder, faults)
    runs = collect(sweep, faults)
    return Content(sweep, runs, make_cells(runs, paper_elbos() if published is None else published))


def page(content: Content, shown: Sequence[Section]) -> str:
    """Return the page with these sections."""
    loader = PackageLoader("doublecv.lab.report", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["svg"] = Markup
    script = files(__package__).joinpath("sort.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    template = environment.get_template("page.html.j2")
    return template.render(title=TITLE, sections=shown, content=content, policy=Markup(policy), script=Markup(script))


def sections(content: Content) -> list[Section]:
    """Return the sections of the page that have anything to show; charts are drawn when they are shown."""
    keys = content.tables
    toys = _tables(frames.toy_table(content))
    toys += [Group(f"Curves of {name}", charts=[*toy.charts(found).values()]) for name, found in content.toy.items()]
    found = [
        Section("cells", "Which of the paper's cells are reproduced", _tables(frames.verdicts_table(content))),
        Section("incomplete-runs", "Runs that are not complete", _tables(frames.runs_table(content, True))),
        Section("elbo", "Training ELBO", _tables(*(frames.elbo_table(content, *key) for key in keys))),
        Section("curves", "Variance and ELBO over the steps", list(_curves(content))),
        Section("wall-clock", "Training ELBO against time", list(_against_time(content))),
        Section("more", "Test set, variance, alpha", _tables(*(frames.metrics_table(content, *key) for key in keys))),
        Section("toy-problem", "Toy problem", toys),
        Section("time", "Time per step", _tables(*(frames.times_table(content, name) for name in content.bench))),
        Section("versions", "Versions", _tables(frames.versions_table(content))),
    ]
    return [section for section in found if section.groups]


def tables(shown: Sequence[Section]) -> list[Table]:
    """Return all tables of results, in the order of the page."""
    groups = [group for section in shown if section.name != "versions" for group in section.groups]
    return [table for group in groups for table in group.tables]


def _tables(*found: Table) -> list[Group]:
    with_rows = [table for table in found if table.rows]
    return [Group(tables=with_rows)] if with_rows else []


def _curves(content: Content) -> Iterator[Group]:
    for key in content.tables:
        for column in content.columns(*key):
            charts = training_charts(column, "encoder_variance", "Variance") + training_charts(column, "elbo", "ELBO")
            if charts:
                title = f"{table_title(*key)}, {column_title(column[0].key)}, {column[0].steps:,} steps"
                yield Group(title, f"{scale(column)}.", charts=charts)


def _against_time(content: Content) -> Iterator[Group]:
    for key in content.tables:
        table = frames.wall_clock_table(content, *key)
        charts: list[Chart] = []
        for column in content.columns(*key):
            title = f"{column_title(column[0].key)}, {column[0].steps:,} steps"
            charts += training_charts(column, "elbo", title, content.step_milliseconds(key[1]))
        if table.rows:
            yield Group(tables=[table], charts=charts)


def _csv_files(content: Content) -> dict[str, str]:
    times = [frames.times_table(content, name, ("gradient", "step")) for name in content.bench]
    of_all = [replace(times[0], rows=tuple(row for table in times for row in table.rows))] if times else []
    cells = [frames.cells_table(content)] if content.tables else []
    found = zip(CSV_FILES, (cells, of_all, [frames.toy_table(content)], [frames.runs_table(content)]), strict=True)
    return {name: table.to_csv() for name, tables in found for table in tables if table.rows}


def _command(content: Content, prefix: str) -> list[str]:
    return [f"{prefix}{one_line(line)}" for line in content.sweep.command.splitlines()]
