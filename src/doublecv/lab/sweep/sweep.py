"""A sweep: a folder with the runs of one or more of the paper's tables and figures.

    from doublecv.lab.sweep import sweep

    found = sweep.load(Path("results"))
    for run in found.runs:
        print(run.name, run.state(), run.settings["estimator"])

sweep.json tells what belongs to it, and is there before the first run starts. Each run has its own folder:

- kind "train": what `doublecv train --out` writes (settings.json, metrics.jsonl, pictures.png, config.json, ...);
- kind "toy": what `doublecv toy --out` writes (metrics.csv, figures, config.json), all estimators and seeds in one run;
- kind "bench": bench.json, as `doublecv bench --out` writes it.

Besides these it holds log.txt, what the run printed, and failure.txt, one line, if it failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from doublecv.lab.common import run_folder
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import inside, is_locked
from doublecv.lab.common.records import convert, read_fields, shortened

FILE = "sweep.json"
FORMAT = 1
PAPER_STEPS = 1_000_000
"""The steps of a training run in the paper."""

LOG, FAILURE, BENCH = "log.txt", "failure.txt", "bench.json"

Kind: TypeAlias = Literal["train", "toy", "bench"]
State: TypeAlias = Literal["done", "running", "failed", "cut", "waiting"]


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        name: unique in the sweep; it ends with a digest of the settings.
        kind: which command's folder it is.
        folder: where its files are, or will be.
        settings: all settings as JSON. For "train": `dataset`, `likelihood`, `network`, `samples`, `estimator`, `seed`,
            `steps`, ...; for "toy": `dimension`, `samples`, `estimators`, `iterations`, `seeds` (how many), ...; for
            "bench": `samples` and `estimators`. RELAX and REBAR have `samples` 1, three evaluations of f, in the
            tables of K = 2 and of K = 4 alike, as in the paper: `targets` tells in which.
        targets: the targets that it is part of.
    """

    name: str
    kind: Kind
    folder: Path
    settings: Mapping[str, Any]
    targets: tuple[str, ...]

    def state(self) -> State:
        """How far it is: "cut" was begun and is not being worked on, "failed" says why in failure.txt."""
        if self.is_done():
            return "done"
        if is_locked(self.folder):
            return "running"
        if (self.folder / FAILURE).exists():
            return "failed"
        return "cut" if (self.folder / LOG).exists() else "waiting"

    def is_done(self) -> bool:
        """Whether its last file is there, and is whole."""
        try:
            json.loads((self.folder / (BENCH if self.kind == "bench" else run_folder.CONFIG)).read_text())
        except (OSError, ValueError):
            return False
        return True


@dataclass(frozen=True)
class Sweep:
    """What a sweep's folder holds.

    Attributes:
        folder: where it is.
        targets: what was asked for.
        command: the command that made it; one a line if there were several.
        steps: how many steps a training run has, None for as many as in the paper.
        seeds: the seeds.
        only: what the targets were restricted to, by key; empty if they were not.
        versions: of the packages that had a part in it.
        machine: `processor` and `cores`.
        runs: all runs, in the order in which they are carried out.
    """

    folder: Path
    targets: tuple[str, ...]
    command: str
    steps: int | None
    seeds: tuple[int, ...]
    only: Mapping[str, tuple[str, ...]]
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    runs: tuple[SweepRun, ...]

    def run(self, name: str) -> SweepRun:
        """The run of that name."""
        return next(run for run in self.runs if run.name == name)


@dataclass(frozen=True)
class _Entry:
    """One run in sweep.json."""

    name: Annotated[str, Meta(pattern=r"^[\w.-]+\Z", max_length=200)]
    kind: Kind
    folder: str
    settings: dict[str, Any]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    """The fields of sweep.json."""

    format: int
    targets: tuple[str, ...]
    command: str
    steps: int | None
    seeds: tuple[int, ...]
    only: dict[str, tuple[str, ...]]
    versions: dict[str, str]
    machine: dict[str, str | int]
    runs: tuple[Any, ...]


def load(folder: Path, faults: dict[str, str] | None = None) -> Sweep:
    """Read the sweep in a folder.

    Args:
        folder: the folder.
        faults: where to put the entries of sweep.json that cannot be read, and why; if None, they are errors.

    Raises:
        InputError: where there is no sweep, sweep.json is damaged, or the folder of a run is not inside the sweep's.
    """
    path = folder / FILE
    try:
        held = read_fields(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{folder} holds no sweep: there is no {path}; doublecv reproduce makes one") from error
    if held.get("format") != FORMAT:
        raise InputError(f"{path} has format {shortened(held.get('format'))}, and this version reads {FORMAT}")
    file = convert(path, held, _File)
    runs: dict[str, SweepRun] = {}
    for index, entry in enumerate(file.runs):
        try:
            found = convert(path, entry, _Entry, f"runs[{index}]")
            if found.name in runs:
                raise InputError(f"{path}, field runs[{index}].name: {found.name} is there twice")
            place = inside(folder, found.folder)
            runs[found.name] = SweepRun(found.name, found.kind, place, found.settings, found.targets)
        except InputError as error:
            if faults is None:
                raise
            faults[f"entry {index + 1}"] = str(error)
    return Sweep(
        folder,
        file.targets,
        file.command,
        file.steps,
        file.seeds,
        file.only,
        file.versions,
        file.machine,
        tuple(runs.values()),
    )


def as_json(sweep: Sweep) -> dict[str, Any]:
    """The content of sweep.json."""
    return {
        "format": FORMAT,
        "targets": sweep.targets,
        "command": sweep.command,
        "steps": sweep.steps,
        "paper_steps": PAPER_STEPS,
        "seeds": sweep.seeds,
        "only": sweep.only,
        "versions": sweep.versions,
        "machine": sweep.machine,
        "runs": [
            {
                "name": run.name,
                "kind": run.kind,
                "folder": run.folder.relative_to(sweep.folder).as_posix(),
                "settings": run.settings,
                "targets": run.targets,
            }
            for run in sweep.runs
        ],
    }
