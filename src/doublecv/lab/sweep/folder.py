"""sweep.json, written before the first run, and again when there are more to come."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from doublecv.lab.common import run_folder
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import LOCK, locked, write_atomically
from doublecv.lab.common.records import seal_document
from doublecv.lab.sweep.sweep import FILE, Sweep, SweepRun, as_json, load
from doublecv.lab.sweep.targets import TARGETS, Only


def plan(
    folder: Path, targets: Sequence[str], steps: int | None, seeds: Sequence[int], only: Only, command: str
) -> Sweep:
    """The sweep that the targets ask for; a run that several of them ask for is there once."""
    runs: dict[str, SweepRun] = {}
    for target in targets:
        for name, kind, settings in TARGETS[target].runs(steps, seeds, only):
            asked_by = runs[name].targets if name in runs else ()
            runs[name] = SweepRun(name, kind, folder / "runs" / name, settings, (*asked_by, target))
    return Sweep(
        folder,
        tuple(targets),
        command,
        steps,
        tuple(seeds),
        {key: tuple(values) for key, values in only.items()},
        {"python": platform.python_version()} | {package: version(package) for package in run_folder.PACKAGES},
        {"processor": processor(), "cores": cores()},
        tuple(sorted(runs.values(), key=_turn)),
    )


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other sweeps out of it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        yield


def begin(wanted: Sweep) -> Sweep:
    """Write the sweep into its folder, together with what the folder's sweep held before."""
    folder = wanted.folder
    if (folder / FILE).exists():
        wanted = _together(load(folder), wanted)
    elif folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
        raise InputError(f"--out {folder} is not empty and holds no sweep; name a new folder, or the one of a sweep")
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FILE, seal_document(as_json(wanted)))
    return wanted


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _together(before: Sweep, wanted: Sweep) -> Sweep:
    folder = wanted.folder
    if before.steps != wanted.steps and _trains(before) and _trains(wanted):
        begun, given = (f"--steps {sweep.steps}" if sweep.steps else "the paper's steps" for sweep in (before, wanted))
        raise InputError(f"--out {folder} was begun with {begun}, got {given}; name another folder")
    runs = {run.name: run for run in before.runs}
    for run in wanted.runs:
        held = runs.get(run.name, run)
        for key in held.settings.keys() & run.settings.keys():
            if held.settings[key] != run.settings[key]:
                raise InputError(
                    f"{folder / FILE} has {run.name} with {key} {held.settings[key]}, and here it is "
                    f"{run.settings[key]}; name another folder"
                )
        runs[run.name] = replace(held, targets=tuple(dict.fromkeys((*held.targets, *run.targets))))
    return replace(
        wanted,
        targets=tuple(dict.fromkeys((*before.targets, *wanted.targets))),
        command="\n".join(dict.fromkeys((*before.command.splitlines(), wanted.command))),
        steps=wanted.steps if _trains(wanted) else before.steps,
        seeds=tuple(sorted({*before.seeds, *wanted.seeds})),
        only=_either(before.only, wanted.only),
        runs=tuple(sorted(runs.values(), key=_turn)),
    )


def _trains(sweep: Sweep) -> bool:
    return any(run.kind == "train" for run in sweep.runs)


def _either(before: Mapping[str, tuple[str, ...]], wanted: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """What both together are restricted to: a key that one of them leaves open is open."""
    return {key: tuple(dict.fromkeys((*before[key], *wanted[key]))) for key in before if key in wanted}


def _turn(run: SweepRun) -> tuple[int, int]:
    """Benchmarks come first, when nothing else runs; then the toy problem, which is short; then seed by seed."""
    return ("bench", "toy", "train").index(run.kind), run.settings.get("seed", 0)


def processor() -> str:
    """The name of the processor, which Python itself does not know on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
