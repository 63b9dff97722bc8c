"""`doublecv reproduce`: from the names of tables and figures to a folder with their runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches

from doublecv import estimators
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.signals import interruption
from doublecv.lab.data import NAMES as DATASETS
from doublecv.lab.data import load as load_dataset
from doublecv.lab.sweep import local as sweep_local
from doublecv.lab.sweep import ray as cluster
from doublecv.lab.sweep.arguments import ReproduceArguments
from doublecv.lab.sweep.folder import begin, claimed, cores, plan
from doublecv.lab.sweep.progress import SweepProgress
from doublecv.lab.sweep.sweep import LOG, Sweep, SweepRun
from doublecv.lab.sweep.targets import ALL, LIKELIHOODS, NETWORKS, TARGETS

KEYS = {
    "dataset": DATASETS,
    "likelihood": LIKELIHOODS,
    "network": NETWORKS,
    "samples": ("2", "4"),
    "estimator": tuple(estimators.names()),
}
"""What --only may name, and the values that there are."""


def main(arguments: ReproduceArguments) -> None:
    """Show the list, or carry out the targets' runs."""
    targets, only = _targets(arguments.targets), _only(arguments.only)
    _check(arguments)
    if arguments.list:
        from doublecv.lab.sweep.listing import show

        show(targets or tuple(TARGETS), arguments.steps, arguments.seeds, only)
        return
    if not targets:
        raise InputError("name a target, or all; --list shows them")
    if arguments.out is None:
        raise InputError("--out DIR is missing: the folder of the sweep")
    command = as_command(arguments)
    wanted = plan(arguments.out, targets, arguments.steps, arguments.seeds, only, command)
    if not wanted.runs:
        raise InputError(f"nothing is left of {' '.join(arguments.targets)} with --only {' '.join(arguments.only)}")
    # What must be downloaded is, once, before many processes want it.
    for dataset in {run.settings["dataset"] for run in wanted.runs if run.kind == "train"} - {"digits"}:
        load_dataset(dataset)
    with _place(arguments.cluster), claimed(arguments.out):
        sweep = begin(wanted)
        names = {run.name for run in wanted.runs}
        runs = [run for run in sweep.runs if run.name in names]
        try:
            failed = _carry_out(sweep, runs, arguments.cluster is not None)
        except KeyboardInterrupt:
            print(f"to go on: {command}", file=sys.stderr)
            raise
    if failed:
        print(f"{len(failed)} of {len(runs)} runs failed; to try them again: {command}", file=sys.stderr)
        sys.exit(1)
    folder = shlex.quote(str(arguments.out))
    print(f"{len(runs)} {'runs are' if len(runs) > 1 else 'run is'} done; to look at them: doublecv report {folder}")


def _place(address: tuple[str, ...] | None) -> AbstractContextManager[None]:
    """This machine, or a Ray cluster."""
    return nullcontext() if address is None else cluster.joined(next(iter(address), None), cores())


def _carry_out(sweep: Sweep, runs: Sequence[SweepRun], on_ray: bool) -> list[SweepRun]:
    """Do the runs here or on Ray, until all have ended or Ctrl-C says stop; those that failed."""
    with interruption() as asked, SweepProgress(runs) as progress:
        # A benchmark is of this machine, whose name is in sweep.json.
        here = [run for run in runs if run.kind == "bench" or not on_ray]
        sweep_local.carry_out(sweep, here, cores(), progress, asked)
        if on_ray:
            cluster.carry_out(sweep, [run for run in runs if run.kind != "bench"], progress, asked)
    failed = [run for run in runs if progress.ended.get(run.name) == "failed"]
    for run in failed:
        print(f"failed: {run.name}: {progress.reasons[run.name]}; its log is {run.folder / LOG}", file=sys.stderr)
    if asked():
        raise KeyboardInterrupt
    return failed


def as_command(arguments: ReproduceArguments) -> str:
    """The command line that asks for the same."""
    words = ["doublecv", "reproduce", *arguments.targets]
    words += [] if arguments.steps is None else ["--steps", str(arguments.steps)]
    words += [] if arguments.seeds == ReproduceArguments.seeds else ["--seeds", *map(str, arguments.seeds)]
    words += ["--only", *arguments.only] if arguments.only else []
    words += [] if arguments.cluster is None else ["--cluster", *arguments.cluster]
    return shlex.join([*words, "--out", str(arguments.out)])


def _targets(given: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if name != ALL and name not in TARGETS:
            close = get_close_matches(name, [*TARGETS, ALL], n=1)
            raise InputError(
                f"unknown target {name!r}; " + (f"did you mean {close[0]!r}?" if close else "--list shows the targets")
            )
    return tuple(TARGETS) if ALL in given else tuple(dict.fromkeys(given))


def _only(given: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    only: dict[str, tuple[str, ...]] = {}
    for words in given:
        key, equals, values = words.partition("=")
        if key not in KEYS or not equals:
            raise InputError(f"--only must be KEY=VALUE,... with a key among {', '.join(KEYS)}; got {words!r}")
        if key in only:
            raise InputError(f"--only must name {key} once, with commas between its values")
        only[key] = tuple(dict.fromkeys(values.split(",")))
        for value in only[key]:
            if value not in KEYS[key]:
                close = get_close_matches(value, KEYS[key], n=1)
                raise InputError(
                    f"--only {key}= must be among {', '.join(KEYS[key])}; got {value!r}"
                    + (f", did you mean {close[0]!r}?" if close else "")
                )
    return only


def _check(arguments: ReproduceArguments) -> None:
    if arguments.steps is not None and arguments.steps < 1:
        raise InputError(f"--steps must be at least 1, got {arguments.steps}")
    if arguments.cluster is not None and len(arguments.cluster) > 1:
        raise InputError(f"--cluster takes one address, got {' '.join(arguments.cluster)}")
    seeds = arguments.seeds
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds must be one or more different numbers from 0 on, got {' '.join(map(str, seeds))}")
