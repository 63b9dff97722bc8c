"""Read the runs of a sweep: the complete ones, the unfinished ones as far as they got, and a reason for all others.

No file can stop a report: a run whose files are missing, damaged or not what the laboratory writes is "damaged" and
says why. Neither JAX nor a program of the laboratory is imported.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from doublecv import estimators
from doublecv.lab.bench.problem import BASELINE, FLOOR, Row
from doublecv.lab.common import files
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import inside
from doublecv.lab.common.records import (
    DamagedFile,
    LineReader,
    file_checksum,
    open_regular,
    read_document,
    read_fields,
    shown,
)
from doublecv.lab.sweep.plan import BENCH, FAILURE, Sweep, SweepRun
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import METRICS, Curves, ToyResults, record_iterations
from doublecv.lab.train import results as train_results
from doublecv.lab.train.settings import EXECUTION, TrainSettings
from doublecv.lab.train.settings import FILE as SETTINGS

POINTS = 400
"""The least number of records that a longer curve is drawn from."""

DRAWN = ("elbo", "encoder_variance", "train_elbo")
"""The metrics whose curves are kept; of the others only the last value is."""


@dataclass
class Records:
    """What a report needs of one seed's metrics.jsonl: the last step, the last value of every metric, and curves.

    Of a long curve an evenly spread part is kept, however many records are added, and always the last one.
    """

    step: int = 0
    last: dict[str, float] = field(default_factory=dict)
    curves: dict[str, dict[int, float]] = field(default_factory=lambda: {name: {} for name in DRAWN})
    spacings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DRAWN, 0))

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the record of a line."""
        self.step = step = record["step"]
        for name, value in record.items():
            if not isinstance(value, int | float):
                self.last.pop(name, None)
            elif name not in ("step", "seed"):
                self.last[name] = value
                if name in self.curves:
                    self._extend(name, step, value)

    def _extend(self, name: str, step: int, value: float) -> None:
        curve = self.curves[name]
        last, before = islice(chain(reversed(curve), (0, 0)), 2)
        if before and last - before < self.spacings[name]:
            del curve[last]
        curve[step] = value
        if len(curve) > 2 * POINTS:
            self.curves[name] = dict(islice(curve.items(), 0, None, 2)) | {step: value}
            first, second = islice(self.curves[name], 2)
            self.spacings[name] = second - first


@dataclass(frozen=True)
class BenchFile:
    """The content of bench.json."""

    library: str
    rounds: int
    calls: int
    rows: tuple[Row, ...]
    sealed: bool = True


@dataclass(frozen=True)
class _Config:
    """The content of config.json."""

    settings: dict[str, Any]
    versions: dict[str, str]
    platform: str = ""
    files: dict[str, str] = field(default_factory=dict)
    sealed: bool = True


@dataclass(frozen=True)
class _Checkpoint:
    metrics_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Run:
    """A run of the sweep, with its numbers or the reason why it has none.

    The state is "complete", "running", "failed", "interrupted", "not started" or "damaged", and `why` says why a run
    failed or what is damaged. A training run has settings, if these could be read, and the numbers as far as it got; a
    complete toy problem or benchmark has its results. A changed number in a sealed run would be noticed.
    """

    name: str
    state: str = "complete"
    why: str = ""
    targets: tuple[str, ...] = ()
    settings: TrainSettings | None = None
    records: Records = field(default_factory=Records)
    toy: ToyResults | None = None
    times: BenchFile | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    sealed: bool = True

    @property
    def seed(self) -> int:
        """The seed of a training run."""
        assert self.settings is not None
        return self.settings.seed


def collect(sweep: Sweep, faults: Mapping[str, str]) -> tuple[Run, ...]:
    """Read the folders of all runs; `faults` are the entries of sweep.json that cannot be read, and why."""
    path = sweep.folder / "sweep.json"
    runs = [Run(name, "damaged", why) for name, why in faults.items()]
    trained: dict[TrainSettings, str] = {}
    readers = {"train": _read_train, "toy": _read_toy, "bench": _read_bench}
    for entry in sweep.runs:
        run = Run(entry.name, targets=entry.targets)
        try:
            inside(sweep.folder, entry.folder.relative_to(sweep.folder).as_posix())
            if entry.kind == "train":
                settings = _convert(path, f"runs.{run.name}.settings", TrainSettings, entry.settings)
                run = replace(run, settings=settings)
                if (same := trained.setdefault(settings, run.name)) != run.name:
                    raise InputError(f"{same} is the same run; remove one of them from {path}")
            run = readers[entry.kind](run, entry)
        except FileNotFoundError as error:
            run = replace(run, state="damaged", why=f"there is no {error.filename}")
        except (InputError, OSError) as error:
            run = replace(run, state="damaged", why=str(error))
        runs.append(run)
    return tuple(runs)


def _unfinished(run: Run, entry: SweepRun) -> Run:
    """Return a run that is not complete with its state."""
    state, why = entry.state(), ""
    if state == "failed":
        with open_regular(entry.folder / FAILURE) as file:
            why = file.readline(1000).decode(errors="replace").strip()
    return replace(run, state="not started" if state == "waiting" else state, why=why)


def _read_train(run: Run, entry: SweepRun) -> Run:
    planned, folder, sealed = run.settings, entry.folder, True
    assert planned is not None
    reader = LineReader(folder / train_results.METRICS)
    if complete := (folder / files.CONFIG).exists():
        config = read_document(folder / files.CONFIG, _Config)
        settings = _convert(folder / files.CONFIG, "settings", TrainSettings, config.settings)
        run, sealed = replace(run, versions=config.versions | {"platform": config.platform}), config.sealed
    else:
        run, reader.unfinished = _unfinished(run, entry), True
        if not reader.path.exists():
            return run
        held = read_fields(folder / SETTINGS)
        # Version 0.1 put the settings into a field of their own.
        given = {name: value for name, value in held.get("settings", held).items() if name not in EXECUTION}
        settings = _convert(folder / SETTINGS, "settings", TrainSettings, given)
    for name, wanted in planned.as_json().items():
        found = settings.as_json()[name]
        if name not in ("steps", "seeds", "parallel_seeds") and found != wanted:
            raise InputError(f"{folder} holds a run with {name} {shown(found)}, not {shown(wanted)}")
    records = _read_records(reader, settings)
    for name in ("train_elbo", "test_elbo") if complete else ():
        if name not in records.last:
            raise DamagedFile(reader.path, "found no line with it, wanted a number", field=name)
    if run.state in ("interrupted", "failed"):
        _check_length(reader.path)
    if complete and records.step != settings.steps:
        raise DamagedFile(reader.path, f"found an end at step {records.step}, wanted {settings.steps} steps")
    return replace(run, settings=settings, records=records, sealed=sealed and reader.sealed) if records.last else run


def _check_length(path: Path) -> None:
    """Raise if lines are missing at the end of the metrics that were there when the last checkpoint was written."""
    for found in sorted(path.parent.glob("checkpoint-*/checkpoint.json"), reverse=True)[:1]:
        checkpoint = inside(path.parent, found.relative_to(path.parent).as_posix())
        wanted = read_document(checkpoint, _Checkpoint).metrics_bytes
        if (size := path.stat().st_size) < wanted:
            raise DamagedFile(path, f"found {size} bytes, wanted at least {wanted}, its length in {checkpoint}")


def _read_records(reader: LineReader, settings: TrainSettings) -> Records:
    records = Records()
    for number, record in enumerate(reader, 1):
        if record["seed"] == settings.seed:
            if not records.step <= record["step"] <= settings.steps:
                fault = f"found {record['step']}, wanted a number from {records.step} to {settings.steps}"
                raise DamagedFile(reader.path, fault, number, "step")
            records.add(record)
    return records


def _read_toy(run: Run, entry: SweepRun) -> Run:
    path, table = entry.folder / files.CONFIG, entry.folder / METRICS
    if not path.exists():
        return _unfinished(run, entry)
    config = read_document(path, _Config)
    settings = _convert(path, "settings", ToySettings, config.settings)
    wanted = config.files.get(METRICS)
    if wanted is not None and wanted != (computed := file_checksum(table)):
        raise DamagedFile(table, f"found a content with checksum {computed}, wanted {wanted}")
    try:
        toy = _read_curves(table, settings)
    except (ValueError, csv.Error) as error:
        raise DamagedFile(table, f"wanted the curves of its settings, found {shown(str(error))}") from error
    versions = config.versions | {"platform": config.platform}
    return replace(run, toy=toy, versions=versions, sealed=wanted is not None)


def _read_curves(path: Path, settings: ToySettings) -> ToyResults:
    """Read metrics.csv, whose lines are those that `doublecv.lab.toy.results.write_metrics` writes, in its order."""
    names = [one.name for one in fields(Curves)]
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    # Before the records are counted out, because damaged settings may promise any number of them.
    wanted = (-(-settings.iterations // settings.every) + 1) * settings.seeds * len(settings.estimators)
    if header[:3] != ["seed", "estimator", "iteration"] or not {*names} <= {*header} or len(rows) != wanted:
        raise ValueError(f"{len(rows)} records of {','.join(header)}")
    seeds, iterations = range(1, settings.seeds + 1), record_iterations(settings)
    places = ([str(seed), name, str(at)] for seed in seeds for name in settings.estimators for at in iterations)
    for number, (row, place) in enumerate(zip(rows, places, strict=True), 2):
        if row[:3] != place or len(row) != len(header):
            raise ValueError(f"{','.join(row)} in line {number}")
    columns = [header.index(name) for name in names]
    values = np.array([[float(row[column] or "nan") for column in columns] for row in rows])
    by_curve = values.reshape(len(seeds), len(settings.estimators), len(iterations), len(names)).transpose(1, 3, 0, 2)
    curves = {name: Curves(*found) for name, found in zip(settings.estimators, by_curve, strict=True)}
    return ToyResults(settings, iterations, curves)


def _read_bench(run: Run, entry: SweepRun) -> Run:
    path = entry.folder / BENCH
    if not path.exists():
        return _unfinished(run, entry)
    times = read_document(path, BenchFile)
    baselines = {(row.workload, row.baseline_samples) for row in times.rows if row.estimator == BASELINE}
    for index, row in enumerate(times.rows):
        if (
            row.estimator not in (*estimators.names(), FLOOR)
            or len(row.rounds) != times.rounds
            or (row.workload, row.baseline_samples) not in baselines
        ):
            fault = f"found {shown(row.estimator)} with {len(row.rounds)} rounds, wanted a registered estimator"
            raise DamagedFile(path, f"{fault} with {times.rounds}, beside {BASELINE}", field=f"rows[{index}]")
    return replace(run, times=times, sealed=times.sealed)


def _convert(path: Path, within: str, schema: Any, given: Mapping[str, Any]) -> Any:
    """Convert settings by their own class, which also checks them, and name the file where that fails."""
    try:
        return schema.from_json(given)
    except InputError as error:
        raise InputError(f"{path}, field {within}: {error}") from error
