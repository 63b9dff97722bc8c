"""Make the tables and the charts of a report, which `doublecv.lab.common` renders in every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from doublecv.lab.bench.problem import BASELINE
from doublecv.lab.bench.problem import Row as Timing
from doublecv.lab.common.charts import Chart, Line, appearance
from doublecv.lab.common.tables import Column, Entry, Row, Table, number, significant, words
from doublecv.lab.report import statistics
from doublecv.lab.report.collect import POINTS, BenchFile, Run
from doublecv.lab.report.statistics import CLEAR, DATASETS, INDEPENDENT, Cell, CellKey, Estimate, in_order
from doublecv.lab.sweep.plan import PAPER_STEPS, SEEDS, Sweep
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import ToyResults, summarise, summary_row

MINUTE = 60_000
"""Milliseconds per minute."""

START = 0.1
"""The share of a run after which all ELBOs are on the chart: the first are so low that the rest would look flat."""

OTHER_STEPS = "run with other numbers of steps"
MARKS = ("reproduced", "not reproduced", "not finished", OTHER_STEPS, "damaged", "not run")
"""The verdicts, as the page colours and counts them."""


@dataclass(frozen=True, eq=False)
class Content:
    """A sweep, its runs, and the runs sorted into the paper's cells."""

    sweep: Sweep
    runs: tuple[Run, ...]
    cells: tuple[Cell, ...]

    @property
    def toy(self) -> dict[str, ToyResults]:
        """The complete runs of the toy problem by name."""
        return {run.name: run.toy for run in self.runs if run.toy is not None}

    @property
    def bench(self) -> dict[str, BenchFile]:
        """The complete benchmarks by name."""
        return {run.name: run.times for run in self.runs if run.times is not None}

    @property
    def unread(self) -> list[Run]:
        """The runs without numbers."""
        return [run for run in self.runs if not run.records.last and run.toy is None and run.times is None]

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
        for times in self.bench.values():
            rows = [row for row in times.rows if row.workload == "step" and row.baseline_samples == samples]
            if rows:
                return {row.estimator: row.milliseconds for row in rows}
        return {}


TEXTS = msgspec.toml.decode(files(__package__).joinpath("texts.toml").read_bytes())
"""For each table the title and the caption, with fields to fill in, and how many columns say what a row is."""


def _table(text: str, rows: Iterable[Row], name: str = "", **values: Any) -> Table:
    found = TEXTS[text]
    caption = " ".join(found["caption"].format(**values).split())
    return Table.of(name or text, found["title"].format(**values), caption, rows, found.get("row_headings", 1))


def table_title(likelihood: str, samples: int) -> str:
    """Return the name of a table, as in "K = 2, Bernoulli likelihood"."""
    return f"K = {samples}, {likelihood.capitalize()} likelihood"


def column_title(key: CellKey) -> str:
    """Return the name of a column, as in "Fashion-MNIST, nonlinear"."""
    return f"{DATASETS[key.dataset]}, {key.network}"


def scale(cells: Iterable[Cell]) -> str:
    """Return how long the complete runs are, as in "20,000 steps, 1 to 2 seeds (the paper: 1,000,000 and 5)"."""
    complete = [cell for cell in cells if cell.complete]
    if not complete:
        return "no run is complete"
    steps, seeds = _range(cell.steps or 0 for cell in complete), _range(len(cell.complete) for cell in complete)
    return f"{steps} steps, {seeds} seeds (the paper: {PAPER_STEPS:,} and {len(SEEDS)})"


def _range(counts: Iterable[int]) -> str:
    least, *_, most = [*sorted(counts)] * 2 or [0, 0]
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def verdicts_table(content: Content) -> Table:
    """Say at a glance which of the paper's cells are reproduced."""
    best: dict[CellKey, Cell] = {}
    for cell in content.cells:
        key = cell.key._replace(estimator=cell.key.estimator.removesuffix(INDEPENDENT))
        if cell.paper is not None and (key not in best or _informs(cell) > _informs(best[key])):
            best[key] = cell
    counted = Counter(_mark(cell) for cell in best.values())
    counts = ", ".join(f"{counted[mark]} {mark}" for mark in MARKS if counted[mark])
    names = in_order(key.estimator for key in best)

    def row(key: CellKey) -> Row:
        verdicts = {name: _verdict(best.get(key._replace(estimator=name))) for name in names}
        place = {"table": words(table_title(*key[:2])), "column": words(column_title(key))}
        return place | {Column(appearance(name).label, name): verdict for name, verdict in verdicts.items()}

    rows = map(row, dict.fromkeys(key._replace(estimator="") for key in best))
    return _table("verdicts", rows, cells=len(best), counts=counts, paper_steps=PAPER_STEPS, clear=CLEAR)


def _informs(cell: Cell) -> tuple[bool | int, ...]:
    """Rank the cells of a place: the paper's length first, then the longest complete run, then the paper's decoder."""
    complete, furthest = bool(cell.complete), max((run.records.step for run in cell.unfinished), default=0)
    length = complete and cell.steps == PAPER_STEPS, complete, cell.steps or 0, furthest
    return *length, cell.key.estimator.endswith(INDEPENDENT)


def _mark(cell: Cell) -> str:
    return cell.verdict if cell.verdict in MARKS else OTHER_STEPS


def _verdict(cell: Cell | None) -> Entry:
    if cell is None:
        return Entry()
    text = cell.verdict
    if cell.difference is not None:
        text += f" ({number(cell.difference, 2, signed=True).text})"
    elif cell.unfinished:
        text += f" (step {max(run.records.step for run in cell.unfinished):,})"
    return words(text, mark=_mark(cell))


def _estimate(found: Estimate | None) -> Entry:
    return Entry() if found is None else number(found.mean, error=found.plus_minus)


def _estimator(name: str) -> Entry:
    return words(appearance(name).label, name)


def _place(cell: Cell) -> Row:
    return {
        Column("data set", "dataset"): words(DATASETS[cell.key.dataset], cell.key.dataset),
        "network": words(cell.key.network),
        "estimator": _estimator(cell.key.estimator),
        "steps": number(cell.steps, 0),
    }


def _elbos(cell: Cell) -> Row:
    seeds = [str(run.seed) for run in cell.complete]
    return {
        Column("measured", "train_elbo", "train_elbo_standard_error"): _estimate(cell.measured()),
        "seeds": words(str(len(seeds) or ""), " ".join(seeds)),
        Column("paper", "paper_train_elbo", "paper_train_elbo_plus_minus"): _estimate(cell.paper),
        "difference": number(cell.difference, 2, signed=True),
        Column("in combined +-", "difference_in_plus_minus"): number(cell.difference_in_plus_minus, 1, signed=True),
        "verdict": words(cell.verdict, mark=_mark(cell)),
        Column("unfinished runs", "unfinished"): words("; ".join(_so_far(cell))),
    }


def _so_far(cell: Cell) -> Iterator[str]:
    for run in cell.unfinished:
        elbos = run.records.curves["train_elbo"]
        last = f": {number(elbos[max(elbos)]).text} at step {max(elbos):,}" if elbos else ""
        yield f"seed {run.seed} at step {run.records.step:,}{last}"


def _metrics(cell: Cell) -> Row:
    shown: dict[str, tuple[str, Any]] = {
        "validation_elbo": ("validation ELBO", number),
        "test_elbo": ("test ELBO", number),
        "test_bound_100": ("test bound", number),
        "encoder_variance": ("gradient variance", significant),
        "alpha": ("alpha", partial(number, decimals=3)),
    }
    row: dict[Column, Entry] = {}
    for key, (heading, entry) in shown.items():
        mean, plus_minus = cell.measured(key) or (None, None)
        row[Column(heading, key, f"{key}_standard_error")] = entry(mean, error=plus_minus)
    return row


def cells_table(content: Content) -> Table:
    """Return every cell of the sweep and of the paper with every number."""

    def row(cell: Cell) -> Row:
        table = {"likelihood": words(cell.key.likelihood), "K": number(cell.key.samples, 0)}
        return {**table, **_place(cell), **_elbos(cell), **_metrics(cell)}

    return _table("cells", map(row, content.cells))


def elbo_table(content: Content, likelihood: str, samples: int) -> Table:
    """Return the training ELBOs of one likelihood and K, measured and published, one row per cell and length."""
    planned = {cell.key[2:4] for column in content.columns(likelihood, samples) for cell in column}
    cells = [cell for cell in content.cells if cell.key[:2] == (likelihood, samples) and cell.key[2:4] in planned]
    rows, table = ({**_place(cell), **_elbos(cell)} for cell in cells), table_title(likelihood, samples)
    return _table("elbo", rows, f"table-k{samples}-{likelihood}", scale=scale(cells), table=table)


def metrics_table(content: Content, likelihood: str, samples: int) -> Table:
    """Return what the paper's tables do not have: the test set, the variance of the gradient, alpha."""
    cells = content.complete(likelihood, samples)
    rows, table = ({**_place(cell), **_metrics(cell)} for cell in cells), table_title(likelihood, samples)
    return _table("metrics", rows, f"table-k{samples}-{likelihood}-more", scale=scale(cells), table=table)


def wall_clock_table(content: Content, likelihood: str, samples: int) -> Table:
    """Return what each estimator reached in all its steps, and in the time that RLOO takes for them."""
    times = content.step_milliseconds(samples)
    complete = content.complete(likelihood, samples) if BASELINE in times else []
    cells = [cell for cell in complete if cell.key.estimator in times]

    def row(cell: Cell) -> Row:
        steps, time = cell.steps or 0, times[cell.key.estimator]
        affordable = min(steps, int(steps * times[BASELINE] / time))
        return {
            **_place(cell),
            "milliseconds per step": number(time, 2),
            "minutes": number(steps * time / MINUTE, 2),
            "ELBO": _estimate(cell.measured()),
            "steps in RLOO's time": number(affordable, 0),
            "ELBO in RLOO's time": _estimate(elbo_after(cell, affordable)),
        }

    name, table = f"table-k{samples}-{likelihood}-time", table_title(likelihood, samples)
    return _table("wall-clock", map(row, cells), name, scale=scale(cells), table=table)


def elbo_after(cell: Cell, steps: int) -> Estimate | None:
    """Return the training ELBO after some steps; None where a seed has no evaluation before them."""
    curves = [sorted(run.records.curves["train_elbo"].items()) for run in cell.complete]
    if any(not curve or curve[0][0] > steps for curve in curves):
        return None
    return statistics.estimate([float(np.interp(steps, *np.array(curve, float).T)) for curve in curves])


def times_table(content: Content, name: str, workloads: Collection[str] = ("step",)) -> Table:
    """Return the times of a benchmark beside the paper's."""
    times, machine = content.bench[name], content.sweep.machine
    where = f" ({machine['processor']}, {machine['cores']} cores)" if {"processor", "cores"} <= machine.keys() else ""
    baselines = {(row.workload, row.baseline_samples): row for row in times.rows if row.estimator == BASELINE}
    published = statistics.paper_seconds_per_step()

    def row(timing: Timing) -> Row:
        rloo = baselines[timing.workload, timing.baseline_samples]
        ratios = [mine / theirs for mine, theirs in zip(timing.rounds, rloo.rounds, strict=True)]
        comparable = timing.workload == "step" and timing.baseline_samples == statistics.TIME_SAMPLES
        seconds = published.get(timing.estimator) if comparable else None
        return {
            "workload": words(timing.workload),
            "estimator": _estimator(timing.estimator),
            Column("K of RLOO", "rloo_K"): number(timing.baseline_samples, 0),
            Column("evaluations of f", "evaluations"): number(timing.evaluations or None, 0),
            "milliseconds": number(timing.milliseconds, 2),
            Column("relative to RLOO", "relative_to_rloo"): number(timing.ratio, 2),
            Column("least", "least_of_rounds"): number(min(ratios), 2),
            Column("largest", "largest_of_rounds"): number(max(ratios), 2),
            "paper, milliseconds": number(seconds and 1000 * seconds, 1),
            Column("paper, relative to RLOO", "paper_relative_to_rloo"): number(
                seconds and seconds / published[BASELINE]
            ),
        }

    rows = [row(timing) for timing in times.rows if timing.workload in workloads]
    about = {"library": times.library, "where": where, "rounds": times.rounds, "calls": times.calls}
    return _table("time", rows, f"time-{name}", **about)


def toy_table(content: Content) -> Table:
    """Return the runs of the toy problem, one row per estimator."""
    settings = [results.settings for results in content.toy.values()]
    rows = [
        {
            "run": words(name),
            **{key: number(getattr(results.settings, key), 0) for key in ("dimension", "iterations", "seeds")},
            "K": number(results.settings.samples, 0),
            "estimator": _estimator(one.name),
            **summary_row(one),
        }
        for name, results in content.toy.items()
        for one in summarise(results)
    ]
    iterations, seeds = _range(one.iterations for one in settings), _range(one.seeds for one in settings)
    return _table("toy", rows, iterations=iterations, seeds=seeds, paper_iterations=ToySettings.iterations)


def runs_table(content: Content, only_incomplete: bool = False) -> Table:
    """Return the state of the runs of the sweep."""
    unread = content.unread
    rows = [
        {
            "run": words(run.name),
            "targets": words(" ".join(run.targets)),
            "state": words(run.state, mark=run.state),
            "steps done": number(run.records.step or None, 0),
            "steps": number(None if run.settings is None else run.settings.steps, 0),
            "checksum": words("" if run in unread else "yes" if run.sealed else "no"),
            "why": words(run.why),
        }
        for run in content.runs
        if not only_incomplete or run.state != "complete"
    ]
    return _table("incomplete", rows, shown=len(rows), runs=len(content.runs))


def versions_table(content: Content) -> Table:
    """Return the versions and the machine of the sweep and of its runs."""
    versions: dict[str, dict[str, None]] = {}
    sweep = content.sweep
    for found in (sweep.versions, *(run.versions for run in content.runs), sweep.machine):
        for name, version in found.items():
            versions.setdefault(name, {})[str(version)] = None
    rows = ({"name": words(name), "version": words(", ".join(used))} for name, used in versions.items())
    return _table("packages", rows)


def training_charts(
    cells: Sequence[Cell], metric: str, title: str, step_milliseconds: Mapping[str, float] | None = None
) -> list[Chart]:
    """Return the chart of a metric, "elbo" or "encoder_variance", of the cells of one column; none if no run has it.

    Unfinished runs are drawn as far as they got. With times per step by estimator, the chart is over minutes, and
    estimators without a time are left out.
    """
    lines = []
    for cell in cells:
        scale = 1.0 if step_milliseconds is None else step_milliseconds.get(cell.key.estimator, 0.0) / MINUTE
        for runs in (cell.complete, *([run] for run in cell.unfinished)):
            line = _line(cell.key.estimator, runs, metric)
            if line is not None and scale > 0:
                lines.append(line._replace(x=line.x * scale))
    if not lines:
        return []
    reading = "Mean over the seeds; band: from the least to the largest."
    if any(len(line.x) > POINTS for line in lines):
        reading += " Long curves are drawn from an evenly spread part of their records."
    if any(cell.unfinished for cell in cells):
        reading += " Dotted: a run that is not finished."
    xlabel = "step" if step_milliseconds is None else "minutes"
    if metric != "elbo":
        return [Chart(title, lines, xlabel, "variance of the encoder's gradient", log=True, reading=reading)]
    reading += " The axis begins below all values after a tenth of the run."
    late = np.concatenate([line.values.mean(axis=0)[line.x >= START * line.x[-1]] for line in lines])
    bottom = float(late.min() - 0.04 * (np.ptp(late) or 1.0))
    return [Chart(title, lines, xlabel, "training ELBO", bottom=bottom, reading=reading)]


def _line(estimator: str, runs: Sequence[Run], metric: str) -> Line | None:
    """Return the values of runs at the steps that all of them have; None if there are none."""
    curves = [run.records.curves[metric] for run in runs]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    if not steps:
        return None
    look, values = appearance(estimator), np.array([[curve[step] for step in steps] for curve in curves])
    if runs[0].state != "complete":
        look = look._replace(label=f"{look.label}, seed {runs[0].seed}, to step {steps[-1]:,}", style="dotted")
    return Line(*look, np.array(steps, float), values)
