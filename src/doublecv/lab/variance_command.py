"""`doublecv variance`: measure, print as it comes, and write the tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Console

from doublecv import estimators
from doublecv.lab.checkpoint import write_atomically
from doublecv.lab.errors import InputError
from doublecv.lab.frozen import Measurement, measurable, measure
from doublecv.lab.variance_arguments import VarianceArguments


def main(arguments: VarianceArguments) -> None:
    """Measure all runs, writing what there is after each of them."""
    names = arguments.estimators or measurable()
    if unknown := [name for name in names if name not in measurable()]:
        raise InputError(f"--estimators must be among {', '.join(measurable())}; got {', '.join(unknown)}")
    if not arguments.runs:
        raise InputError("RUN must name at least one folder of a training run, got none")
    for flag, value, least in (("--draws", arguments.draws, 2), ("--fit-steps", arguments.fit_steps, 0)):
        if value < least:
            raise InputError(f"{flag} must be at least {least}, got {value}")
    if not arguments.samples or min(arguments.samples) < 2:
        raise InputError(f"--samples must be numbers of at least 2, RLOO's least, got {arguments.samples}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    console, found = Console(), list[Measurement]()
    for run in arguments.runs:
        for one in measure(run, names, arguments.samples, arguments.draws, arguments.fit_steps, arguments.data_dir):
            console.print(
                f"{one.data} {one.likelihood} {one.steps:>6} steps  K={one.samples}  {one.estimator:<30} "
                f"{one.variance:.4g} +- {one.standard_error:.1g}  {one.relative:.3f} x RLOO",
                highlight=False,
            )
            found.append(one)
        numbers = {"draws": arguments.draws, "fit_steps": arguments.fit_steps, "measured": [m.as_json() for m in found]}
        write_atomically(arguments.out / "variance.json", (json.dumps(numbers, indent=1) + "\n").encode())
        write_atomically(arguments.out / "variance.md", tables(found).encode())
    console.print(f"written to {arguments.out}")


def tables(found: Sequence[Measurement]) -> str:
    """For every data set and likelihood a Markdown table: estimators down, trained steps and K across."""
    return "\n".join(
        _table(data, likelihood, [one for one in found if (one.data, one.likelihood) == (data, likelihood)])
        for data, likelihood in dict.fromkeys((one.data, one.likelihood) for one in found)
    )


def _table(data: str, likelihood: str, found: Sequence[Measurement]) -> str:
    columns = sorted({(one.steps, one.samples) for one in found})
    cells = {(one.estimator, one.steps, one.samples): one for one in found}
    names = [name for name in estimators.names() if any(one.estimator == name for one in found)]

    def row(name: str) -> Iterable[str]:
        yield f"`{name}`"
        for steps, samples in columns:
            one = cells.get((name, steps, samples))
            yield "" if one is None else f"{one.relative:.3f} ± {one.relative * one.standard_error / one.variance:.3f}"
        yield ", ".join(
            dict.fromkeys(
                str(one.evaluations) for one in sorted(found, key=lambda m: m.samples) if one.estimator == name
            )
        )

    heading = ["estimator", *(f"{steps:,} steps, K = {samples}" for steps, samples in columns), "evaluations of f"]
    lines = [heading, ["---"] * len(heading), *(list(row(name)) for name in names)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"### {data}, {likelihood} likelihood\n\n{body}\n"
