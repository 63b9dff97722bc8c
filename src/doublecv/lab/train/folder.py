"""What a training run's folder says of itself: settings.json, written before the first step."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from doublecv.lab.common import run_folder
from doublecv.lab.common.errors import InputError
from doublecv.lab.train.checkpoint import write_atomically
from doublecv.lab.train.settings import TrainSettings

FILE = "settings.json"


@dataclass(frozen=True)
class Plan:
    """A run, and how it is carried out.

    Attributes:
        settings: what is trained.
        seeds: how many seeds, from `settings.seed` on.
        parallel_seeds: whether the seeds run as one program, or else one after another, each in its own folder.
        data_dir: where the data are, as a string; None for where they are found.
        tensorboard: whether TensorBoard events are written.
    """

    settings: TrainSettings
    seeds: int = 1
    parallel_seeds: bool = False
    data_dir: str | None = None
    tensorboard: bool = False

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(range(self.settings.seed, self.settings.seed + self.seeds))

    def of_seed(self, seed: int) -> Plan:
        """The same for one seed."""
        return replace(self, settings=replace(self.settings, seed=seed), seeds=1, parallel_seeds=False)

    def check(self) -> None:
        """Raise an `InputError` where something cannot work."""
        self.settings.check()
        if self.seeds < 1:
            raise InputError(f"--seeds must be at least 1, got {self.seeds}")


def write(folder: Path, plan: Plan) -> None:
    """Claim a new or empty folder for the plan."""
    with suppress(NotADirectoryError):
        (folder / f".{FILE}-partial").unlink(missing_ok=True)
    run_folder.claim(folder, settings_as_json(plan.settings))
    described = asdict(plan) | {"settings": settings_as_json(plan.settings)}
    write_atomically(folder / FILE, (json.dumps(described, indent=2) + "\n").encode())


def read(folder: Path) -> Plan:
    """The plan of a folder, or an `InputError`."""
    path = folder / FILE
    try:
        described = json.loads(path.read_text())
        given = described.pop("settings")
        known = {field.name for field in fields(TrainSettings)}
        if unknown := sorted(given.keys() - known):
            raise InputError(f"{path} has settings that this version does not know: {', '.join(unknown)}")
        given["compare_variance"] = tuple(given["compare_variance"])
        return Plan(TrainSettings(**given), **described)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{folder} holds no training run: there is no {path}; begin one with --out") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read ({error}); begin again with --out and a new folder") from error


def is_begun(folder: Path) -> bool:
    """Whether the folder holds a training run, finished or not."""
    return (folder / FILE).is_file()


def is_finished(folder: Path) -> bool:
    """Whether the folder holds a whole run: its last file is there, and is whole."""
    try:
        json.loads((folder / run_folder.CONFIG).read_text())
    except (OSError, ValueError):
        return False
    return True


def settings_as_json(settings: TrainSettings) -> dict[str, Any]:
    """The settings as they come back from a JSON file."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return plain
