"""Read the runs of a sweep: the complete ones, the unfinished ones as far as they got, and a reason for all others.

No file can stop a report. A run whose files are missing, damaged or not what the laboratory writes has the state
"damaged" and says which file, line and field it is, what was found and what was wanted. Neither JAX nor a program of
the laboratory is imported.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
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
    has_checksum,
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

PICTURES = "pictures.png"
LARGEST_PICTURE = 4_000_000
"""Pixels; a larger picture is not shown."""
ENLARGED = 4
"""The width in the file of one pixel of an image; see `doublecv.lab.vae.pictures`."""


class Curve:
    """Keep an evenly spread part of the points of a curve, however many are added, and always the last one."""

    def __init__(self) -> None:
        self._kept: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._count, self._stride = 0, 1

    def add(self, step: int, value: float) -> None:
        """Add a point; every second kept point is dropped when there are too many."""
        self._last = {step: value}
        if self._count % self._stride == 0:
            self._kept[step] = value
            if len(self._kept) > 2 * POINTS:
                self._kept, self._stride = dict(list(self._kept.items())[::2]), 2 * self._stride
        self._count += 1

    @property
    def points(self) -> dict[int, float]:
        """The kept values by the number of steps done."""
        return self._kept | self._last


@dataclass
class Records:
    """What a report needs of one seed's metrics.jsonl: the last step, the last value of every metric, and curves."""

    step: int = 0
    last: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=lambda: {name: Curve() for name in DRAWN})

    def add(self, step: int, record: Mapping[str, Any]) -> None:
        """Add the record of a line."""
        self.step = step
        for name, value in record.items():
            if not isinstance(value, int | float):
                self.last.pop(name, None)
            elif name not in ("step", "seed"):
                self.last[name] = value
                if name in self.curves:
                    self.curves[name].add(step, value)


@dataclass(frozen=True)
class BenchFile:
    """The content of bench.json."""

    library: str
    rounds: int
    calls: int
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class _Config:
    """The content of config.json."""

    settings: dict[str, Any]
    versions: dict[str, str]
    platform: str = ""
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Checkpoint:
    metrics_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Run:
    """A run of the sweep, with its numbers or the reason why it has none.

    Attributes:
        name: its name in the sweep.
        state: "complete", "running", "failed", "interrupted", "not started" or "damaged".
        why: why it failed or what is damaged.
        targets: the targets that it is part of.
        folder: the folder of its files.
        settings: the settings of a training run, where these could be read.
        records: the numbers of a training run, as far as it got; empty if there are none.
        toy: the results of a complete run of the toy problem.
        times: the results of a complete benchmark.
        versions: for each package, the version that it ran with.
        sealed: whether a changed number would be noticed.
    """

    name: str
    state: str = "complete"
    why: str = ""
    targets: tuple[str, ...] = ()
    folder: Path = Path()
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
        run = Run(entry.name, targets=entry.targets, folder=entry.folder)
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


def read_picture(folder: Path) -> str | None:
    """Return the picture of a training run as a data URL, or None; raise an `InputError` where it is not a picture.

    The file repeats every pixel several times, in colours; the URL holds one grey pixel for each of an image.
    """
    from PIL import Image

    path = folder / PICTURES
    if not path.exists():
        return None
    try:
        with open_regular(path) as file, Image.open(file, formats=("PNG",)) as picture:
            if picture.width * picture.height > LARGEST_PICTURE:
                raise DamagedFile(path, f"{picture.width} x {picture.height} pixels", "a smaller picture")
            grey = np.asarray(picture.convert("L"))[::ENLARGED, ::ENLARGED]
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DamagedFile(path, f"no picture ({shown(str(error))})", "a PNG file") from error
    copy = io.BytesIO()
    Image.fromarray(grey).save(copy, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(copy.getvalue()).decode()}"


def _unfinished(run: Run, entry: SweepRun) -> Run:
    """Return a run that is not complete with its state."""
    state, why = entry.state(), ""
    if state == "failed":
        with open_regular(entry.folder / FAILURE) as file:
            why = file.readline(1000).decode(errors="replace").strip()
    return replace(run, state="not started" if state == "waiting" else state, why=why)


def _read_train(run: Run, entry: SweepRun) -> Run:
    planned, config_path, settings_path = run.settings, entry.folder / files.CONFIG, entry.folder / SETTINGS
    assert planned is not None
    if complete := config_path.exists():
        config = read_document(config_path, _Config)
        settings = _convert(config_path, "settings", TrainSettings, config.settings)
        run = replace(run, versions=config.versions | {"platform": config.platform})
    else:
        run = _unfinished(run, entry)
        if not (entry.folder / train_results.METRICS).exists():
            return run
        held = read_fields(settings_path)
        # Version 0.1 put the settings into a field of their own.
        given = {name: value for name, value in held.get("settings", held).items() if name not in EXECUTION}
        settings = _convert(settings_path, "settings", TrainSettings, given)
    for name, wanted in planned.as_json().items():
        found = settings.as_json()[name]
        if name not in ("steps", "seeds", "parallel_seeds") and found != wanted:
            raise InputError(f"{entry.folder} holds a run with {name} {shown(found)}, not {shown(wanted)}")
    reader = LineReader(entry.folder / train_results.METRICS, unfinished=not complete)
    records = _read_records(reader, settings)
    for name in ("train_elbo", "test_elbo") if complete else ():
        if name not in records.last:
            raise DamagedFile(reader.path, "no line with it", "a number", None, name)
    if run.state in ("interrupted", "failed"):
        _check_length(reader.path)
    if complete and records.step != settings.steps:
        raise DamagedFile(reader.path, f"an end at step {records.step}", f"{settings.steps} steps")
    if not records.last:
        return run
    sealed = reader.sealed and (not complete or has_checksum(config_path))
    return replace(run, settings=settings, records=records, sealed=sealed)


def _check_length(path: Path) -> None:
    """Raise if lines are missing at the end of the metrics that were there when the last checkpoint was written."""
    for found in sorted(path.parent.glob("checkpoint-*/checkpoint.json"), reverse=True)[:1]:
        checkpoint = inside(path.parent, found.relative_to(path.parent).as_posix())
        wanted = read_document(checkpoint, _Checkpoint).metrics_bytes
        if (size := path.stat().st_size) < wanted:
            raise DamagedFile(path, f"{size} bytes", f"at least {wanted}, its length in {checkpoint}")


def _read_records(reader: LineReader, settings: TrainSettings) -> Records:
    records = Records()
    for number, record in enumerate(reader, 1):
        if record["seed"] == settings.seed:
            if not records.step <= record["step"] <= settings.steps:
                wanted = f"a number from {records.step} to {settings.steps}"
                raise DamagedFile(reader.path, str(record["step"]), wanted, number, "step")
            records.add(record["step"], record)
    return records


def _read_toy(run: Run, entry: SweepRun) -> Run:
    path, table = entry.folder / files.CONFIG, entry.folder / METRICS
    if not path.exists():
        return _unfinished(run, entry)
    config = read_document(path, _Config)
    settings = _convert(path, "settings", ToySettings, config.settings)
    sealed = METRICS in config.files
    if sealed and config.files[METRICS] != (computed := file_checksum(table)):
        raise DamagedFile(table, f"a content with checksum {computed}", config.files[METRICS])
    versions = config.versions | {"platform": config.platform}
    return replace(run, toy=_read_curves(table, settings), versions=versions, sealed=sealed)


def _read_curves(path: Path, settings: ToySettings) -> ToyResults:
    """Read metrics.csv, whose lines are those that `doublecv.lab.toy.results.write_metrics` writes, in its order."""
    names = [one.name for one in fields(Curves)]
    wanted = (-(-settings.iterations // settings.every) + 1) * settings.seeds * len(settings.estimators)
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
        try:
            header, *rows = csv.reader(file)
        except (ValueError, csv.Error) as error:
            raise DamagedFile(path, shown(str(error)), "comma-separated values in UTF-8") from error
    if header != ["seed", "estimator", "iteration", *names]:
        raise DamagedFile(path, shown(",".join(header)), ",".join(names), 1)
    if len(rows) != wanted:
        raise DamagedFile(path, f"{len(rows)} records", f"{wanted}")
    seeds, iterations = tuple(range(1, settings.seeds + 1)), record_iterations(settings)
    places = ([str(seed), name, str(at)] for seed in seeds for name in settings.estimators for at in iterations)
    for number, (row, place) in enumerate(zip(rows, places, strict=True), 2):
        if row[:3] != place or len(row) != len(header):
            raise DamagedFile(path, shown(",".join(row)), f"{','.join(place)} and {len(names)} values", number)
    try:
        values = np.array([[float(value or "nan") for value in row[3:]] for row in rows])
    except ValueError as error:
        raise DamagedFile(path, shown(str(error)), "numbers") from error
    by_curve = values.reshape(len(seeds), len(settings.estimators), len(iterations), len(names)).transpose(1, 3, 0, 2)
    curves = {name: Curves(*found) for name, found in zip(settings.estimators, by_curve, strict=True)}
    return ToyResults(settings, seeds, iterations, curves)


def _read_bench(run: Run, entry: SweepRun) -> Run:
    path = entry.folder / BENCH
    if not path.exists():
        return _unfinished(run, entry)
    times = read_document(path, BenchFile)
    baselines = {(row.workload, row.baseline_samples) for row in times.rows if row.estimator == BASELINE}
    for index, row in enumerate(times.rows):
        place = f"rows[{index}]"
        if row.estimator not in (*estimators.names(), FLOOR):
            raise DamagedFile(path, shown(row.estimator), "a registered estimator", None, f"{place}.estimator")
        if len(row.rounds) != times.rounds or not _all_positive((row.milliseconds, row.ratio, *row.rounds)):
            raise DamagedFile(path, "other numbers", f"the times of {times.rounds} rounds, above 0", None, place)
        if (row.workload, row.baseline_samples) not in baselines:
            raise DamagedFile(path, f"no row of {BASELINE}", "one for this workload and K", None, place)
    return replace(run, times=times, sealed=has_checksum(path))


def _all_positive(values: Iterable[float]) -> bool:
    return all(value > 0 for value in values)


def _convert(path: Path, within: str, schema: Any, given: Mapping[str, Any]) -> Any:
    """Convert settings by their own class, which also checks them, and name the file where that fails."""
    try:
        return schema.from_json(given)
    except InputError as error:
        raise InputError(f"{path}, field {within}: {error}") from error
