"""Read the runs of a sweep: the complete ones, the unfinished ones as far as they got, and a reason for all others.

No file can stop a report. A run whose files are missing, damaged or not what the laboratory writes is listed in
`Collection.unread` with the file, the line, the field, what was found and what was wanted. Neither JAX nor a program of
the laboratory is imported.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from doublecv import estimators
from doublecv.lab.bench.results import BASELINE, FLOOR, Row
from doublecv.lab.common import run_folder
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import inside, is_locked
from doublecv.lab.common.records import (
    DamagedFile,
    LineReader,
    file_checksum,
    has_checksum,
    open_regular,
    read_document,
    read_fields,
    shortened,
)
from doublecv.lab.sweep.plan import BENCH, FAILURE, Sweep, SweepRun
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import METRICS, Curves, ToyResults, record_iterations
from doublecv.lab.train import metrics
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
        self._kept: list[tuple[int, float]] = []
        self._last: tuple[int, float] | None = None
        self._stride = 1
        self.count = 0

    def add(self, step: int, value: float) -> None:
        """Add a point; every second kept point is dropped when there are too many."""
        self._last = step, value
        if self.count % self._stride == 0:
            self._kept.append(self._last)
            if len(self._kept) > 2 * POINTS:
                self._kept, self._stride = self._kept[::2], 2 * self._stride
        self.count += 1

    @property
    def points(self) -> dict[int, float]:
        """The kept values by the number of steps done."""
        return dict(self._kept) | ({} if self._last is None else dict([self._last]))


@dataclass
class Records:
    """What a report needs of one seed's metrics.jsonl.

    Attributes:
        step: the number of steps at the last record.
        last: the last value of every metric.
        curves: the curves of the metrics in `DRAWN`.
    """

    step: int = 0
    last: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=lambda: {name: Curve() for name in DRAWN})

    def add(self, step: int, record: Mapping[str, Any]) -> None:
        """Add the record of a line."""
        self.step = step
        self.last.update(record)
        for name, curve in self.curves.items():
            if (value := record.get(name)) is not None:
                curve.add(step, value)


@dataclass(frozen=True, eq=False)
class TrainRun:
    """A training run that could be read.

    Attributes:
        run: the sweep's entry.
        settings: the settings, of which `steps` may be more than the sweep's if the run was extended.
        records: its numbers.
        state: "complete", "running", "failed" or "interrupted".
    """

    run: SweepRun
    settings: TrainSettings
    records: Records
    state: str


@dataclass(frozen=True, eq=False)
class ToyRun:
    """A complete run of the toy problem."""

    run: SweepRun
    results: ToyResults


@dataclass(frozen=True)
class BenchFile:
    """The content of bench.json."""

    library: str
    rounds: int
    calls: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, eq=False)
class BenchRun:
    """A complete benchmark."""

    run: SweepRun
    times: BenchFile


@dataclass(frozen=True)
class Unread:
    """A run without numbers, and why.

    Attributes:
        name: the run's name.
        targets: the targets that it is part of.
        state: "not started", "failed", "interrupted", "running" or "damaged".
        why: the reason.
        settings: the settings of a training run, where these could be read.
    """

    name: str
    targets: tuple[str, ...]
    state: str
    why: str
    settings: TrainSettings | None = None


@dataclass(frozen=True)
class _Config:
    settings: dict[str, Any]
    versions: dict[str, str]
    platform: str = ""
    files: dict[str, str] = field(default_factory=dict)


@dataclass
class Collection:
    """All runs of a sweep.

    Attributes:
        sweep: the sweep.
        train: the training runs that have numbers, complete or not.
        toy: the complete runs of the toy problem.
        bench: the complete benchmarks.
        unread: all other runs.
        versions: for each package, the versions used by the runs.
        without_checksum: the names of runs in which a changed number would not be noticed.
    """

    sweep: Sweep
    train: list[TrainRun] = field(default_factory=list)
    toy: list[ToyRun] = field(default_factory=list)
    bench: list[BenchRun] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    versions: dict[str, dict[str, None]] = field(default_factory=dict)
    without_checksum: list[str] = field(default_factory=list)

    def _add_versions(self, versions: Mapping[str, str]) -> None:
        for name, version in versions.items():
            self.versions.setdefault(name, {})[version] = None


def collect(sweep: Sweep, faults: Mapping[str, str]) -> Collection:
    """Read the folders of all runs.

    Args:
        sweep: the sweep.
        faults: the entries of sweep.json that cannot be read, and why.
    """
    found = Collection(sweep)
    found._add_versions(sweep.versions)
    found.unread += [Unread(name, (), "damaged", why) for name, why in faults.items()]
    readers = {"train": _read_train, "toy": _read_toy, "bench": _read_bench}
    for run in sweep.runs:
        try:
            inside(sweep.folder, run.folder.relative_to(sweep.folder).as_posix())
            readers[run.kind](found, run)
        except FileNotFoundError as error:
            found.unread.append(Unread(run.name, run.targets, "damaged", f"there is no {error.filename}"))
        except (InputError, OSError) as error:
            found.unread.append(Unread(run.name, run.targets, "damaged", str(error), _settings(run)))
    return found


def read_picture(folder: Path) -> str | None:
    """Return the picture of a training run as a data URL, one pixel for each of an image; None if there is none.

    The file repeats every pixel several times, in colours; the page enlarges it itself.

    Raises:
        InputError: where the file is not such a picture.
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
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise DamagedFile(path, f"no picture ({shortened(str(error))})", "a PNG file") from error
    copy = io.BytesIO()
    Image.fromarray(grey).save(copy, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(copy.getvalue()).decode()}"


def _settings(run: SweepRun) -> TrainSettings | None:
    try:
        return TrainSettings.from_json(run.settings) if run.kind == "train" else None
    except InputError:
        return None


def _state(run: SweepRun) -> tuple[str, str]:
    """Return the state of a run that is not complete, and the reason."""
    if (run.folder / FAILURE).is_file():
        with open_regular(run.folder / FAILURE) as file:
            return "failed", file.readline(1000).decode(errors="replace").strip()
    if (run.folder / "lock").is_file() and not (run.folder / "lock").is_symlink() and is_locked(run.folder):
        return "running", ""
    return ("interrupted", "") if (run.folder / "log.txt").exists() else ("not started", "")


def _read_train(found: Collection, run: SweepRun) -> None:
    path = found.sweep.folder / "sweep.json"
    planned = _converted(path, f"runs.{run.name}.settings", TrainSettings, run.settings)
    for other in found.train:
        if (other.run.settings, other.run.kind) == (run.settings, run.kind):
            raise InputError(f"{other.run.name} is the same run; remove one of them from {path}")
    if complete := (run.folder / run_folder.CONFIG).exists():
        config_path = run.folder / run_folder.CONFIG
        config = read_document(config_path, _Config)
        settings = _converted(config_path, "settings", TrainSettings, config.settings)
        state = "complete"
        found._add_versions(config.versions | {"platform": config.platform})
    else:
        state, why = _state(run)
        if not (run.folder / metrics.FILE).exists():
            found.unread.append(Unread(run.name, run.targets, state, why, planned))
            return
        held = read_fields(run.folder / SETTINGS)
        # Version 0.1 put the settings into a field of their own.
        given = {name: value for name, value in held.get("settings", held).items() if name not in EXECUTION}
        settings = _converted(run.folder / SETTINGS, "settings", TrainSettings, given)
    for name, wanted in planned.as_json().items():
        held = settings.as_json()[name]
        if name not in ("steps", "seeds", "parallel_seeds") and held != wanted:
            raise InputError(f"{run.folder} holds a run with {name} {shortened(held)}, not {shortened(wanted)}")
    reader = LineReader(run.folder / metrics.FILE, unfinished=not complete)
    records = _read_records(reader, settings)
    if complete and "train_elbo" not in records.last:
        raise DamagedFile(reader.path, "no line with it", "a number", None, "train_elbo")
    if complete and records.step != settings.steps:
        raise DamagedFile(reader.path, f"an end at step {records.step}", f"{settings.steps} steps")
    if not reader.sealed or (complete and not has_checksum(config_path)):
        found.without_checksum.append(run.name)
    if not records.last:
        found.unread.append(Unread(run.name, run.targets, state, why, planned))
        return
    found.train.append(TrainRun(run, settings, records, state))


def _read_records(reader: LineReader, settings: TrainSettings) -> Records:
    records = Records()
    for number, record in enumerate(reader, 1):
        if record["seed"] == settings.seed:
            step = record["step"]
            if not records.step <= step <= settings.steps:
                wanted = f"a number from {records.step} to {settings.steps}"
                raise DamagedFile(reader.path, str(step), wanted, number, "step")
            records.add(step, record)
    known = ((name, value) for name, value in records.last.items() if name not in ("step", "seed"))
    records.last = {name: value for name, value in known if isinstance(value, int | float)}
    return records


def _read_toy(found: Collection, run: SweepRun) -> None:
    if not (run.folder / run_folder.CONFIG).exists():
        found.unread.append(Unread(run.name, run.targets, *_state(run)))
        return
    path, table = run.folder / run_folder.CONFIG, run.folder / METRICS
    config = read_document(path, _Config)
    settings = _converted(path, "settings", ToySettings, config.settings)
    if METRICS not in config.files:
        found.without_checksum.append(run.name)
    elif config.files[METRICS] != (computed := file_checksum(table)):
        raise DamagedFile(table, f"a content with checksum {computed}", config.files[METRICS])
    found.toy.append(ToyRun(run, _read_curves(table, settings)))
    found._add_versions(config.versions | {"platform": config.platform})


def _read_curves(path: Path, settings: ToySettings) -> ToyResults:
    names = [one.name for one in fields(Curves)]
    kinds: list[tuple[str, Any]] = [("seed", int), ("estimator", str), ("iteration", int)]
    schema = msgspec.defstruct("ToyRecord", [*kinds, *((name, float | None) for name in names)], array_like=True)
    rows: dict[tuple[int, str, int], Any] = {}
    for number, row in enumerate(_csv_rows(path, [name for name, _ in kinds] + names), 2):
        try:
            record: Any = msgspec.convert([value or None for value in row], schema, strict=False)
        except msgspec.ValidationError as error:
            raise DamagedFile(path, shortened(",".join(row)), str(error), number) from error
        rows[record.seed, record.estimator, record.iteration] = record
    records = -(-settings.iterations // settings.every) + 1
    wanted = records * settings.seeds * len(settings.estimators)
    if len(rows) != wanted:
        raise DamagedFile(path, f"{len(rows)} records", f"{wanted}")
    seeds, iterations = tuple(range(1, settings.seeds + 1)), record_iterations(settings)
    try:
        curves = {
            estimator: Curves(
                **{
                    name: np.array(
                        [[getattr(rows[seed, estimator, int(at)], name) for at in iterations] for seed in seeds], float
                    )
                    for name in names
                }
            )
            for estimator in settings.estimators
        }
    except KeyError as error:
        raise DamagedFile(path, "no record", "seed {}, estimator {}, iteration {}".format(*error.args[0])) from error
    return ToyResults(settings, seeds, iterations, curves)


def _csv_rows(path: Path, header: list[str]) -> Iterator[list[str]]:
    with open_regular(path) as file:
        try:
            rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            if (found := next(rows, [])) != header:
                raise DamagedFile(path, shortened(",".join(found)), ",".join(header), 1)
            for row in rows:
                if len(row) != len(header):
                    raise DamagedFile(path, f"{len(row)} values", f"{len(header)}", rows.line_num)
                yield row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DamagedFile(path, shortened(str(error)), "comma-separated values in UTF-8") from error


def _read_bench(found: Collection, run: SweepRun) -> None:
    path = run.folder / BENCH
    if not path.exists():
        found.unread.append(Unread(run.name, run.targets, *_state(run)))
        return
    times = read_document(path, BenchFile)
    baselines = {(row.workload, row.baseline_samples) for row in times.rows if row.estimator == BASELINE}
    for index, row in enumerate(times.rows):
        place = f"rows[{index}]"
        if row.estimator not in (*estimators.names(), FLOOR):
            raise DamagedFile(path, shortened(row.estimator), "a registered estimator", None, f"{place}.estimator")
        if len(row.rounds) != times.rounds or not all(time > 0 for time in (row.milliseconds, row.ratio, *row.rounds)):
            raise DamagedFile(path, "other numbers", f"the times of {times.rounds} rounds, above 0", None, place)
        if (row.workload, row.baseline_samples) not in baselines:
            raise DamagedFile(path, f"no row of {BASELINE}", "one for this workload and K", None, place)
    if not has_checksum(path):
        found.without_checksum.append(run.name)
    found.bench.append(BenchRun(run, times))


def _converted(path: Path, within: str, schema: Any, given: Mapping[str, Any]) -> Any:
    """Convert settings by their own class, which also checks them, and name the file where that fails."""
    try:
        return schema.from_json(given)
    except InputError as error:
        raise InputError(f"{path}, field {within}: {error}") from error
