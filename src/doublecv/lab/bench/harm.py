"""Run `doublecv bench --harm`: the problems of `doublecv.jax.harm`, with tables of the worst and the mean ratios."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from rich.console import Console

from doublecv.jax.harm import HarmRow, measure, problems
from doublecv.lab.bench.problem import BenchSettings
from doublecv.lab.common.files import write_atomically
from doublecv.lab.common.tables import Entry, Row, Table, number, significant, words

RECOMMENDED = ("double-cv-moments", "quadratic-double-cv", "surrogate-quadratic-double-cv")
"""The estimators that are measured if none is named."""


def main(settings: BenchSettings) -> None:
    """Measure, print the table and write a JSON and a Markdown file."""
    console, rows = Console(), []
    for name in settings.estimators or RECOMMENDED:
        for problem in problems():
            if (row := measure(name, problem)) is not None:
                rows.append(row)
                console.print(f"{name}: {problem.name}: worst {row.worst:.3g}, mean {row.mean:.3g}")
    console.print(*(shown := tables(rows)))
    if settings.out is not None:
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(settings.out, (json.dumps([*map(asdict, rows)], indent=2) + "\n").encode())
        write_atomically(settings.out.with_suffix(".md"), "\n".join(table.to_markdown() for table in shown).encode())


def tables(rows: Sequence[HarmRow]) -> list[Table]:
    """Return the ratios of each estimator over all problems, and over the problems of each kind."""
    names = [*dict.fromkeys(row.estimator for row in rows)]
    kinds = [*dict.fromkeys(row.problem.split()[0] for row in rows)]

    def of_estimator(name: str) -> Row:
        own = [row for row in rows if row.estimator == name]
        worst = max(own, key=lambda row: row.worst)
        return {
            "estimator": words(name),
            "problems": number(len(own), 0),
            "largest ratio": significant(max(row.largest for row in own)),
            "less 2 standard errors": significant(worst.worst),
            "above 1.1": number(sum(row.worst > 1.1 for row in own), 0),
            "mean ratio": number(float(np.mean([row.mean for row in own])), 3),
            "worst problem": words(worst.problem),
        }

    def of_kind(kind: str, name: str) -> Entry:
        own = [row for row in rows if row.estimator == name and row.problem.split()[0] == kind]
        mean = float(np.mean([row.mean for row in own])) if own else 0.0
        return words(f"{max(row.largest for row in own):.2f}, {mean:.2f} ({len(own)})" if own else "")

    by_kind = [{"kind": words(kind)} | {name: of_kind(kind, name) for name in names} for kind in kinds]
    return [
        Table.of("harm", "Variance relative to RLOO", "Over all problems and steps.", map(of_estimator, names)),
        Table.of("kinds", "By kind of problem", "Largest and mean ratio, and the number of problems.", by_kind),
    ]
