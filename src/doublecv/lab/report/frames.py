"""Make the tables of a report; `doublecv.lab.common.tables` renders each of them in every format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from doublecv.lab.bench.results import BASELINE, Row
from doublecv.lab.common.style import appearance
from doublecv.lab.common.tables import Column, Entry, Getter, Table, label, number, significant, words
from doublecv.lab.report import paper
from doublecv.lab.report.cells import DATASETS, NOT_RUN, Cell, CellKey, in_order, is_relaxed
from doublecv.lab.report.collect import BenchRun, ToyRun
from doublecv.lab.report.collect import Collection as Runs
from doublecv.lab.report.statistics import CLEAR, Estimate, estimate, order_agreement
from doublecv.lab.sweep.plan import SweepRun
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import COLUMNS, summarise

MINUTE = 60_000
"""Milliseconds per minute."""

MARKS = ("reproduced", "not reproduced", "not finished", "run with other numbers of steps", "damaged", NOT_RUN)
"""The verdicts, as the page colours and counts them."""

Columns = Sequence[tuple[Column, Getter]]


@dataclass(frozen=True, eq=False)
class Content:
    """A sweep, sorted into the paper's cells."""

    runs: Runs
    cells: tuple[Cell, ...]

    @cached_property
    def tables(self) -> list[tuple[str, int]]:
        """The likelihood and K of every table that the sweep has runs for."""
        return sorted({cell.key[:2] for cell in self.cells if cell.steps is not None})

    def columns(self, likelihood: str, samples: int) -> list[list[Cell]]:
        """Return the cells of a table by data set, network and number of steps: what is compared and drawn together."""
        cells = [cell for cell in self.cells if cell.key[:2] == (likelihood, samples) and cell.steps is not None]
        cells.sort(key=lambda cell: (list(DATASETS).index(cell.key.dataset), cell.key.network, cell.steps))
        return [list(group) for _, group in groupby(cells, lambda cell: (*cell.key[2:4], cell.steps))]

    def complete(self, likelihood: str, samples: int) -> list[Cell]:
        """Return the cells of a table that have complete runs."""
        return [cell for column in self.columns(likelihood, samples) for cell in column if cell.complete]

    def step_milliseconds(self, samples: int) -> dict[str, float]:
        """Return the time per step by estimator, from the first benchmark with this K; empty if there is none."""
        for bench in self.runs.bench:
            rows = [row for row in bench.times.rows if row.workload == "step" and row.baseline_samples == samples]
            if rows:
                return {row.estimator: row.milliseconds for row in rows}
        return {}


def table_title(likelihood: str, samples: int) -> str:
    """Return the name of a table, as in "K = 2, Bernoulli likelihood"."""
    return f"K = {samples}, {likelihood.capitalize()} likelihood"


def column_title(key: CellKey) -> str:
    """Return the name of a column, as in "Fashion-MNIST, nonlinear"."""
    return f"{DATASETS[key.dataset]}, {key.network}"


def scale(cells: Iterable[Cell]) -> str:
    """Return the length and number of the complete runs of some cells, compared with the paper's."""
    complete = [cell for cell in cells if cell.complete]
    steps = {cell.steps for cell in complete if cell.steps is not None}
    return training_scale(steps, {len(cell.complete) for cell in complete})


def training_scale(steps: Collection[int], seeds: Collection[int]) -> str:
    """Return the length and number of training runs, compared with the paper's.

    >>> training_scale({20_000}, {2})
    "20,000 of the paper's 1,000,000 steps, 2 of 5 seeds"
    """
    if not steps or not any(seeds):
        return "no run is complete"
    return f"{_part(steps, paper.STEPS, 'steps')}, {_part(seeds, paper.SEEDS, 'seeds', whose='')}"


def toy_scale(iterations: int, seeds: int) -> str:
    """Return the same for the toy problem; the paper does not say how many seeds its curves have.

    >>> toy_scale(2000, 5)
    "the paper's 2,000 iterations, 5 seeds"
    """
    return f"{_part([iterations], ToySettings.iterations, 'iterations')}, {seeds} seed{'s' if seeds != 1 else ''}"


def verdicts_table(content: Content) -> Table:
    """Say at a glance which of the paper's cells are reproduced."""
    best: dict[CellKey, Cell] = {}
    for cell in content.cells:
        if cell.paper is not None and (cell.key not in best or _informs(cell) > _informs(best[cell.key])):
            best[cell.key] = cell
    counts = Counter(_mark(cell) for cell in best.values())
    columns: Columns = [
        (label("table"), lambda key: words(table_title(*key[:2]))),
        (label("column"), lambda key: words(column_title(key))),
        *(
            (
                label(appearance(name).label, name),
                lambda key, name=name: _verdict(best.get(key._replace(estimator=name))),
            )
            for name in in_order(key.estimator for key in best)
        ),
    ]
    return Table.of(
        dict.fromkeys(key._replace(estimator="") for key in best),
        columns,
        "verdicts",
        "The paper's cells",
        f"Of {len(best)} cells of the paper: "
        f"{', '.join(f'{counts[mark]} {mark}' for mark in MARKS if counts[mark])}. A cell is reproduced if the mean "
        f"training ELBO after the paper's {paper.STEPS:,} steps is within {CLEAR:.0f} combined +- of the paper's; "
        "the number in brackets is the difference in nats. A single seed has no +-, so that only the paper's "
        "counts. Runs of other lengths are not judged.",
        row_headings=2,
    )


def _informs(cell: Cell) -> tuple[bool, bool, int, int]:
    """Rank the cells of several lengths: the paper's length first, then the longest complete run."""
    furthest = max((run.records.step for run in cell.unfinished), default=0)
    return bool(cell.complete) and cell.steps == paper.STEPS, bool(cell.complete), cell.steps or 0, furthest


def _mark(cell: Cell) -> str:
    return cell.verdict if cell.verdict in MARKS else MARKS[3]


def _verdict(cell: Cell | None) -> Entry:
    if cell is None:
        return Entry()
    text = cell.verdict
    if cell.difference is not None:
        text += f" ({number(cell.difference, 2, signed=True).text})"
    elif cell.unfinished:
        text += f" (step {max(run.records.step for run in cell.unfinished):,})"
    return words(text, mark=_mark(cell))


def _estimate(found: Estimate | None, shown: Any = number) -> Entry:
    return Entry() if found is None else shown(found.mean, error=found.plus_minus)


def _estimator(name: str) -> Entry:
    return words(appearance(name).label, name)


def _so_far(cell: Cell) -> Iterable[str]:
    for run in cell.unfinished:
        elbos = run.records.curves["train_elbo"].points
        last = f": {number(elbos[max(elbos)]).text} at step {max(elbos):,}" if elbos else ""
        yield f"seed {run.settings.seed} at step {run.records.step:,}{last}"


def _seeds(cell: Cell) -> Entry:
    seeds = [str(run.settings.seed) for run in cell.complete]
    return Entry(str(len(seeds)), " ".join(seeds)) if seeds else Entry()


def _metric(heading: str, key: str, shown: Any = number) -> tuple[Column, Getter]:
    return Column(heading, key=key, error=f"{key}_standard_error"), lambda cell: _estimate(cell.measured(key), shown)


TABLE: Columns = [
    (label("likelihood"), lambda cell: words(cell.key.likelihood)),
    (Column("K"), lambda cell: number(cell.key.samples, 0)),
]
PLACE: Columns = [
    (label("data set", "dataset"), lambda cell: words(DATASETS[cell.key.dataset], cell.key.dataset)),
    (label("network"), lambda cell: words(cell.key.network)),
    (label("estimator"), lambda cell: _estimator(cell.key.estimator)),
    (Column("steps"), lambda cell: number(cell.steps, 0)),
]
ELBOS: Columns = [
    _metric("measured", "train_elbo"),
    (Column("seeds"), _seeds),
    (
        Column("paper", key="paper_train_elbo", error="paper_train_elbo_plus_minus"),
        lambda cell: _estimate(cell.paper),
    ),
    (Column("difference"), lambda cell: number(cell.difference, 2, signed=True)),
    (
        Column("in combined +-", key="difference_in_plus_minus"),
        lambda cell: number(cell.difference_in_plus_minus, 1, signed=True),
    ),
    (label("verdict"), lambda cell: words(cell.verdict, mark=_mark(cell))),
    (label("unfinished runs", "unfinished"), lambda cell: words("; ".join(_so_far(cell)))),
]
METRICS: Columns = [
    _metric("validation ELBO", "validation_elbo"),
    _metric("test ELBO", "test_elbo"),
    _metric("test bound", "test_bound_100"),
    _metric("gradient variance", "encoder_variance", significant),
    _metric("alpha", "alpha", lambda value, error: number(value, 3, error=error)),
]


def cells_table(content: Content) -> Table:
    """Return every cell of the sweep and of the paper with every number."""
    return Table.of(content.cells, [*TABLE, *PLACE, *ELBOS, *METRICS], "cells", "Cells", "")


def elbo_table(content: Content, likelihood: str, samples: int) -> Table:
    """Return the training ELBOs of one likelihood and K, measured and published, one row per cell and length."""
    planned = {cell.key[2:4] for column in content.columns(likelihood, samples) for cell in column}
    cells = [cell for cell in content.cells if cell.key[:2] == (likelihood, samples) and cell.key[2:4] in planned]
    return Table.of(
        cells,
        [*PLACE, *ELBOS],
        f"table-k{samples}-{likelihood}",
        f"Training ELBO, {table_title(likelihood, samples)}",
        f"{scale(cells)}. Average ELBO over the training set after the last step, in nats per image: the mean over the "
        "seeds +- its standard error. The paper does not say what its +- is. Runs of different lengths are in "
        "different rows. RELAX has one sample, three evaluations of f. What was not run is empty.",
        row_headings=len(PLACE),
    )


def metrics_table(content: Content, likelihood: str, samples: int) -> Table:
    """Return what the paper's tables do not have: the test set, the variance of the gradient, alpha."""
    cells = content.complete(likelihood, samples)
    return Table.of(
        cells,
        [*PLACE, *METRICS],
        f"table-k{samples}-{likelihood}-more",
        f"Test set, variance and alpha, {table_title(likelihood, samples)}",
        f"{scale(cells)}. Means over the seeds +- their standard errors, after the last step. The bound has 100 "
        "samples; the variance is that of the encoder's gradient.",
        row_headings=len(PLACE),
    )


def order_table(content: Content) -> Table:
    """Compare the order of the estimators with the paper's, wherever two of its estimators are complete."""
    compared = []
    for key in content.tables:
        for column in content.columns(*key):
            cells = [cell for cell in column if cell.complete and cell.paper is not None]
            measured = {cell.key.estimator: found for cell in cells if (found := cell.measured()) is not None}
            published = {cell.key.estimator: cell.paper for cell in cells if cell.paper is not None}
            if (agreement := order_agreement(measured, published)) is not None:
                compared.append((cells, measured, published, agreement))
    columns: Columns = [
        (label("table"), lambda one: words(table_title(*one[0][0].key[:2]))),
        (label("column"), lambda one: words(column_title(one[0][0].key))),
        (Column("steps"), lambda one: number(one[0][0].steps, 0)),
        (label("measured order", "measured_order"), lambda one: _ranking(one[1])),
        (label("paper's order", "paper_order"), lambda one: _ranking(one[2])),
        (label("same"), lambda one: words("yes" if one[3].agreeing == one[3].pairs else "no")),
        (Column("tau", key="kendall_tau"), lambda one: number(one[3].tau, 2)),
        (Column("pairs that agree", key="agreeing_pairs"), lambda one: _share(one[3].agreeing, one[3].pairs)),
        (
            Column("clear pairs that agree", key="agreeing_clear_pairs"),
            lambda one: _share(one[3].clear_agreeing, one[3].clear),
        ),
    ]
    return Table.of(
        compared,
        columns,
        "order",
        "Order of the estimators",
        f"{scale(cell for one in compared for cell in one[0])}. By training ELBO, the best first, for the estimators "
        f"that the paper also has. A pair is clear if its difference is more than {CLEAR:.0f} combined +- both here "
        "and in the paper. Tau is Kendall's: 1 for the same order, -1 for the reverse.",
        row_headings=2,
    )


def _ranking(ranked: Mapping[str, Estimate]) -> Entry:
    names = sorted(ranked, key=lambda name: -ranked[name].mean)
    return words(", ".join(appearance(name).label for name in names), " ".join(names))


def _share(part: int | None, total: int | None) -> Entry:
    return Entry() if part is None else words(f"{part} of {total}")


def wall_clock_table(content: Content, likelihood: str, samples: int) -> Table:
    """Return what each estimator reached in all its steps, and in the time that RLOO takes for them."""
    times = content.step_milliseconds(samples)
    complete = content.complete(likelihood, samples) if BASELINE in times else []
    cells = [cell for cell in complete if cell.key.estimator in times]

    def time(cell: Cell) -> float:
        return times[cell.key.estimator]

    def steps(cell: Cell) -> int:
        return min(cell.steps or 0, int((cell.steps or 0) * times[BASELINE] / time(cell)))

    columns: Columns = [
        *PLACE,
        (Column("milliseconds per step"), lambda cell: number(time(cell), 2)),
        (Column("minutes"), lambda cell: number(cell.steps * time(cell) / MINUTE, 2)),
        (Column("ELBO"), lambda cell: _estimate(cell.measured())),
        (Column("steps in RLOO's time"), lambda cell: number(steps(cell), 0)),
        (Column("ELBO in RLOO's time"), lambda cell: _estimate(elbo_after(cell, steps(cell)))),
    ]
    return Table.of(
        cells,
        columns,
        f"table-k{samples}-{likelihood}-time",
        f"Training ELBO against time, {table_title(likelihood, samples)}",
        f"{scale(cells)}. The time per step is that of the sweep's benchmark, since the runs shared the machine. "
        "Steps in RLOO's time: those that fit into the time of RLOO's run of the same length, at most all; the ELBO "
        "after them is interpolated between evaluations.",
        row_headings=len(PLACE),
    )


def elbo_after(cell: Cell, steps: int) -> Estimate | None:
    """Return the training ELBO after some steps; None where a seed has no evaluation before them."""
    curves = [sorted(run.records.curves["train_elbo"].points.items()) for run in cell.complete]
    if any(not curve or curve[0][0] > steps for curve in curves):
        return None
    return estimate([float(np.interp(steps, *np.array(curve, float).T)) for curve in curves])


def times_table(content: Content, bench: BenchRun, workloads: Sequence[str] = ("step",)) -> Table:
    """Return the times of a benchmark beside the paper's."""
    times, machine = bench.times, content.runs.sweep.machine
    where = f" ({machine['processor']}, {machine['cores']} cores)" if {"processor", "cores"} <= machine.keys() else ""

    def ratios(row: Row) -> list[float]:
        key = BASELINE, row.workload, row.baseline_samples
        rloo = next(other for other in times.rows if (other.estimator, other.workload, other.baseline_samples) == key)
        return [mine / theirs for mine, theirs in zip(row.rounds, rloo.rounds, strict=True)]

    def published(row: Row, unit: float) -> float | None:
        comparable = row.workload == "step" and row.baseline_samples == paper.TIME_SAMPLES
        seconds = paper.seconds_per_step().get(row.estimator) if comparable else None
        return None if seconds is None else seconds / unit

    columns: Columns = [
        (label("workload"), lambda row: words(row.workload)),
        (label("estimator"), lambda row: _estimator(row.estimator)),
        (Column("K of RLOO", key="rloo_K"), lambda row: number(row.baseline_samples, 0)),
        (Column("evaluations of f", key="evaluations"), lambda row: number(row.evaluations or None, 0)),
        (Column("milliseconds"), lambda row: number(row.milliseconds, 2)),
        (Column("relative to RLOO", key="relative_to_rloo"), lambda row: number(row.ratio, 2)),
        (Column("least", key="least_of_rounds"), lambda row: number(min(ratios(row)), 2)),
        (Column("largest", key="largest_of_rounds"), lambda row: number(max(ratios(row)), 2)),
        (Column("paper, milliseconds", key="paper_milliseconds"), lambda row: number(published(row, 1e-3), 1)),
        (
            Column("paper, relative to RLOO", key="paper_relative_to_rloo"),
            lambda row: number(published(row, paper.seconds_per_step()[BASELINE]), 2),
        ),
    ]
    return Table.of(
        [row for row in times.rows if row.workload in workloads],
        columns,
        f"time-{bench.run.name}",
        "Time per step",
        f"{times.library}{where}, medians over {times.rounds} rounds of {times.calls} calls; the paper's times are "
        "from a P100 GPU. Only the ratios to RLOO can be compared; the least and the largest are those of the "
        "rounds. RELAX has one sample, three evaluations of f; the floor is the matrix products of a step.",
        row_headings=2,
    )


TOY_RUN: Columns = [
    (label("run"), lambda one: words(one[0].run.name)),
    (Column("dimension"), lambda one: number(one[0].results.settings.dimension, 0)),
    (Column("K"), lambda one: number(one[0].results.settings.samples, 0)),
    (Column("iterations"), lambda one: number(one[0].results.settings.iterations, 0)),
    (Column("seeds"), lambda one: number(one[0].results.settings.seeds, 0)),
]
TOY: Columns = [
    (label("estimator"), lambda one: _estimator(one[1].name)),
    *((column, lambda one, entry=entry: entry(one[1])) for column, entry in COLUMNS),
]


def toy_table(toys: Sequence[ToyRun], columns: Columns = (*TOY_RUN, *TOY)) -> Table:
    """Return runs of the toy problem, one row per estimator."""
    settings = toys[0].results.settings if toys else ToySettings()
    return Table.of(
        [(toy, summary) for toy in toys for summary in summarise(toy.results)],
        columns,
        toys[0].run.name if toys else "toy",
        f"Toy problem, D = {settings.dimension}, K = {settings.samples}",
        f"{toy_scale(settings.iterations, settings.seeds)}. Variances relative to RLOO's, medians over iterations and "
        "seeds: along the own run, over its second half, and exactly at the same logits over the second half.",
    )


def runs_table(content: Content, only_incomplete: bool = False) -> Table:
    """Return the state of the runs of the sweep."""
    runs = content.runs
    unread = {one.name: one for one in runs.unread}
    trained = {run.run.name: run for run in runs.train}
    states = {run.name: "complete" for run in runs.sweep.runs} | {name: run.state for name, run in trained.items()}
    states |= {name: one.state for name, one in unread.items()}
    targets = {run.name: run.targets for run in runs.sweep.runs}

    def steps(name: str) -> int | None:
        settings = trained[name].settings if name in trained else unread[name].settings if name in unread else None
        return None if settings is None else settings.steps

    def checksum(name: str) -> str:
        return "" if name in unread else "no" if name in runs.without_checksum else "yes"

    columns: Columns = [
        (label("run"), words),
        (label("targets"), lambda name: words(" ".join(targets.get(name, ())))),
        (label("state"), lambda name: words(states[name], mark=states[name])),
        (
            Column("steps done", key="steps_done"),
            lambda name: number(trained[name].records.step if name in trained else None, 0),
        ),
        (Column("steps"), lambda name: number(steps(name), 0)),
        (label("checksum"), lambda name: words(checksum(name))),
        (label("why"), lambda name: words(unread[name].why if name in unread else "")),
    ]
    shown = [name for name, state in states.items() if not only_incomplete or state != "complete"]
    return Table.of(
        shown,
        columns,
        "incomplete",
        "Runs that are not complete",
        f"{len(shown)} of the {len(states)} runs of the sweep. Their numbers are in no mean; the curves show "
        "unfinished runs as far as they got.",
    )


def settings_tables(content: Content) -> list[Table]:
    """Return the versions, and for each kind of run the values of all settings."""
    machine = {name: {str(value): None} for name, value in content.runs.sweep.machine.items()}
    versions: Columns = [
        (label("name"), lambda one: words(one[0])),
        (label("version"), lambda one: words(", ".join(one[1]))),
    ]
    caption = "Where there are several, different runs used different ones."
    found = (content.runs.versions | machine).items()
    tables = [Table.of(found, versions, "versions", "Versions and machine", caption)]
    settings: Columns = [(label("setting"), lambda one: words(one[0])), (label("values"), lambda one: words(one[1]))]
    for kind in ("train", "toy", "bench"):
        runs = [run for run in content.runs.sweep.runs if run.kind == kind]
        names = dict.fromkeys(name for run in runs for name in run.settings)
        values = [(name, "; ".join(dict.fromkeys(_values(runs, name)))) for name in names]
        caption = f"All values of each setting in the {len(runs)} runs of doublecv {kind}."
        tables.append(Table.of(values, settings, f"settings-{kind}", f"Settings of doublecv {kind}", caption))
    return [table for table in tables if table.rows]


def _values(runs: Iterable[SweepRun], name: str) -> Iterable[str]:
    for value in (run.settings[name] for run in runs if name in run.settings):
        if isinstance(value, list | tuple):
            yield " ".join(map(str, value)) or "none"
        else:
            yield "default" if value is None else value if isinstance(value, str) else json.dumps(value)


def paper_layout_tables(content: Content) -> list[Table]:
    """Return the training ELBOs in the layout of the paper: one column per estimator, its numbers below ours."""
    tables = []
    for key in content.tables:
        cells = [cell for cell in content.cells if cell.key[:2] == key]
        for steps in sorted({cell.steps for cell in cells if cell.steps is not None}):
            tables.append(_paper_layout(*key, steps, cells))
    return tables


def _paper_layout(likelihood: str, samples: int, steps: int, cells: Sequence[Cell]) -> Table:
    here = [cell for cell in cells if cell.paper is not None or cell.steps == steps]
    names = sorted(in_order(cell.key.estimator for cell in here), key=lambda name: is_relaxed(name, samples))
    relaxed = [name for name in names if is_relaxed(name, samples)]
    rows: list[tuple[Entry, ...]] = []
    sections: dict[str, int] = {}
    for place in dict.fromkeys(cell.key[2:4] for cell in here):
        sections.setdefault(DATASETS[place[0]], len(rows))
        published = {cell.key.estimator: cell.paper for cell in here if cell.key[2:4] == place}
        found = {cell.key.estimator: cell.measured() for cell in here if cell.key[2:4] == place and cell.steps == steps}
        measured = {name: one for name, one in found.items() if one is not None}
        # A relaxed estimator has other evaluations of f, and is in bold face where it is better than all others.
        best = max((one.mean for name, one in measured.items() if name not in relaxed), default=float("inf"))
        shown = [
            _estimate(measured.get(name))._replace(bold=name in measured and measured[name].mean >= best)
            for name in names
        ]
        rows += [
            (words(place[1].capitalize()), *shown),
            (words("paper"), *(_estimate(published.get(name)) for name in names)),
        ]
    data = "dynamically binarized" if likelihood == "bernoulli" else "non-binarized"
    return Table(
        f"measured-k{samples}-{likelihood}-{steps}-steps",
        f"Training binary latent VAEs with {likelihood.capitalize()} likelihoods, K = {samples}",
        f"{scale(cell for cell in here if cell.steps == steps)}, on {data} data. The average ELBO on the training "
        "set +- its standard error over the seeds; below it the paper's. RELAX and REBAR need 3 evaluations of f. "
        "What was not run is empty.",
        (
            label(""),
            *(
                Column(appearance(name).label + " (3 evals)" * (name in relaxed), ruled=name in relaxed[:1])
                for name in names
            ),
        ),
        tuple(rows),
        sections=tuple((index, dataset) for dataset, index in sections.items()),
    )


def _part(counts: Collection[int], published: int, unit: str, whose: str = "the paper's ") -> str:
    least, most = min(counts), max(counts)
    counted = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    if least == most == published:
        return f"the paper's {published:,} {unit}"
    return (
        f"{counted} {unit} (the paper: {published:,})"
        if most > published
        else f"{counted} of {whose}{published:,} {unit}"
    )
