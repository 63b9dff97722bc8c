"""The numbers of a report as CSV files: one row a cell, empty where there is no number."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from doublecv.lab.report.cells import Cell
from doublecv.lab.report.content import Content
from doublecv.lab.report.statistics import Estimate
from doublecv.lab.sweep.plan import PAPER_STEPS
from doublecv.lab.sweep.targets import SEEDS
from doublecv.lab.toy.results import summarise

NAMES = ("cells.csv", "order.csv", "time.csv", "toy.csv", "runs.csv")
"""The files, of which some may not be written."""


def files(content: Content) -> dict[str, str]:
    """By name, the files for which there is something to write."""
    rows = (_cells(content), _orders(content), _times(content), _toys(content), _runs(content))
    return {name: _csv(found) for name, found in zip(NAMES, rows, strict=True) if found}


def _cells(content: Content) -> list[dict[str, Any]]:
    return [
        {
            "likelihood": table.likelihood,
            "K": table.samples,
            "dataset": column.dataset,
            "network": column.network,
            "estimator": cell.estimator,
            "steps": table.steps if cell.counted else None,
            "paper_steps": PAPER_STEPS,
            "seeds": " ".join(map(str, cell.seeds)),
            "paper_seeds": len(SEEDS) if cell.paper else None,
            **_mean_and_error("train_elbo", cell.measured()),
            **_mean_and_error("paper_train_elbo", cell.paper),
            "difference": cell.difference,
            "difference_in_standard_errors": cell.difference_in_standard_errors,
            **{name: value for metric in _further(content) for name, value in _metric(cell, metric).items()},
        }
        for table in content.tables
        for column in table.columns
        for cell in column.cells
    ]


def _further(content: Content) -> list[str]:
    """All other numbers that some run recorded, in the order of the records."""
    names = (name for run in content.runs.train for line in run.result.lines for name in _numbers(line))
    return [name for name in dict.fromkeys(names) if name not in ("step", "seed", "train_elbo", "elbo")]


def _numbers(line: Mapping[str, Any]) -> Iterable[str]:
    return (name for name, value in line.items() if isinstance(value, int | float))


def _metric(cell: Cell, metric: str) -> dict[str, float | None]:
    return _mean_and_error(metric, cell.measured(metric))


def _orders(content: Content) -> list[dict[str, Any]]:
    return [
        {
            "likelihood": table.likelihood,
            "K": table.samples,
            "dataset": column.dataset,
            "network": column.network,
            "steps": table.steps,
            "estimators": " ".join(cell.estimator for cell in column.comparable),
            "kendall_tau": agreement.tau,
            "pairs": agreement.pairs,
            "agreeing_pairs": agreement.agreeing,
            "clear_pairs": agreement.clear,
            "agreeing_clear_pairs": agreement.clear_agreeing,
        }
        for table in content.tables
        for column in table.columns
        if (agreement := column.agreement) is not None
    ]


def _times(content: Content) -> list[dict[str, Any]]:
    return [
        {
            "library": table.library,
            "workload": cell.workload,
            "rloo_K": cell.baseline_samples,
            "estimator": cell.estimator,
            "K": cell.samples,
            "evaluations": cell.evaluations or None,
            "milliseconds": cell.milliseconds,
            "relative_to_rloo": cell.ratio,
            "least_of_rounds": min(cell.ratios),
            "largest_of_rounds": max(cell.ratios),
            "paper_seconds": cell.paper_seconds,
            "paper_relative_to_rloo": cell.paper_ratio,
        }
        for table in content.times
        for cell in table.cells
    ]


def _toys(content: Content) -> list[dict[str, Any]]:
    return [
        {
            "dimension": toy.result.settings.dimension,
            "K": toy.result.settings.samples,
            "iterations": toy.result.settings.iterations,
            "seeds": len(toy.result.seeds),
            "estimator": summary.name,
            "relative_variance": summary.relative_variance,
            "late_relative_variance": summary.late_relative_variance,
            "late_relative_variance_at_same_logits": summary.late_relative_variance_at_same_logits,
            "iterations_to_0.9": summary.reached,
            "final_objective": summary.final_objective,
        }
        for toy in content.runs.toy
        for summary in summarise(toy.result)
    ]


def _runs(content: Content) -> list[dict[str, Any]]:
    why = {left.run.name: left.why for left in content.runs.uncounted}
    return [
        {
            "run": run.name,
            "kind": run.kind,
            "targets": " ".join(run.targets),
            "counts": "no" if run.name in why else "yes",
            "why_not": why.get(run.name),
        }
        for run in content.sweep.runs
    ]


def _mean_and_error(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    return {
        name: None if estimate is None else estimate.mean,
        f"{name}_standard_error": None if estimate is None else estimate.standard_error,
    }


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if _is_missing(value) else value for name, value in row.items()} for row in rows)
    return text.getvalue()


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not abs(value) < float("inf"))
