"""Run `doublecv variance`: measure, print each result at once, and write the numbers and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import locked, write_atomically
from doublecv.lab.common.options import Option, ProgramSettings, flag
from doublecv.lab.common.records import read_document, seal_document
from doublecv.lab.common.tables import Entry, Table, number, significant, words
from doublecv.lab.train.settings import BOUND_ESTIMATORS, estimator_names, trainable

NUMBERS, TABLES = "variance.json", "variance.md"


def measurable() -> tuple[str, ...]:
    """Return the names of the estimators of bounds, and of those that do not need the exact mean of f."""
    return (*BOUND_ESTIMATORS, *trainable())


@dataclass(frozen=True)
class VarianceSettings(ProgramSettings):
    """Measure the variance of estimators at the parameters of trained models.

    Example: doublecv variance runs/double-cv --samples 2 4 --out variance
    """

    runs: Annotated[tuple[Path, ...], Option(metavar="RUN", positional=True)]
    """Folders of training runs; the newest checkpoint of each is used."""
    out: Annotated[Path, Option(metavar="DIR")]
    """The folder for the numbers (variance.json) and the tables (variance.md); earlier measurements in it are kept."""
    estimators: Annotated[tuple[str, ...], Option(metavar="NAME", names=measurable, what="estimator")] = ()
    """Names of estimators; if none is given, all that support the model, except r-star."""
    samples: Annotated[tuple[int, ...], Option(minimum=2, maximum=1000)] = (2, 3, 4)
    """The numbers of samples K; of groups of S samples for a model that was trained with --objective iwae."""
    draws: Annotated[int, Option(minimum=2, maximum=1_000_000)] = 256
    """The number of estimates per variance, and as many for the best linear coefficients."""
    fit_steps: Annotated[int, Option(minimum=0, maximum=2**31 - 1)] = 2000
    """The number of steps in which other coefficients are learned on the frozen model."""
    data_dir: Annotated[Path | None, Option(metavar="DIR")] = None
    """The folder to search for the data first."""


@dataclass(frozen=True)
class Measurement:
    """Hold the variance of one estimator at the model of a run.

    The variance is that of an image's gradient in the logits, averaged over images and logits. The gradient in a logit
    of a second layer, of which every sample has its own, is the sum over the samples. `relative` is the variance over
    that of RLOO, or of VIMCO for a bound, with the same K; `bound_samples` is S, 1 for a model trained on the ELBO.
    """

    run: str
    dataset: str
    likelihood: str
    steps: int
    trained_with: str
    estimator: str
    samples: int
    evaluations: int
    variance: float
    standard_error: float
    relative: float
    network: str = "nonlinear"
    bound_samples: int = 1

    @property
    def model(self) -> tuple[str, str, str, int, int]:
        """What the measurements of one table have in common."""
        return self.dataset, self.likelihood, self.network, self.bound_samples, self.steps

    @property
    def first(self) -> str:
        """The estimator that the variances are relative to."""
        return "RLOO" if self.bound_samples == 1 else "VIMCO"


@dataclass(frozen=True)
class Numbers:
    """Hold the content of variance.json."""

    draws: int
    fit_steps: int
    measured: list[Measurement]


def main(settings: VarianceSettings) -> None:
    """Measure all runs and write the results after each measurement."""
    from doublecv.lab.variance.measure import measure

    settings.check()
    out = settings.out
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        found = earlier_measurements(settings)
        for run in settings.runs:
            for one in measure(run, settings, [one for one in found if one.run == str(run.resolve())]):
                print(
                    f"{one.dataset} {one.likelihood} {one.steps:>6} steps  K={one.samples}  {one.estimator:<30} "
                    f"{one.variance:.4g} +- {one.standard_error:.1g}  {one.relative:.3f} x {one.first}",
                    flush=True,
                )
                if one not in found:
                    found.append(one)
                    numbers = Numbers(settings.draws, settings.fit_steps, found)
                    write_atomically(out / NUMBERS, seal_document(asdict(numbers)))
                    write_atomically(out / TABLES, tables(found).encode())
    print(f"written to {out}")


def earlier_measurements(settings: VarianceSettings) -> list[Measurement]:
    """Return what an earlier command wrote into the folder, or raise an `InputError` if it is not comparable."""
    path = settings.out / NUMBERS
    if not path.exists():
        return []
    numbers = read_document(path, Numbers)
    for name in ("draws", "fit_steps"):
        if (held := getattr(numbers, name)) != (given := getattr(settings, name)):
            raise InputError(f"{path} was measured with {flag(name)} {held}, got {given}; name another folder in --out")
    return numbers.measured


def tables(found: Sequence[Measurement]) -> str:
    """Return one Markdown table per model, with a row per estimator and columns per number of samples."""
    models = sorted({one.model for one in found})
    return "\n".join(_table([one for one in found if one.model == model]) for model in models)


def _table(found: Sequence[Measurement]) -> str:
    cells = {(one.estimator, one.samples): one for one in found}
    first, rows = found[0].first, []
    for name in [name for name in estimator_names() if any(one.estimator == name for one in found)]:
        row = {"estimator": words(name)}
        for K in sorted({one.samples for one in found}):
            one, entries = cells.get((name, K)), [Entry()] * 3
            if one is not None:
                cost = significant(one.variance * one.evaluations, 4)
                entries = [significant(one.variance, 4, one.standard_error), number(one.relative, 3), cost]
            row |= zip((f"K = {K}", f"K = {K}, / {first}", f"K = {K}, times evaluations"), entries, strict=True)
        rows.append(row)
    dataset, likelihood, network, bound_samples, steps = found[0].model
    title = f"{dataset}, {likelihood} likelihood, {'' if network == 'nonlinear' else f'{network}, '}{steps:,} steps"
    title += f", bound with {bound_samples} samples" if bound_samples > 1 else ""
    caption = f"Variance +- its standard error, relative to {first}'s, and times the evaluations."
    return Table.of("variance", title, caption, rows).to_markdown()
