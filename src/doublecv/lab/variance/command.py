"""Run `doublecv variance`: measure, print each result at once, and write the numbers and the tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from doublecv import estimators
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import locked, write_atomically
from doublecv.lab.common.options import Option, ProgramSettings
from doublecv.lab.common.tables import Entry, Table, number, significant, words
from doublecv.lab.train.settings import trainable

if TYPE_CHECKING:
    from doublecv.lab.variance.measure import Measurement

NUMBERS, TABLES = "variance.json", "variance.md"


@dataclass(frozen=True)
class VarianceSettings(ProgramSettings):
    """Measure the variance of estimators at the parameters of trained models.

    Example: doublecv variance runs/double-cv --samples 2 4 --out variance
    """

    runs: Annotated[tuple[Path, ...], Option(metavar="RUN", positional=True)]
    """Folders of training runs; the newest checkpoint of each is used."""
    out: Annotated[Path, Option(metavar="DIR")]
    """The folder for the numbers (variance.json) and the tables (variance.md); earlier measurements in it are kept."""
    estimators: Annotated[tuple[str, ...], Option(metavar="NAME", names=trainable, what="estimator")] = ()
    """Names of registered estimators; if none is given, all except r-star."""
    samples: Annotated[tuple[int, ...], Option(minimum=2, maximum=1000)] = (2, 3, 4)
    """The numbers of samples K."""
    draws: Annotated[int, Option(minimum=2, maximum=1_000_000)] = 256
    """The number of estimates per variance, and as many for the best linear coefficients."""
    fit_steps: Annotated[int, Option(minimum=0, maximum=2**31 - 1)] = 2000
    """The number of steps in which other coefficients are learned on the frozen model."""
    data_dir: Annotated[Path | None, Option(metavar="DIR")] = None
    """The folder to search for the data first."""

    def check(self) -> None:
        """Raise an `InputError` if a setting cannot work."""
        super().check()
        if not self.samples:
            raise InputError("--samples needs at least one value")


def main(settings: VarianceSettings) -> None:
    """Measure all runs and write the results after each measurement."""
    settings.check()
    settings.out.mkdir(parents=True, exist_ok=True)
    with locked(settings.out):
        _measure(settings)


def _measure(settings: VarianceSettings) -> None:
    from rich.console import Console

    from doublecv.lab.variance.measure import measure

    found = earlier_measurements(settings)
    names = settings.estimators or trainable()
    console = Console()
    for run in settings.runs:
        before = [one for one in found if one.run == str(run.resolve())]
        for one in measure(run, names, settings.samples, settings.draws, settings.fit_steps, settings.data_dir, before):
            console.print(
                f"{one.dataset} {one.likelihood} {one.steps:>6} steps  K={one.samples}  {one.estimator:<30} "
                f"{one.variance:.4g} +- {one.standard_error:.1g}  {one.relative:.3f} x RLOO",
                highlight=False,
                soft_wrap=True,
            )
            if one not in found:
                found.append(one)
                _write(settings, found)
    console.print(f"written to {settings.out}", highlight=False, soft_wrap=True, markup=False)


def _write(settings: VarianceSettings, found: Sequence[Measurement]) -> None:
    numbers = {"draws": settings.draws, "fit_steps": settings.fit_steps, "measured": [one.as_json() for one in found]}
    write_atomically(settings.out / NUMBERS, (json.dumps(numbers, indent=1) + "\n").encode())
    write_atomically(settings.out / TABLES, tables(found).encode())


def earlier_measurements(settings: VarianceSettings) -> list[Measurement]:
    """Return what an earlier command wrote into the folder, or raise an `InputError` if it is not comparable."""
    from doublecv.lab.variance.measure import Measurement

    path = settings.out / NUMBERS
    if not path.exists():
        return []
    try:
        numbers = json.loads(path.read_bytes())
        found = [msgspec.convert(one, Measurement) for one in numbers["measured"]]
        held = {"--draws": numbers["draws"], "--fit-steps": numbers["fit_steps"]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged or from another version ({type(error).__name__}: {error}); name another folder in --out"
        ) from error
    for (flag, value), given in zip(held.items(), (settings.draws, settings.fit_steps), strict=True):
        if value != given:
            raise InputError(f"{path} was measured with {flag} {value}, got {given}; name another folder in --out")
    return found


def tables(found: Sequence[Measurement]) -> str:
    """Return one Markdown table per model, with a row per estimator and columns per number of samples."""
    models = sorted({(one.dataset, one.likelihood, one.steps) for one in found})
    return "\n".join(
        _table(model, [one for one in found if (one.dataset, one.likelihood, one.steps) == model]) for model in models
    )


def _table(model: tuple[str, str, int], found: Sequence[Measurement]) -> str:
    cells = {(one.estimator, one.samples): one for one in found}
    rows = []
    for name in [name for name in estimators.names() if any(one.estimator == name for one in found)]:
        row = {"estimator": words(name)}
        for samples in sorted({one.samples for one in found}):
            one = cells.get((name, samples))
            row |= {
                f"K = {samples}": Entry() if one is None else significant(one.variance, 4, one.standard_error),
                f"K = {samples}, / RLOO": Entry() if one is None else number(one.relative, 3),
                f"K = {samples}, times evaluations": (
                    Entry() if one is None else significant(one.variance_times_evaluations, 4)
                ),
            }
        rows.append(row)
    dataset, likelihood, steps = model
    title = f"{dataset}, {likelihood} likelihood, {steps:,} steps"
    caption = "Variance +- its standard error, relative to RLOO's, and times the evaluations of f."
    return Table.of("variance", title, caption, rows).to_markdown()
