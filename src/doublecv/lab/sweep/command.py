"""`doublecv reproduce`: from the names of tables and figures to a folder with their runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from doublecv import estimators
from doublecv.lab.common.errors import InputError, interruption, unknown_name
from doublecv.lab.common.options import SEED, Option, ProgramSettings
from doublecv.lab.data import NAMES as DATASETS
from doublecv.lab.data import load
from doublecv.lab.sweep import engine
from doublecv.lab.sweep import plan as plans
from doublecv.lab.sweep.engine import LOCAL, LocalWorkers, RayWorkers, ray_session
from doublecv.lab.sweep.plan import ALL, LIKELIHOODS, LOG, NETWORKS, SEEDS, TARGETS, Only, Sweep, SweepRun, cores
from doublecv.lab.sweep.progress import SweepProgress, duration, multiplications_per_second, work
from doublecv.lab.sweep.worker import single_threaded

KEYS = {
    "dataset": DATASETS,
    "likelihood": LIKELIHOODS,
    "network": NETWORKS,
    "samples": ("2", "4"),
    "estimator": tuple(estimators.names()),
    "decoder-samples": plans.DECODER_SAMPLES,
}
"""The keys of --only and their values."""

TARGET = Option(metavar="TARGET", positional=True, names=lambda: (*TARGETS, ALL), what="target")


@dataclass(frozen=True)
class ReproduceSettings(ProgramSettings):
    """Run the experiments behind tables and figures of Titsias and Shi (2022).

    A sweep can be interrupted at any moment; the same command resumes it. --list shows the targets with the number of
    their runs and the time that they take on this machine.

    Example: doublecv reproduce table-k2-bernoulli --steps 20000 --seeds 1 2 --only dataset=mnist --out reproduction
    """

    targets: Annotated[tuple[str, ...], TARGET] = ()
    """Tables and figures by name, or `all`."""
    list: bool = False
    """Show the targets, the number of their runs, and an estimate of their time on this machine."""
    steps: Annotated[int | None, Option(minimum=1, maximum=10**9)] = None
    """Steps of a training run; without it the paper's 1,000,000. Fewer than 2000 also shorten the toy problem."""
    seeds: Annotated[tuple[int, ...], Option(minimum=SEED.minimum, maximum=SEED.maximum, unique=True)] = SEEDS
    """The seeds."""
    only: Annotated[tuple[str, ...], Option(metavar="KEY=VALUE,...")] = ()
    """Restrict the targets by dataset=, likelihood=, network=, samples= or estimator=. Data sets and estimators that
    the paper does not have are also accepted; decoder-samples=independent trains as the paper's DisARM and ARMS do."""
    cluster: Annotated[str | None, Option(metavar="ADDRESS", without_value=LOCAL)] = None
    """Run on the Ray cluster at ADDRESS, or without an address on one that is started on this machine."""
    out: Annotated[Path | None, Option(metavar="DIR")] = None
    """The folder of the sweep: a new one, or one to resume or to extend."""

    def check(self) -> None:
        """Raise an `InputError` where settings do not fit together."""
        super().check()
        restrictions(self.only)
        if not self.list and not self.targets:
            raise InputError(f"name a target, or {ALL}; --list shows them")
        if not self.list and self.out is None:
            raise InputError("--out DIR is missing: the folder of the sweep")

    @property
    def selected(self) -> tuple[str, ...]:
        """The targets that are meant, each once."""
        return tuple(TARGETS) if ALL in self.targets or not self.targets else tuple(dict.fromkeys(self.targets))

    def as_command(self) -> str:
        """Return the command line that gives these settings."""
        words = ["doublecv", "reproduce", *self.targets]
        words += [] if self.steps is None else ["--steps", str(self.steps)]
        words += [] if self.seeds == ReproduceSettings.seeds else ["--seeds", *map(str, self.seeds)]
        words += ["--only", *self.only] if self.only else []
        words += [] if self.cluster is None else ["--cluster", *([] if self.cluster == LOCAL else [self.cluster])]
        return shlex.join([*words, "--out", str(self.out)])


def restrictions(given: Sequence[str]) -> Only:
    """Return the keys and values of --only, or raise an `InputError`."""
    only: dict[str, tuple[str, ...]] = {}
    for words in given:
        key, equals, values = words.partition("=")
        if not equals:
            raise InputError(f"--only must be KEY=VALUE,... with a key among {', '.join(KEYS)}; got {words!r}")
        if key not in KEYS:
            raise unknown_name("--only key", key, KEYS)
        if key in only:
            raise InputError(f"--only must name {key} once, with commas between its values")
        only[key] = tuple(dict.fromkeys(values.split(",")))
        for value in only[key]:
            if value not in KEYS[key]:
                raise unknown_name(f"--only {key}", value, KEYS[key])
    return only


def main(settings: ReproduceSettings) -> None:
    """Show the list, or run the targets' runs."""
    only = restrictions(settings.only)
    if settings.list:
        show(settings.selected, settings.steps, settings.seeds, only)
        return
    assert settings.out is not None
    wanted = plans.plan(settings.out, settings.selected, settings.steps, settings.seeds, only, settings.as_command())
    if not wanted.runs:
        raise InputError(f"nothing is left of {' '.join(settings.targets)} with --only {' '.join(settings.only)}")
    # Once, before many processes need them.
    for dataset in {run.settings["dataset"] for run in wanted.runs if run.kind == "train"} - {"digits"}:
        load(dataset)
    session = nullcontext() if settings.cluster is None else ray_session(settings.cluster, cores())
    with session, plans.claimed(settings.out):
        sweep = plans.begin(wanted)
        names = {run.name for run in wanted.runs}
        runs = [run for run in sweep.runs if run.name in names]
        try:
            failed = run_all(sweep, runs, settings.cluster is not None)
        except KeyboardInterrupt:
            print(f"to resume: {settings.as_command()}", file=sys.stderr)
            raise
    if failed:
        print(f"{len(failed)} of {len(runs)} runs failed; to try again: {settings.as_command()}", file=sys.stderr)
        sys.exit(1)
    folder = shlex.quote(str(settings.out))
    print(f"{_count(len(runs), 'run')} done; to look at them: doublecv report {folder}")


def run_all(sweep: Sweep, runs: Sequence[SweepRun], on_ray: bool) -> list[SweepRun]:
    """Run the runs here or on Ray until all have ended or Ctrl-C was pressed; return those that failed."""
    # A benchmark measures this machine, whose name is in sweep.json, and has it for itself.
    timed, others = ([run for run in runs if (run.kind == "bench") is bench] for bench in (True, False))
    with interruption() as asked, SweepProgress(runs) as progress:
        with closing(LocalWorkers(sweep, 1, {"COLUMNS": "120"})) as one:
            engine.run(timed, one, progress, asked)
        workers = RayWorkers(sweep) if on_ray else LocalWorkers(sweep, cores(), single_threaded())
        with closing(workers):
            engine.run(others, workers, progress, asked)
    failed = [run for run in runs if progress.ended.get(run.name) == "failed"]
    for run in failed:
        where = f"; its log is {run.folder / LOG}" if (run.folder / LOG).exists() else ""
        print(f"failed: {run.name}: {progress.reasons[run.name]}{where}", file=sys.stderr)
    if asked():
        raise KeyboardInterrupt
    return failed


def show(targets: Sequence[str], steps: int | None, seeds: Sequence[int], only: Only) -> None:
    """Print the targets, the number of their runs, and an estimate of the time that they take here."""
    from rich.console import Console

    from doublecv.lab.common.tables import Entry, Row, Table, number, words

    def row(heading: str, summary: str, *names: str) -> Row:
        runs = plans.plan(Path(), names, steps, seeds, only, "").runs
        seconds = sum(map(work, runs)) / speed / min(cores(), max(1, len(runs)))
        shown = Entry(duration(seconds), seconds)
        return {"target": words(heading), "what it shows": words(summary), "runs": number(len(runs), 0), "time": shown}

    speed = multiplications_per_second()
    rows = [row(name, TARGETS[name].summary, name) for name in targets]
    if len(targets) > 1:
        rows += [row(ALL if len(targets) == len(TARGETS) else "together", "", *targets)]
    title = f"{steps or plans.PAPER_STEPS:,} steps, {_count(len(seeds), 'seed')}"
    caption = (
        f"time on {_count(cores(), 'core')}: a training step of RLOO with K = 2 was measured here, the others "
        "are estimated from their multiplications; a run that targets share is one run"
    )
    Console().print(Table.of("targets", title, caption, rows))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
