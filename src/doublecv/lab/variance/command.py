"""`doublecv variance`: measure, print as it comes, and write the tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Console

from doublecv import estimators
from doublecv.lab.common.errors import InputError
from doublecv.lab.train.checkpoint import write_atomically
from doublecv.lab.variance.arguments import VarianceArguments
from doublecv.lab.variance.at_checkpoint import Measurement, measurable, measure


def main(arguments: VarianceArguments) -> None:
    """Measure all runs, writing what there is after each measurement; what the folder holds already is kept."""
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
    found = measured_before(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    for run in arguments.runs:
        before = [one for one in found if one.run == str(run.resolve())]
        for one in measure(
            run, names, arguments.samples, arguments.draws, arguments.fit_steps, arguments.data_dir, before
        ):
            console.print(
                f"{one.data} {one.likelihood} {one.steps:>6} steps  K={one.samples}  {one.estimator:<30} "
                f"{one.variance:.4g} +- {one.standard_error:.1g}  {one.relative:.3f} x RLOO",
                highlight=False,
                soft_wrap=True,
            )
            if one not in found:
                found.append(one)
                write(arguments, found)
    console.print(f"written to {arguments.out}")


def write(arguments: VarianceArguments, found: Sequence[Measurement]) -> None:
    """The numbers and the tables of all that was measured."""
    numbers = {"draws": arguments.draws, "fit_steps": arguments.fit_steps, "measured": [one.as_json() for one in found]}
    write_atomically(arguments.out / "variance.json", (json.dumps(numbers, indent=1) + "\n").encode())
    write_atomically(arguments.out / "variance.md", tables(found).encode())


def measured_before(arguments: VarianceArguments) -> list[Measurement]:
    """What an earlier command left in the folder, if its numbers can stand beside the new ones."""
    path = arguments.out / "variance.json"
    if not path.exists():
        return []
    try:
        numbers = json.loads(path.read_text())
        found = [Measurement.from_json(one) for one in numbers["measured"]]
        settings = {key: numbers[key] for key in ("draws", "fit_steps")}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged or from another version ({type(error).__name__}: {error}); name another folder in --out"
        ) from error
    for flag, key, given in (
        ("--draws", "draws", arguments.draws),
        ("--fit-steps", "fit_steps", arguments.fit_steps),
    ):
        if settings[key] != given:
            raise InputError(
                f"{path} was measured with {flag} {settings[key]}, got {given}; name another folder in --out"
            )
    return found


def tables(found: Sequence[Measurement]) -> str:
    """For every model a Markdown table: estimators down, and the numbers of samples across."""
    models = sorted({(one.data, one.likelihood, one.steps) for one in found})
    return "\n".join(
        _table(model, [one for one in found if (one.data, one.likelihood, one.steps) == model]) for model in models
    )


def _table(model: tuple[str, str, int], found: Sequence[Measurement]) -> str:
    numbers_of_samples = sorted({one.samples for one in found})
    cells = {(one.estimator, one.samples): one for one in found}
    names = [name for name in estimators.names() if any(one.estimator == name for one in found)]

    def row(name: str) -> Iterable[str]:
        yield f"`{name}`"
        for samples in numbers_of_samples:
            one = cells.get((name, samples))
            if one is None:
                yield from ("", "", "")
                continue
            yield f"{one.variance:.4g} ± {one.standard_error:.1g}"
            yield f"{one.relative:.3f}"
            yield f"{one.variance_times_evaluations:.4g}"

    heading = ["estimator"]
    for samples in numbers_of_samples:
        heading += [f"K = {samples}", "/ RLOO", "times evaluations"]
    lines = [heading, ["---"] + ["---:"] * (len(heading) - 1), *(list(row(name)) for name in names)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    data, likelihood, steps = model
    return f"### {data}, {likelihood} likelihood, {steps:,} steps\n\n{body}\n"
