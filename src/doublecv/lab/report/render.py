"""Write the report of a sweep.

from doublecv.lab.report import render

render.write(Path("results"))            # the paths of the page and of the tables

The page is one file that requests nothing from any network and runs no code but its own: everything that came from the
sweep is escaped, and a content security policy admits only the one script below, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import inside, write_atomically
from doublecv.lab.common.style import appearance
from doublecv.lab.common.tables import Table
from doublecv.lab.report import frames
from doublecv.lab.report.cells import CellKey, make_cells, paper_numbers
from doublecv.lab.report.charts import Chart, toy_charts, training_chart
from doublecv.lab.report.collect import collect, read_picture
from doublecv.lab.report.frames import Content, column_title, scale, table_title
from doublecv.lab.report.statistics import Estimate
from doublecv.lab.sweep import plan as sweeps

FOLDER = "report"
TITLE = "Double control variates: measured beside the paper"
CSV_FILES = ("cells.csv", "order.csv", "time.csv", "toy.csv", "runs.csv")


class Picture(NamedTuple):
    """The picture of a run: a data URL, or why it cannot be shown."""

    caption: str
    url: str | None
    fault: str


class Group(NamedTuple):
    """A part of a section: charts or pictures under a heading."""

    heading: str
    caption: str
    tables: list[Table]
    charts: list[Chart]
    pictures: list[Picture]


class Section(NamedTuple):
    """A section of the page."""

    name: str
    heading: str
    groups: list[Group]


def write(folder: Path, published: Mapping[CellKey, Estimate] | None = None) -> list[Path]:
    """Write the report of the sweep in a folder and return the paths; an older report is replaced.

    Args:
        folder: a sweep, complete or not.
        published: the numbers to compare with; the paper's if None.
    """
    content = read(folder, published)
    target = inside(folder, FOLDER)
    target.mkdir(exist_ok=True)
    tables = [table for table in _tables(content) if table.rows]
    files = {
        "report.html": page(content),
        "tables.md": _markdown(content, tables),
        "tables.tex": _latex(content),
        **_csv_files(content),
    }
    for name in CSV_FILES:
        if name not in files:
            (target / name).unlink(missing_ok=True)
    for name, text in files.items():
        write_atomically(target / name, text.encode())
    return [target / name for name in files]


def read(folder: Path, published: Mapping[CellKey, Estimate] | None = None) -> Content:
    """Read a sweep and sort its runs into the paper's cells."""
    faults: dict[str, str] = {}
    runs = collect(sweeps.load(folder, faults), faults)
    return Content(runs, make_cells(runs, paper_numbers() if published is None else published))


def page(content: Content) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader("doublecv.lab.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = Markup
    template = environment.get_template("page.html.j2")
    sections = [section for section in _sections(content) if section.groups]
    text = template.render(content=content, title=TITLE, sections=sections, sweep=content.runs.sweep, policy="POLICY")
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]  # type: ignore[index]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return text.replace('content="POLICY"', f'content="{policy}"', 1)


def _tables(content: Content) -> Iterable[Table]:
    """Iterate over all tables of results, in the order of the page."""
    yield frames.verdicts_table(content)
    yield frames.runs_table(content, only_incomplete=True)
    yield frames.order_table(content)
    for make in (frames.elbo_table, frames.wall_clock_table, frames.metrics_table):
        yield from (make(content, *key) for key in content.tables)
    yield from (frames.toy_table([toy], frames.TOY) for toy in content.runs.toy)
    yield from (frames.times_table(content, bench) for bench in content.runs.bench)


def _sections(content: Content) -> Iterable[Section]:
    tables = {table.name: table for table in _tables(content)}

    def of(*names: str) -> list[Group]:
        found = [tables[name] for name in names if name in tables and tables[name].rows]
        return [Group("", "", found, [], [])] if found else []

    names = [f"table-k{samples}-{likelihood}" for likelihood, samples in content.tables]
    yield Section("cells", "Which of the paper's cells are reproduced", of("verdicts"))
    yield Section("incomplete-runs", "Runs that are not complete", of("incomplete"))
    yield Section("orders", "Order of the estimators", of("order"))
    yield Section("elbo", "Training ELBO", of(*names))
    yield Section("curves", "Variance and ELBO over the steps", list(_curves(content)))
    yield Section("wall-clock", "Training ELBO against time", list(_against_time(content, tables)))
    yield Section("more", "Test set, variance and alpha", of(*(f"{name}-more" for name in names)))
    toys = [Group("", "", [tables[toy.run.name]], toy_charts(toy.results), []) for toy in content.runs.toy]
    yield Section("toy-problem", "Toy problem", toys)
    yield Section("time", "Time per step", of(*(f"time-{bench.run.name}" for bench in content.runs.bench)))
    yield Section("pictures", "Pictures", list(_pictures(content)))
    yield Section("settings", "Settings and versions", [Group("", "", frames.settings_tables(content), [], [])])


def _curves(content: Content) -> Iterable[Group]:
    for key in content.tables:
        for column in content.columns(*key):
            title = f"{table_title(*key)}, {column_title(column[0].key)}, {column[0].steps:,} steps"
            charts = [training_chart(column, "encoder_variance", "Variance"), training_chart(column, "elbo", "ELBO")]
            if any(charts):
                yield Group(title, f"{scale(column)}.", [], [chart for chart in charts if chart is not None], [])


def _against_time(content: Content, tables: Mapping[str, Table]) -> Iterable[Group]:
    for likelihood, samples in content.tables:
        table = tables.get(f"table-k{samples}-{likelihood}-time")
        if table is None or not table.rows:
            continue
        times = content.step_milliseconds(samples)
        charts = [
            chart
            for column in content.columns(likelihood, samples)
            if (
                chart := training_chart(
                    column, "elbo", f"{column_title(column[0].key)}, {column[0].steps:,} steps", times
                )
            )
        ]
        yield Group("", "", [table], charts, [])


def _pictures(content: Content) -> Iterable[Group]:
    for key in content.tables:
        for column in content.columns(*key):
            pictures = []
            for cell in column:
                if not cell.complete:
                    continue
                run = cell.complete[0]
                caption = f"{appearance(cell.key.estimator).label}, seed {run.settings.seed}"
                try:
                    url = read_picture(run.run.folder)
                    if url is not None:
                        pictures.append(Picture(caption, url, ""))
                except (InputError, OSError) as error:
                    pictures.append(Picture(caption, None, str(error)))
            if pictures:
                heading = f"{table_title(*key)}, {column_title(column[0].key)}, {column[0].steps:,} steps"
                caption = "First row: images of the test set; second row: their reconstructions; below: samples."
                yield Group(heading, f"{scale(column)}. {caption}", [], [], pictures)


def _csv_files(content: Content) -> dict[str, str]:
    times = [frames.times_table(content, bench, ("gradient", "step")) for bench in content.runs.bench]
    tables: list[Table | None] = [
        frames.cells_table(content) if content.tables else None,
        frames.order_table(content),
        replace(times[0], rows=tuple(row for table in times for row in table.rows)) if times else None,
        frames.toy_table(content.runs.toy),
        frames.runs_table(content),
    ]
    named = zip(CSV_FILES, tables, strict=True)
    return {name: table.to_csv() for name, table in named if table is not None and table.rows}


def _markdown(content: Content, tables: Iterable[Table]) -> str:
    command = content.runs.sweep.command
    return "\n".join(
        [*(f"    {_one_line(line)}" for line in command.splitlines()), "", *(table.to_markdown() for table in tables)]
    )


def _latex(content: Content) -> str:
    tables = [*frames.paper_layout_tables(content)]
    tables += [frames.times_table(content, bench) for bench in content.runs.bench]
    head = ["% Tables for \\input; they need \\usepackage{booktabs}."]
    head += [f"% {_one_line(line)}" for line in content.runs.sweep.command.splitlines()]
    return "\n".join([*head, "", *(table.to_latex() for table in tables if table.rows)])


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
