"""Make the tables of a report; `doublecv.lab.common.tables` renders each of them in every format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import isfinite

import numpy as np

from doublecv.lab.bench.results import BASELINE, Row
from doublecv.lab.common.style import appearance
from doublecv.lab.common.tables import Column, Entry, Table, number, significant, words
from doublecv.lab.report import paper
from doublecv.lab.report.cells import DATASETS, NOT_RUN, Cell, CellKey, in_order, is_relaxed
from doublecv.lab.report.collect import BenchRun, ToyRun
from doublecv.lab.report.collect import Collection as Runs
from doublecv.lab.report.statistics import CLEAR, Estimate, estimate, order_agreement
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import REACHED, summarise

BOUND = "test_bound_100"
"""The bound with 100 samples, which the paper also reports."""

MINUTE = 60_000
"""Milliseconds per minute."""

PLACE = (
    Column("data set", numeric=False, key="dataset"),
    Column("network", numeric=False),
    Column("estimator", numeric=False),
    Column("steps"),
)
"""The columns that say which cell a row is of."""

METRICS: dict[str, tuple[str, Callable[..., Entry]]] = {
    "validation_elbo": ("validation ELBO", number),
    "test_elbo": ("test ELBO", number),
    BOUND: ("test bound", number),
    "encoder_variance": ("gradient variance", significant),
    "alpha": ("alpha", lambda value, error=None: number(value, 3, error=error)),
}
"""The metrics that the paper's tables do not have: headings and formats."""


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
    return f"{_part(steps, paper.STEPS, 'steps')}, {_part(seeds, paper.SEEDS, 'seeds', named=False)}"


def toy_scale(iterations: int, seeds: int) -> str:
    """Return the same for the toy problem; the paper does not say how many seeds its curves have.

    >>> toy_scale(2000, 5)
    "the paper's 2,000 iterations, 5 seeds"
    """
    return f"{_part([iterations], ToySettings.iterations, 'iterations')}, {seeds} seed{'s' if seeds != 1 else ''}"


def verdicts_table(content: Content) -> Table:
    """Say at a glance which of the paper's cells are reproduced."""
    published = [cell for cell in content.cells if cell.paper is not None]
    best: dict[CellKey, Cell] = {}
    for cell in published:
        held = best.get(cell.key)
        if held is None or _informs(cell) > _informs(held):
            best[cell.key] = cell
    estimators = in_order(key.estimator for key in best)
    rows = []
    for place in dict.fromkeys(key[:4] for key in best):
        key = CellKey(*place, "")
        shown = [best.get(key._replace(estimator=name)) for name in estimators]
        rows.append(
            (words(table_title(key.likelihood, key.samples)), words(column_title(key)), *map(_verdict_entry, shown))
        )
    counts = Counter(_verdict_mark(cell) for cell in best.values())
    said = ", ".join(f"{counts[mark]} {mark}" for mark in (*MARKS, NOT_RUN) if counts[mark])
    return Table(
        "verdicts",
        "The paper's cells",
        f"Of {len(best)} cells of the paper: {said}. A cell is reproduced if the mean training ELBO after the paper's "
        f"{paper.STEPS:,} steps is within {CLEAR:.0f} combined +- of the paper's; the number in brackets is the "
        "difference in nats. A single seed has no +-, so that only the paper's counts. Shorter runs are not judged.",
        (
            Column("table", numeric=False),
            Column("column", numeric=False),
            *(Column(appearance(name).label, numeric=False, key=name) for name in estimators),
        ),
        tuple(rows),
        row_headings=2,
    )


MARKS = ("reproduced", "not reproduced", "not finished", "run with other numbers of steps", "damaged")
"""The verdicts, as the page colours and counts them."""


def _informs(cell: Cell) -> tuple[bool, bool, int, int]:
    """Rank the cells of several lengths: the paper's length first, then the longest complete run."""
    furthest = max((run.records.step for run in cell.unfinished), default=0)
    return bool(cell.complete) and cell.steps == paper.STEPS, bool(cell.complete), cell.steps or 0, furthest


def _verdict_mark(cell: Cell) -> str:
    return cell.verdict if cell.verdict in (*MARKS, NOT_RUN) else MARKS[3]


def _verdict_entry(cell: Cell | None) -> Entry:
    if cell is None:
        return Entry()
    text = cell.verdict
    if cell.difference is not None:
        text += f" ({number(cell.difference, 2, signed=True).text})"
    elif cell.unfinished:
        text += f" (step {max(run.records.step for run in cell.unfinished):,})"
    return words(text, mark=_verdict_mark(cell).replace(" ", "-"))


def cells_table(content: Content) -> Table:
    """Return every cell with every number; the other tables of training runs are parts of this one."""
    measured = Column("measured", key="train_elbo", error="train_elbo_standard_error")
    published = Column("paper", key="paper_train_elbo", error="paper_train_elbo_plus_minus")
    return Table(
        "cells",
        "Training runs",
        "",
        (
            Column("likelihood", numeric=False),
            Column("K"),
            *PLACE,
            measured,
            Column("seeds"),
            published,
            Column("difference"),
            Column("in combined +-", key="difference_in_plus_minus"),
            Column("verdict", numeric=False),
            Column("unfinished runs", key="unfinished", numeric=False),
            *(Column(heading, key=key, error=f"{key}_standard_error") for key, (heading, _) in METRICS.items()),
        ),
        tuple(_cell_row(cell) for cell in content.cells),
    )


def _cell_row(cell: Cell) -> tuple[Entry, ...]:
    seeds = [run.settings.seed for run in cell.complete]
    return (
        words(cell.key.likelihood),
        number(cell.key.samples, 0),
        *_place(cell),
        _estimate(cell.measured()),
        Entry(f"{len(seeds)}" if seeds else "", " ".join(map(str, seeds)) or None),
        _estimate(cell.paper),
        number(cell.difference, 2, signed=True),
        number(cell.difference_in_plus_minus, 1, signed=True),
        words(cell.verdict, mark=_verdict_mark(cell).replace(" ", "-")),
        words("; ".join(_so_far(cell))),
        *(_estimate(cell.measured(key), shown) for key, (_, shown) in METRICS.items()),
    )


def _place(cell: Cell) -> tuple[Entry, ...]:
    dataset, network, name = cell.key[2:]
    return words(DATASETS[dataset], dataset), words(network), words(appearance(name).label, name), number(cell.steps, 0)


def _so_far(cell: Cell) -> Iterable[str]:
    for run in cell.unfinished:
        elbos = run.records.curves["train_elbo"].points
        last = f": {number(elbos[max(elbos)]).text} at step {max(elbos):,}" if elbos else ""
        yield f"seed {run.settings.seed} at step {run.records.step:,}{last}"


def elbo_table(content: Content, likelihood: str, samples: int) -> Table:
    """Return the training ELBOs of one likelihood and K, measured and published, one row per cell and length."""
    planned = {cell.key[2:4] for column in content.columns(likelihood, samples) for cell in column}
    cells = [cell for cell in content.cells if cell.key[:2] == (likelihood, samples) and cell.key[2:4] in planned]
    whole = Content(content.runs, tuple(cells))
    return cells_table(whole).select(
        [column.name for column in PLACE]
        + [
            "train_elbo",
            "seeds",
            "paper_train_elbo",
            "difference",
            "difference_in_plus_minus",
            "verdict",
            "unfinished",
        ],
        name=f"table-k{samples}-{likelihood}",
        title=f"Training ELBO, {table_title(likelihood, samples)}",
        caption=f"{scale(cells)}. Average ELBO over the training set after the last step, in nats per image: the mean "
        "over the seeds +- its standard error. The paper does not say what its +- is. Runs of different lengths are in "
        "different rows. RELAX has one sample, three evaluations of f. Where nothing was run, the row is empty.",
        row_headings=len(PLACE),
    )


def metrics_table(content: Content, likelihood: str, samples: int) -> Table:
    """Return what the paper's tables do not have: the test set, the variance of the gradient, alpha."""
    cells = tuple(cell for column in content.columns(likelihood, samples) for cell in column if cell.complete)
    return cells_table(Content(content.runs, cells)).select(
        [column.name for column in PLACE] + list(METRICS),
        name=f"table-k{samples}-{likelihood}-more",
        title=f"Test set, variance and alpha, {table_title(likelihood, samples)}",
        caption=f"{scale(cells)}. Means over the seeds +- their standard errors, after the last step. The bound has "
        "100 samples; the variance is that of the encoder's gradient.",
        row_headings=len(PLACE),
    )


def order_table(content: Content) -> Table:
    """Compare the order of the estimators with the paper's, wherever two of its estimators are complete."""
    rows, compared = [], []
    for likelihood, samples in content.tables:
        for column in content.columns(likelihood, samples):
            cells = [cell for cell in column if cell.complete and cell.paper is not None]
            measured = {cell.key.estimator: found for cell in cells if (found := cell.measured()) is not None}
            published = {cell.key.estimator: cell.paper for cell in cells if cell.paper is not None}
            if (agreement := order_agreement(measured, published)) is None:
                continue
            compared += cells
            rows.append(
                (
                    words(table_title(likelihood, samples)),
                    words(column_title(column[0].key)),
                    number(column[0].steps, 0),
                    words(*_ranking(measured)),
                    words(*_ranking(published)),
                    words("yes" if agreement.agreeing == agreement.pairs else "no"),
                    number(agreement.tau, 2),
                    _share(agreement.agreeing, agreement.pairs),
                    _share(agreement.clear_agreeing, agreement.clear),
                )
            )
    return Table(
        "order",
        "Order of the estimators",
        f"{scale(compared)}. By training ELBO, the best first, for the estimators that the paper also has. A pair is "
        f"clear if its difference is more than {CLEAR:.0f} combined +- both here and in the paper. Tau is Kendall's: 1 "
        "for the same order, -1 for the reverse.",
        (
            Column("table", numeric=False),
            Column("column", numeric=False),
            Column("steps"),
            Column("measured order", numeric=False, key="measured_order"),
            Column("paper's order", numeric=False, key="paper_order"),
            Column("same", numeric=False),
            Column("tau", key="kendall_tau"),
            Column("pairs that agree", key="agreeing_pairs"),
            Column("clear pairs that agree", key="agreeing_clear_pairs"),
        ),
        tuple(rows),
        row_headings=2,
    )


def _ranking(ranked: Mapping[str, Estimate]) -> tuple[str, str]:
    names = sorted(ranked, key=lambda name: -ranked[name].mean)
    return ", ".join(appearance(name).label for name in names), " ".join(names)


def _share(part: int | None, total: int | None) -> Entry:
    return Entry() if part is None else words(f"{part} of {total}")


def wall_clock_table(content: Content, likelihood: str, samples: int) -> Table | None:
    """Return what each estimator reached in all its steps, and in the time that RLOO takes for them."""
    milliseconds = content.step_milliseconds(samples)
    if BASELINE not in milliseconds:
        return None
    cells = [
        cell
        for column in content.columns(likelihood, samples)
        for cell in column
        if cell.complete and cell.key.estimator in milliseconds
    ]
    rows = []
    for cell in cells:
        time, total = milliseconds[cell.key.estimator], cell.steps or 0
        steps = min(total, int(total * milliseconds[BASELINE] / time))
        rows.append(
            (
                *_place(cell),
                number(time, 2),
                number(total * time / MINUTE, 2),
                _estimate(cell.measured()),
                number(steps, 0),
                _estimate(elbo_after(cell, steps)),
            )
        )
    return Table(
        f"table-k{samples}-{likelihood}-time",
        f"Training ELBO against time, {table_title(likelihood, samples)}",
        f"{scale(cells)}. The time per step is that of the sweep's benchmark, since the runs shared the machine. Steps "
        "in RLOO's time: those that fit into the time of RLOO's run of the same length, at most all; the ELBO after "
        "them is interpolated between evaluations.",
        (
            *PLACE,
            Column("milliseconds per step"),
            Column("minutes"),
            Column("ELBO"),
            Column("steps in RLOO's time"),
            Column("ELBO in RLOO's time"),
        ),
        tuple(rows),
        row_headings=len(PLACE),
    )


def elbo_after(cell: Cell, steps: int) -> Estimate | None:
    """Return the training ELBO after some steps; None where a seed has no evaluation before them."""
    values = []
    for run in cell.complete:
        curve = run.records.curves["train_elbo"].points
        known = sorted(curve)
        if not known or known[0] > steps:
            return None
        values.append(float(np.interp(steps, known, [curve[step] for step in known])))
    return estimate(values)


def times_table(content: Content, bench: BenchRun) -> Table:
    """Return the times per step beside the paper's."""
    times, machine = bench.times, content.runs.sweep.machine
    where = f" ({machine['processor']}, {machine['cores']} cores)" if {"processor", "cores"} <= machine.keys() else ""
    return Table(
        f"time-{bench.run.name}",
        "Time per step",
        f"{times.library}{where}, medians over {times.rounds} rounds of {times.calls} calls; the paper's times are "
        "from a P100 GPU. Only the ratios to RLOO can be compared, of which the least and the largest of the rounds "
        "are shown. RELAX has one sample, three evaluations of f; the floor is the matrix products of a step.",
        (
            Column("workload", numeric=False),
            Column("estimator", numeric=False),
            Column("K of RLOO", key="rloo_K"),
            Column("evaluations of f", key="evaluations"),
            Column("milliseconds"),
            Column("relative to RLOO", key="relative_to_rloo"),
            Column("least", key="least_of_rounds"),
            Column("largest", key="largest_of_rounds"),
            Column("paper, milliseconds", key="paper_milliseconds"),
            Column("paper, relative to RLOO", key="paper_relative_to_rloo"),
        ),
        tuple(_time_row(row, times.rows) for row in times.rows),
        row_headings=2,
    )


def _time_row(row: Row, rows: Iterable[Row]) -> tuple[Entry, ...]:
    same = (other for other in rows if (other.workload, other.baseline_samples) == (row.workload, row.baseline_samples))
    rloo = next(other for other in same if other.estimator == BASELINE)
    ratios = [mine / theirs for mine, theirs in zip(row.rounds, rloo.rounds, strict=True)]
    comparable = row.workload == "step" and row.baseline_samples == paper.TIME_SAMPLES
    published = paper.seconds_per_step() if comparable else {}
    seconds = published.get(row.estimator)
    return (
        words(row.workload),
        words(appearance(row.estimator).label, row.estimator),
        number(row.baseline_samples, 0),
        number(row.evaluations or None, 0),
        number(row.milliseconds, 2),
        number(row.ratio, 2),
        number(min(ratios), 2),
        number(max(ratios), 2),
        number(None if seconds is None else 1000 * seconds, 1),
        number(None if seconds is None else seconds / published[BASELINE], 2),
    )


def toy_table(toys: Sequence[ToyRun]) -> Table:
    """Return the runs of the toy problem, one row per estimator."""
    return Table(
        "toy",
        "Toy problem",
        "",
        (
            Column("run", numeric=False),
            Column("dimension"),
            Column("K"),
            Column("iterations"),
            Column("seeds"),
            Column("estimator", numeric=False),
            Column("variance / RLOO", key="relative_variance"),
            Column("second half", key="late_relative_variance"),
            Column("same logits", key="late_relative_variance_at_same_logits"),
            Column(f"iterations to {REACHED}", key=f"iterations_to_{REACHED}"),
            Column("final objective", key="final_objective"),
        ),
        tuple(
            (
                words(toy.run.name),
                *(number(value, 0) for value in (settings.dimension, settings.samples, settings.iterations)),
                number(settings.seeds, 0),
                words(appearance(summary.name).label, summary.name),
                significant(summary.relative_variance),
                significant(summary.late_relative_variance),
                significant(summary.late_relative_variance_at_same_logits),
                number(summary.reached, 0) if isfinite(summary.reached) else Entry(f"> {settings.iterations:,}"),
                number(summary.final_objective, 6),
            )
            for toy in toys
            for settings in [toy.results.settings]
            for summary in summarise(toy.results)
        ),
    )


def toy_run_table(toy: ToyRun) -> Table:
    """Return one run of the toy problem."""
    settings = toy.results.settings
    table = toy_table([toy])
    return table.select(
        [column.name for column in table.columns[5:]],
        name=toy.run.name,
        title=f"Toy problem, D = {settings.dimension}, K = {settings.samples}",
        caption=f"{toy_scale(settings.iterations, settings.seeds)}. Variances relative to RLOO's, medians over "
        "iterations and seeds: along the estimator's own run, over its second half, and exactly at the same logits "
        "over the second half.",
    )


def runs_table(content: Content) -> Table:
    """Return the state of every run of the sweep."""
    runs = content.runs
    lines: dict[str, tuple[str, int | None, int | None, str]] = {
        run.run.name: (run.state, run.records.step, run.settings.steps, "") for run in runs.train
    }
    lines |= {one.name: (one.state, None, one.settings.steps if one.settings else None, one.why) for one in runs.unread}
    known = [(run.name, run.targets) for run in runs.sweep.runs]
    known += [(one.name, ()) for one in runs.unread if one.name not in {name for name, _ in known}]
    rows = []
    for name, targets in known:
        state, step, steps, why = lines.get(name, ("complete", None, None, ""))
        numbers = step is not None or name not in lines
        checksum = "" if not numbers else "no" if name in runs.without_checksum else "yes"
        rows.append(
            (
                words(name),
                words(" ".join(targets)),
                words(state, mark=state.replace(" ", "-")),
                number(step, 0),
                number(steps, 0),
                words(checksum),
                words(why),
            )
        )
    return Table(
        "runs",
        "Runs",
        "A run without checksum was made by version 0.1: a changed number in it cannot be noticed.",
        (
            Column("run", numeric=False),
            Column("targets", numeric=False),
            Column("state", numeric=False),
            Column("steps done", key="steps_done"),
            Column("steps"),
            Column("checksum", numeric=False),
            Column("why", numeric=False),
        ),
        tuple(rows),
    )


def incomplete_table(content: Content) -> Table:
    """Return the runs that are not complete."""
    table = runs_table(content)
    rows = tuple(row for row in table.rows if row[2].value != "complete")
    return replace(
        table,
        name="incomplete",
        title="Runs that are not complete",
        caption=f"{len(rows)} of the {len(table.rows)} runs of the sweep. Their numbers are in no mean; the curves "
        "show unfinished runs as far as they got.",
        rows=rows,
    )


def settings_tables(content: Content) -> list[Table]:
    """Return the versions, and for each kind of run the values of all settings."""
    machine = {name: {str(value): None} for name, value in content.runs.sweep.machine.items()}
    tables = [
        Table(
            "versions",
            "Versions and machine",
            "Where there are several, different runs used different ones.",
            (Column("name", numeric=False), Column("version", numeric=False)),
            tuple(
                (words(name), words(", ".join(found))) for name, found in {**content.runs.versions, **machine}.items()
            ),
        )
    ]
    for kind, called in {"train": "training runs", "toy": "toy problem", "bench": "time per step"}.items():
        runs = [run for run in content.runs.sweep.runs if run.kind == kind]
        names = dict.fromkeys(name for run in runs for name in run.settings)
        rows = (
            (
                words(name),
                words("; ".join(dict.fromkeys(_text(run.settings[name]) for run in runs if name in run.settings))),
            )
            for name in names
        )
        if runs:
            columns = Column("setting", numeric=False), Column("values", numeric=False)
            caption = f"All values of each setting in the sweep's {len(runs)} run{'s' if len(runs) > 1 else ''}."
            tables.append(Table(f"settings-{kind}", f"Settings, {called}", caption, columns, tuple(rows)))
    return tables


def paper_layout_tables(content: Content) -> list[Table]:
    """Return the training ELBOs in the layout of the paper: one column per estimator, its numbers below ours."""
    tables = []
    for likelihood, samples in content.tables:
        for steps in sorted({column[0].steps or 0 for column in content.columns(likelihood, samples)}):
            cells = [
                cell
                for cell in content.cells
                if cell.key[:2] == (likelihood, samples) and (cell.steps in (steps, None) or cell.paper is not None)
            ]
            tables.append(_paper_layout(likelihood, samples, steps, cells))
    return tables


def _paper_layout(likelihood: str, samples: int, steps: int, cells: Sequence[Cell]) -> Table:
    names = in_order(cell.key.estimator for cell in cells)
    plain = [name for name in names if not is_relaxed(name, samples)]
    relaxed = [name for name in names if name not in plain]
    rows: list[tuple[Entry, ...]] = []
    sections: list[tuple[int, str]] = []
    for dataset, network in dict.fromkeys(cell.key[2:4] for cell in cells):
        if not sections or sections[-1][1] != DATASETS[dataset]:
            sections.append((len(rows), DATASETS[dataset]))
        here = [cell for cell in cells if cell.key[2:4] == (dataset, network)]
        published = {cell.key.estimator: cell.paper for cell in here}
        measured = {cell.key.estimator: cell.measured() for cell in here if cell.steps == steps}
        best = max((found.mean for name in plain if (found := measured.get(name)) is not None), default=None)
        shown = [
            _estimate(found)._replace(bold=found is not None and best is not None and found.mean >= best)
            for found in (measured.get(name) for name in (*plain, *relaxed))
        ]
        rows.append((words(network.capitalize()), *shown))
        rows.append((words("paper"), *(_estimate(published.get(name)) for name in (*plain, *relaxed))))
    data = "dynamically binarized" if likelihood == "bernoulli" else "non-binarized"
    return Table(
        f"measured-k{samples}-{likelihood}-{steps}-steps",
        f"Training binary latent VAEs with {likelihood.capitalize()} likelihoods, K = {samples}",
        f"{scale(cell for cell in cells if cell.steps == steps)}, on {data} data. The average ELBO on the training set "
        "+- its standard error over the seeds; below it the paper's. RELAX and REBAR need 3 evaluations of f. What was "
        "not run is empty.",
        (
            Column("", numeric=False),
            *(Column(appearance(name).label) for name in plain),
            *(Column(f"{appearance(name).label} (3 evals)", ruled=index == 0) for index, name in enumerate(relaxed)),
        ),
        tuple(rows),
        sections=tuple(sections),
    )


def _estimate(found: Estimate | None, shown: Callable[..., Entry] = number) -> Entry:
    return Entry() if found is None else shown(found.mean, error=found.plus_minus)


def _text(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)


def _part(counts: Collection[int], published: int, unit: str, named: bool = True) -> str:
    least, most = min(counts), max(counts)
    counted = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    if least == most == published:
        return f"the paper's {published:,} {unit}"
    if most > published:
        return f"{counted} {unit} (the paper: {published:,})"
    return f"{counted} of {'the paper' + chr(39) + 's ' if named else ''}{published:,} {unit}"
