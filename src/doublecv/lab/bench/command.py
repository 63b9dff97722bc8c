"""Run `doublecv bench`: time a gradient and a training step of each estimator relative to RLOO, in JAX or PyTorch.

With --harm, measure their variance relative to RLOO's along short training runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from doublecv import estimators
from doublecv.diagnostics.timing import round_times
from doublecv.estimators import Estimator
from doublecv.lab.bench.problem import BASELINE, FLOOR, BenchSettings, Row, Workload, table
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import write_atomically
from doublecv.lab.common.records import seal_document
from doublecv.lab.common.tables import Entry, Table, number, significant, words
from doublecv.lab.common.tables import Row as TableRow
from doublecv.lab.train.settings import trainable

if TYPE_CHECKING:
    from doublecv.jax.harm import HarmRow

RECOMMENDED = ("double-cv-moments", "quadratic-double-cv", "surrogate-quadratic-double-cv")
"""The estimators that --harm measures if none is named."""


def main(settings: BenchSettings) -> None:
    """Measure, print the table and write the JSON file."""
    settings.check()
    if settings.harm:
        measure_harm(settings)
        return
    library, workloads = _library(settings)
    rows = list(measure(settings, workloads))
    Console().print(table(rows, library))
    if settings.out is not None:
        described = {"library": library, "rounds": settings.rounds, "calls": settings.calls}
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(settings.out, seal_document(described | {"rows": [*map(asdict, rows)]}))


def _library(settings: BenchSettings) -> tuple[str, Mapping[str, Workload]]:
    if settings.torch:
        import torch

        from doublecv.lab.bench import torch as bench_torch

        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads", bench_torch.WORKLOADS
    import jax

    from doublecv.lab.bench import jax as bench_jax

    return f"JAX {jax.__version__} on {jax.default_backend()}", bench_jax.WORKLOADS


def measure(settings: BenchSettings, workloads: Mapping[str, Workload]) -> Iterator[Row]:
    """Yield the rows of the table; the estimators of one workload and one K take turns."""
    for workload, (make_call, floor, steps) in workloads.items():
        for samples in settings.samples:
            chosen = _chosen(settings.estimators, samples)
            calls = {name: make_call(estimator) for name, estimator in chosen.items()}
            if floor is not None:
                calls[FLOOR] = floor(samples)
            seconds = np.array(round_times(list(calls.values()), settings.rounds * settings.calls))
            # The fastest call of a round is the one that other processes disturbed least.
            of_rounds = seconds.reshape(len(calls), settings.rounds, settings.calls).min(axis=-1)
            milliseconds = dict(zip(calls, 1000 / steps * of_rounds, strict=True))
            for name, mine in milliseconds.items():
                estimator = chosen.get(name)
                yield Row(
                    workload,
                    samples,
                    name,
                    samples if estimator is None else estimator.samples,
                    0 if estimator is None else estimator.evaluations,
                    float(np.median(mine)),
                    float(np.median(mine / milliseconds[BASELINE])),
                    float(np.median(mine / milliseconds[FLOOR])) if floor is not None else None,
                    tuple(mine.tolist()),
                )


def _chosen(given: tuple[str, ...], samples: int) -> dict[str, Estimator]:
    """Return RLOO and the chosen estimators, except those that do not support that number of samples."""
    chosen = {}
    for name in dict.fromkeys((BASELINE, *(given or trainable()))):
        try:
            estimator = estimators.make(name, samples=samples)
            # REBAR and RELAX have one sample in the comparison of the paper.
            least = estimator.needs.minimum_samples
            chosen[name] = estimators.make(name, samples=least) if estimator.needs.relaxed_points else estimator
        except ValueError as error:
            if name in given or name == BASELINE:
                raise InputError(f"--samples {samples} does not fit --estimators {name}: {error}") from error
    return chosen


def measure_harm(settings: BenchSettings) -> None:
    """Run the problems of `doublecv.jax.harm`; print the tables, and write a JSON and a Markdown file."""
    from doublecv.jax import harm

    console, rows = Console(), []
    for name in settings.estimators or RECOMMENDED:
        for problem in harm.problems():
            if (row := harm.measure(name, problem)) is not None:
                rows.append(row)
                console.print(f"{name}: {problem.name}: worst {row.worst:.3g}, mean {row.mean:.3g}")
    console.print(*(shown := harm_tables(rows)))
    if settings.out is not None:
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(settings.out, (json.dumps([*map(asdict, rows)], indent=2) + "\n").encode())
        write_atomically(settings.out.with_suffix(".md"), "\n".join(table.to_markdown() for table in shown).encode())


def harm_tables(rows: Sequence[HarmRow]) -> list[Table]:
    """Return the ratios of each estimator over all problems, and over the problems of each kind."""
    names = [*dict.fromkeys(row.estimator for row in rows)]
    kinds = [*dict.fromkeys(row.problem.split()[0] for row in rows)]

    def of_estimator(name: str) -> TableRow:
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
