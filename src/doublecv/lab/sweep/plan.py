"""A sweep: a folder with the runs of one or more of the paper's tables and figures, and the plan that fills it.

sweep.json describes it and is written before the first run starts. Each run has its own folder:

- kind "train": the files of `doublecv train --out` (settings.json, metrics.jsonl, pictures.png, config.json, ...);
- kind "toy": the files of `doublecv toy --out` (metrics.csv, figures, config.json), all in one run;
- kind "bench": bench.json, as `doublecv bench --out` writes it.

It also holds log.txt, the output of the run, and failure.txt, one line, if it failed.

The tables and figures of Titsias and Shi (2022), the targets, are listed in targets.toml. A run that several of them
show is one run: its name depends only on its settings.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from doublecv import estimators
from doublecv.lab.bench.problem import BenchSettings
from doublecv.lab.common import files
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import LOCK, inside, is_locked, locked, write_atomically
from doublecv.lab.common.records import convert, read_fields, seal_document, shown
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.train.settings import TrainSettings

FILE = "sweep.json"
FORMAT = 1
PAPER_STEPS = 1_000_000
"""The steps of a training run in the paper."""

DATASETS = ("mnist", "fashion-mnist", "omniglot")
LIKELIHOODS = ("bernoulli", "gaussian")
NETWORKS = ("nonlinear", "linear")
DECODER_SAMPLES = ("shared", "independent")
SEEDS = (1, 2, 3, 4, 5)
"""The paper has five independent runs."""

EVERY = ("record_every", "evaluate_every", "checkpoint_every")

LOG, FAILURE, BENCH = "log.txt", "failure.txt", "bench.json"

Kind: TypeAlias = Literal["train", "toy", "bench"]
State: TypeAlias = Literal["done", "running", "failed", "interrupted", "waiting"]
Only: TypeAlias = Mapping[str, Sequence[str]]
"""What the targets are restricted to: for each key, the values that are wanted."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: all settings of the command whose files it has, and the targets that it is part of.

    Its name is unique in the sweep and ends with a digest of the settings; its folder is runs/NAME.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^\w[\w.-]*\Z", max_length=200)]
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
    """The content of a sweep's folder: the runs in the order in which they are run, and the commands that made them.

    The versions are those of the packages that it was planned with; the machine has `processor` and `cores`.
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
    """Read the sweep in a folder; entries of sweep.json that cannot be read are put into `faults`, if given."""
    path = folder / FILE
    try:
        held = read_fields(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{folder} holds no sweep: there is no {path}; doublecv reproduce makes one") from error
    if held.get("format") != FORMAT:
        raise InputError(f"{path} has format {shown(held.get('format'))}, and this version reads {FORMAT}")
    sweep = convert(path, held | {"folder": folder, "runs": ()}, Sweep)
    runs: dict[str, SweepRun] = {}
    for index, entry in enumerate(convert(path, held.get("runs"), list, "runs")):
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


@dataclass(frozen=True)
class TrainTarget:
    """Autoencoders on the three data sets, one run per estimator and seed."""

    summary: str
    samples: int
    estimators: tuple[str, ...]
    likelihoods: tuple[str, ...] = LIKELIHOODS
    networks: tuple[str, ...] = NETWORKS

    def runs(self, steps: int | None, seeds: Sequence[int], only: Only) -> Iterator[SweepRun]:
        """Yield the runs, seed by seed, so that an interrupted sweep has complete tables of fewer seeds."""
        if str(self.samples) not in only.get("samples", [str(self.samples)]):
            return
        length = PAPER_STEPS if steps is None else steps
        # At least ten times per run.
        often = max(1, length // 10)
        every = {name: min(getattr(TrainSettings, name), often) for name in EVERY}
        for seed, dataset, likelihood, network, estimator, decoder in product(
            seeds,
            only.get("dataset", DATASETS),
            _selected(self.likelihoods, only, "likelihood"),
            _selected(self.networks, only, "network"),
            only.get("estimator", self.estimators),
            only.get("decoder-samples", DECODER_SAMPLES[:1]),
        ):
            samples = own_samples(estimator, self.samples)
            place: dict[str, Any] = {"dataset": dataset, "likelihood": likelihood, "network": network, "seed": seed}
            place |= {"estimator": estimator, "samples": samples, "decoder_samples": decoder}
            variant = "" if decoder == DECODER_SAMPLES[0] else f"-{decoder}"
            name = f"{dataset}-{likelihood}-{network}-{estimator}{variant}-k{samples}-seed{seed}"
            yield _planned("train", name, TrainSettings(steps=length, **every, **place))


@dataclass(frozen=True)
class ToyTarget:
    """The toy problem, one run per dimension with all its estimators and seeds."""

    summary: str
    dimensions: dict[str, tuple[str, ...]]

    def runs(self, steps: int | None, seeds: Sequence[int], only: Only) -> Iterator[SweepRun]:
        """Yield the runs; fewer steps than the paper's iterations shorten them."""
        if only.keys() - {"samples", "estimator"} or "2" not in only.get("samples", ["2"]):
            return
        if sorted(seeds) != [*range(1, len(seeds) + 1)]:
            raise InputError(f"the toy problem has the seeds 1, 2, ...; got --seeds {' '.join(map(str, seeds))}")
        iterations = ToySettings.iterations if steps is None else min(steps, ToySettings.iterations)
        for dimension, names in self.dimensions.items():
            chosen = tuple(only.get("estimator", names))
            settings = ToySettings(int(dimension), estimators=chosen, iterations=iterations, seeds=len(seeds))
            yield _planned("toy", f"toy-d{dimension}", settings)


@dataclass(frozen=True)
class BenchTarget:
    """The time per step, one run for all estimators and numbers of samples."""

    summary: str
    samples: tuple[int, ...]
    estimators: tuple[str, ...]

    def runs(self, steps: int | None, seeds: Sequence[int], only: Only) -> Iterator[SweepRun]:
        """Yield the run; it depends neither on steps and seeds nor on the likelihood, which hardly changes a step."""
        fixed = {"dataset": "fashion-mnist", "network": "nonlinear", "decoder-samples": DECODER_SAMPLES[0]}
        samples = tuple(int(K) for K in _selected(tuple(map(str, self.samples)), only, "samples"))
        if not samples or any(value not in only.get(key, [value]) for key, value in fixed.items()):
            return
        settings = BenchSettings(estimators=tuple(only.get("estimator", self.estimators)), samples=samples)
        yield _planned("bench", "bench-" + "-".join(f"k{K}" for K in samples), settings)


_CLASSES: dict[str, type[ToyTarget | TrainTarget | BenchTarget]] = {
    "toy": ToyTarget,
    "train": TrainTarget,
    "bench": BenchTarget,
}
TARGETS = {
    name: msgspec.convert(target, _CLASSES[kind])
    for kind, group in msgspec.toml.decode(resources.files(__package__).joinpath("targets.toml").read_bytes()).items()
    for name, target in group.items()
}
"""All targets by name, in the order of `--list`."""

ALL = "all"
"""The target that is all targets."""


def own_samples(estimator: str, samples: int) -> int:
    """Return K, or 1 for the relaxed control variates, which then evaluate f three times, as in the paper."""
    if estimator not in estimators.names():
        return samples
    made = estimators.make(estimator, 4)
    return made.needs.minimum_samples if made.needs.relaxed_points else samples


def _selected(of_target: Sequence[str], only: Only, key: str) -> list[str]:
    return [value for value in of_target if value in only.get(key, of_target)]


def _planned(kind: Kind, name: str, settings: TrainSettings | ToySettings | BenchSettings) -> SweepRun:
    """Name a run by the settings that differ from the defaults, so that new settings do not rename old runs."""
    settings.check()
    plain = settings.as_json()
    defaults = json.loads(json.dumps({field.name: field.default for field in fields(settings)}))
    special = {name: value for name, value in plain.items() if value != defaults[name]}
    digest = hashlib.sha256(json.dumps(special, sort_keys=True).encode()).hexdigest()
    return SweepRun(f"{name}-{digest[:8]}", kind, plain, (), Path())


def plan(
    folder: Path, targets: Sequence[str], steps: int | None, seeds: Sequence[int], only: Only, command: str
) -> Sweep:
    """Return the sweep that the targets ask for; a run that several of them share is there once."""
    runs: dict[str, SweepRun] = {}
    for target in targets:
        for run in TARGETS[target].runs(steps, seeds, only):
            shared = runs.get(run.name, run).targets
            runs[run.name] = replace(run, targets=(*shared, target), folder=folder / "runs" / run.name)
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
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
