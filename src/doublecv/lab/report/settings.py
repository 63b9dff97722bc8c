"""The settings of all runs: what they share in one table, and each run's own."""

from __future__ import annotations

import json
from collections.abc import Sequence

from doublecv.lab.report.content import Content
from doublecv.lab.report.table import Column, Entry, Table, words
from doublecv.lab.sweep.plan import SweepRun

KINDS = {"train": "training runs", "toy": "toy problem", "bench": "time per step"}


def settings_tables(content: Content) -> list[Table]:
    """For every kind of run, each setting with all values that it has in the sweep."""
    tables = []
    for kind, called in KINDS.items():
        runs = [run for run in content.sweep.runs if run.kind == kind]
        if runs:
            names = dict.fromkeys(name for run in runs for name in run.settings)
            tables.append(
                Table(
                    f"settings-{kind}",
                    f"Settings, {called}",
                    f"All values that a setting has in {_count(runs)}.",
                    (Column("setting", numeric=False), Column("values", numeric=False)),
                    tuple((words(name), _values(runs, name)) for name in names),
                )
            )
    return tables


def versions_table(content: Content) -> Table:
    """The versions of all that had a part in the numbers, and the machine."""
    machine = {name: (str(value),) for name, value in content.sweep.machine.items()}
    return Table(
        "versions",
        "Versions and machine",
        "Where there are several, different runs had different ones.",
        (Column("what", numeric=False), Column("version", numeric=False)),
        tuple((words(name), words(", ".join(found))) for name, found in {**content.runs.versions, **machine}.items()),
    )


def _values(runs: Sequence[SweepRun], name: str) -> Entry:
    found = dict.fromkeys(_as_text(run.settings[name]) for run in runs if name in run.settings)
    return words("; ".join(found))


def _as_text(value: object) -> str:
    if value is None:
        return "by default"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)


def _count(runs: Sequence[SweepRun]) -> str:
    return f"{len(runs)} runs" if len(runs) != 1 else "one run"
