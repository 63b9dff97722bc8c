"""A sweep: a folder with the runs of one or more of the paper's tables and figures, and the plan that fills it.

::

    from doublecv.lab.sweep import plan

    sweep = plan.load(Path("results"))
    for run in sweep.runs:
        print(run.name, run.state(), run.settings["estimator"])

sweep.json describes it and is written before the first run starts. Each run has its own folder:

- kind "train": the files of `doublecv train --out` (settings.json, metrics.jsonl, pictures.png, config.json, ...);
- kind "toy": the files of `doublecv toy --out` (metrics.csv, figures, config.json), all in one run;
- kind "bench": bench.json, as `doublecv bench --out` writes it.

It also holds log.txt, the output of the run, and failure.txt, one line, if it failed.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from doublecv.lab.common import files
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import LOCK, inside, is_locked, locked, write_atomically
from doublecv.lab.common.records import convert, read_fields, seal_document, shown

FILE = "sweep.json"
FORMAT = 1
PAPER_STEPS = 1_000_000
"""The steps of a training run in the paper."""

LOG, FAILURE, BENCH = "log.txt", "failure.txt", "bench.json"

Kind: TypeAlias = Literal["train", "toy", "bench"]
State: TypeAlias = Literal["done", "running", "failed", "interrupted", "waiting"]
Only: TypeAlias = Mapping[str, Sequence[str]]
"""What the targets are restricted to: for each key, the values that are wanted."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        name: unique in the sweep; it ends with a digest of the settings.
        kind: the command whose files it has.
        settings: all settings of that command, as JSON.
        targets: the targets that it is part of. RELAX and REBAR have one sample, three evaluations of f, in the tables
            of K = 2 and of K = 4 alike, as in the paper.
        folder: runs/NAME in the folder of the sweep.
    """

    name: Annotated[str, Meta(pattern=r"^\w[\w.-]*\Z", max_length=200)]
    kind: Kind
    settings: dict[str, Any]
    targets: tuple[str, ...]
    folder: Path

    def state(self) -> State:
        """Return how far it is; "interrupted" was started and is not running, "failed" has a failure.txt."""
        if self.is_done():
            return "done"
        if is_locked(self.folder):
            return "running"
        if (self.folder / FAILURE).exists():
            return "failed"
        return "interrupted" if (self.folder / LOG).exists() else "waiting"

    def is_done(self) -> bool:
        """Return whether its last file exists, is complete and fits its checksum."""
        try:
            read_fields(self.folder / (BENCH if self.kind == "bench" else files.CONFIG))
        except (OSError, InputError):
            return False
        return True


@dataclass(frozen=True)
class Sweep:
    """The content of a sweep's folder.

    Attributes:
        command: the command that made it; one per line if there were several.
        versions: of the packages that it was planned with.
        machine: `processor` and `cores`.
        runs: all runs, in the order in which they are run.
    """

    folder: Path
    command: str
    versions: dict[str, str]
    machine: dict[str, str | int]
    runs: tuple[SweepRun, ...]

    def run(self, name: str) -> SweepRun:
        """Return the run of that name."""
        return next(run for run in self.runs if run.name == name)


def load(folder: Path, faults: dict[str, str] | None = None) -> Sweep:
    """Read the sweep in a folder, or raise an `InputError`.

    Entries of sweep.json that cannot be read, or whose folder is a link, are put into `faults` with the reason; if it
    is None, they are errors.
    """
    path = folder / FILE
    try:
        held = read_fields(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{folder} holds no sweep: there is no {path}; doublecv reproduce makes one") from error
    if held.get("format") != FORMAT:
        raise InputError(f"{path} has format {shown(held.get('format'))}, and this version reads {FORMAT}")
    sweep = convert(path, held | {"folder": folder, "runs": ()}, Sweep)
    runs: dict[str, SweepRun] = {}
    for index, entry in enumerate(convert(path, held.get("runs"), list[Any], "runs")):
        try:
            place = f"runs[{index}]"
            found = convert(path, convert(path, entry, dict, place) | {"folder": folder}, SweepRun, place)
            if found.name in runs:
                raise InputError(f"{path}, field {place}.name: {found.name} is there twice")
            runs[found.name] = replace(found, folder=inside(folder, f"runs/{found.name}"))
        except InputError as error:
            if faults is None:
                raise
            faults[f"entry {index + 1}"] = str(error)
    return replace(sweep, runs=tuple(runs.values()))


def as_json(sweep: Sweep) -> dict[str, Any]:
    """Return the content of sweep.json."""
    described = {"format": FORMAT} | asdict(sweep)
    for each in (described, *described["runs"]):
        del each["folder"]
    return described


def plan(
    folder: Path, targets: Sequence[str], steps: int | None, seeds: Sequence[int], only: Only, command: str
) -> Sweep:
    """Return the sweep that the targets ask for; a run that several of them share is there once."""
    from doublecv.lab.sweep.targets import TARGETS

    runs: dict[str, SweepRun] = {}
    for target in targets:
        for name, kind, settings in TARGETS[target].runs(steps, seeds, only):
            shared = runs[name].targets if name in runs else ()
            runs[name] = SweepRun(name, kind, settings, (*shared, target), folder / "runs" / name)
    machine: dict[str, str | int] = {"processor": processor(), "cores": cores()}
    return Sweep(folder, command, files.versions(), machine, _in_order(runs.values()))


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other sweeps out of it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        yield


def begin(wanted: Sweep) -> Sweep:
    """Write the sweep into its folder, merged with the one that the folder holds, and return the merged sweep."""
    folder = wanted.folder
    if (folder / FILE).exists():
        wanted = _merge_sweeps(load(folder), wanted)
    elif folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
        raise InputError(f"--out {folder} is not empty and holds no sweep; name a new folder, or the one of a sweep")
    inside(folder, "runs").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FILE, seal_document(as_json(wanted)))
    return wanted


def _merge_sweeps(before: Sweep, wanted: Sweep) -> Sweep:
    runs = {run.name: run for run in before.runs}
    for run in wanted.runs:
        held = runs.get(run.name, run)
        for key in held.settings.keys() & run.settings.keys():
            if held.settings[key] != run.settings[key]:
                raise InputError(
                    f"{wanted.folder / FILE} has {run.name} with {key} {held.settings[key]}, and here it is "
                    f"{run.settings[key]}; name another folder"
                )
        runs[run.name] = replace(held, targets=tuple(dict.fromkeys((*held.targets, *run.targets))))
    command = "\n".join(dict.fromkeys((*before.command.splitlines(), wanted.command)))
    return replace(wanted, command=command, runs=_in_order(runs.values()))


def _in_order(runs: Iterable[SweepRun]) -> tuple[SweepRun, ...]:
    """Sort benchmarks first, while nothing else runs; then the short toy problem; then training, seed by seed."""
    kinds = ("bench", "toy", "train")
    return tuple(sorted(runs, key=lambda run: (kinds.index(run.kind), run.settings.get("seed", 0))))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Return the name of the processor, which Python does not know on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
