"""The page: one file with its style, its script, its numbers and its pictures, which asks nothing of any network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from doublecv.lab.common.style import appearance
from doublecv.lab.report.cells import CellTable
from doublecv.lab.report.content import Content, column_name, table_title
from doublecv.lab.report.curves import ELBO, VARIANCE, Chart, toy_charts, training_chart
from doublecv.lab.report.pictures import as_url
from doublecv.lab.report.settings import settings_tables, versions_table
from doublecv.lab.report.table import Column, Entry, Table
from doublecv.lab.report.tables import (
    elbo_table,
    order_table,
    other_table,
    times_table,
    toy_caption,
    toy_table,
    toy_title,
    uncounted_table,
)
from doublecv.lab.report.wall_clock import step_milliseconds, wall_clock_table

TITLE = "Double control variates: measured beside the paper"


class Section(NamedTuple):
    """A part of the page: the name in its link, its heading, its content."""

    name: str
    heading: str
    html: str


def page(content: Content) -> str:
    """The whole page."""
    assets = files("doublecv.lab.report") / "page"
    sections = [section for section in _sections(content) if section.html]
    return Template((assets / "page.html").read_text()).substitute(
        title=escape(TITLE),
        style=(assets / "page.css").read_text(),
        script=(assets / "page.js").read_text(),
        introduction=_introduction(content),
        navigation="".join(f'<li><a href="#{section.name}">{escape(section.heading)}</a></li>' for section in sections),
        sections="\n".join(
            f'<section aria-labelledby="{section.name}">\n<h2 id="{section.name}">{escape(section.heading)}</h2>\n'
            f"{section.html}\n</section>"
            for section in sections
        ),
    )


def _sections(content: Content) -> Iterable[Section]:
    yield Section("not-counted-runs", "Runs that do not count", _tables([uncounted_table(content)]))
    yield Section("orders", "Order of the estimators", _tables([order_table(content)]))
    yield Section("elbo", "Training ELBO", _tables([elbo_table(content, table) for table in content.tables]))
    yield Section("curves", "Variance and ELBO over the steps", "".join(_curves(content)))
    yield Section("wall-clock", "Training ELBO against time", "".join(_against_time(content)))
    yield Section("more", "Test set, variance and alpha", _tables(_with_rows(content)))
    yield Section("toy", "Toy problem", "".join(_toy(content)))
    yield Section("time", "Time per step", _tables([times_table(content, table) for table in content.times]))
    yield Section("pictures", "Pictures", "".join(_pictures(content)))
    yield Section("settings", "Settings and versions", _settings(content))


def _introduction(content: Content) -> str:
    sweep = content.sweep
    columns = [column for table in content.tables for column in table.planned_columns]
    scale = f'<p class="scale">Training runs: {escape(content.scale_of(*columns))}.</p>' if columns else ""
    return (
        "<p>The numbers of this sweep beside those of Titsias and Shi, &ldquo;Double Control Variates for Gradient "
        "Estimation in Discrete Latent Variable Models&rdquo; (AISTATS 2022). A click on a heading sorts a table.</p>"
        f"{scale}<pre><code>{escape(sweep.command)}</code></pre>"
        f"<p>Targets: {escape(', '.join(sweep.targets))}. {len(sweep.runs) - len(content.runs.uncounted)} of "
        f"{len(sweep.runs)} runs count.</p>"
    )


def _with_rows(content: Content) -> list[Table]:
    return [table for cells in content.tables if (table := other_table(content, cells)).rows]


def _curves(content: Content) -> Iterable[str]:
    for table in content.tables:
        for network in dict.fromkeys(column.network for column in table.planned_columns):
            charts = list(_training_charts(content, table, network))
            if charts:
                yield f"<h3>{escape(table_title(table))}, {escape(network)} networks</h3>"
                yield f'<div class="charts">{"".join(charts)}</div>'


def _training_charts(content: Content, table: CellTable, network: str) -> Iterable[str]:
    for column in table.planned_columns:
        for metric in (VARIANCE, ELBO):
            name = f"{table.name}-{column.dataset}-{network}-{metric.name}"
            if column.network == network and (chart := training_chart(column, metric, name)) is not None:
                yield _chart(chart, f"{column_name(column)}: {chart.title}", content.scale_of(column))


def _against_time(content: Content) -> Iterable[str]:
    for table in content.tables:
        if (drawn := wall_clock_table(content, table)) is None or not drawn.rows:
            continue
        charts = (
            _chart(chart, f"{column_name(column)}: {chart.title}", content.scale_of(column))
            for column in table.planned_columns
            if (
                chart := training_chart(
                    column,
                    ELBO,
                    f"{table.name}-{column.dataset}-{column.network}-time",
                    step_milliseconds(content, table),
                )
            )
        )
        yield f'{_table(drawn)}<div class="charts">{"".join(charts)}</div>'


def _toy(content: Content) -> Iterable[str]:
    for toy in content.runs.toy:
        yield f"<h3>{escape(toy_title(toy.result))}</h3>{_table(toy_table(toy))}"
        charts = (
            _chart(chart, f"{toy_title(toy.result)}: {chart.title}", toy_caption(toy.result))
            for chart in toy_charts(toy.result, toy.run.name)
        )
        yield f'<div class="charts">{"".join(charts)}</div>'


def _chart(chart: Chart, title: str, scale: str) -> str:
    names = ", ".join(line["name"] for line in chart.data["lines"])
    label = f"{title} over the {chart.data['x']['label']}s, for {names}. The arrow keys move along the curves."
    return (
        f"<figure><figcaption><strong>{escape(title)}</strong></figcaption>"
        f'<div class="chart" id="{escape(chart.name)}" data-label="{escape(label)}">'
        f'<script type="application/json">{_json(chart.data)}</script></div>'
        f"<figcaption>{escape(f'{scale}. {chart.reading}')}</figcaption></figure>"
    )


def _json(data: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _pictures(content: Content) -> Iterable[str]:
    for table in content.tables:
        for column in table.planned_columns:
            shown = [
                (cell, cell.counted[0], url)
                for cell in column.cells
                if cell.counted and (url := as_url(cell.counted[0].run.folder)) is not None
            ]
            if not shown:
                continue
            heading = f"{table_title(table)}, {column_name(column)}"
            yield f"<h3>{escape(heading)}</h3>"
            yield (
                f"<p>{escape(content.scale_of(column))}. First row: images of the test set; second: their "
                "reconstructions; below: samples of the model.</p>"
            )
            figures = (
                f'<figure><img src="{url}" alt="{escape(_alternative(cell.estimator, heading))}">'
                f"<figcaption>{escape(appearance(cell.estimator).label)}, seed {run.run.settings['seed']}, "
                f"{escape(content.scale_of(column))}</figcaption></figure>"
                for cell, run, url in shown
            )
            yield f'<div class="pictures">{"".join(figures)}</div>'


def _alternative(estimator: str, heading: str) -> str:
    return (
        f"Grid of small images, {heading}, trained with {appearance(estimator).label}: a row of test images, a row of "
        "their reconstructions, and four rows of samples"
    )


def _settings(content: Content) -> str:
    runs = "".join(
        f"<details><summary>{escape(run.name)}</summary><pre><code>"
        f"{escape(json.dumps(dict(run.settings), indent=1))}</code></pre></details>"
        for run in content.sweep.runs
    )
    return f"{_tables([versions_table(content), *settings_tables(content)])}<h3>Every run</h3>{runs}"


def _tables(tables: Sequence[Table | None]) -> str:
    return "".join(_table(table) for table in tables if table is not None)


def _table(table: Table) -> str:
    headings = "".join(
        f'<th scope="col" aria-sort="none"{_class(column)}><button type="button">{escape(column.heading)}</button></th>'
        for column in table.columns
    )
    rows = "\n".join(f"<tr>{_row(table, row)}</tr>" for row in table.rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">\n'
        f'<table id="{escape(table.name)}"><caption><span><strong>{escape(table.title)}.</strong> '
        f"{escape(table.caption)}</span></caption>\n"
        f"<thead><tr>{headings}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n"
    )


def _row(table: Table, row: Sequence[Entry]) -> str:
    cells = []
    for place, (column, entry) in enumerate(zip(table.columns, row, strict=True)):
        tag, scope = ("th", ' scope="row"') if place < table.row_headings else ("td", "")
        value = escape(str(entry.value))
        cells.append(f'<{tag}{scope}{_class(column)} data-value="{value}">{escape(entry.text)}</{tag}>')
    return "".join(cells)


def _class(column: Column) -> str:
    return ' class="number"' if column.numeric else ""
