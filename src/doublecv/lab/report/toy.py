"""The folder of a toy run, read back."""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from pathlib import Path

import numpy as np

from doublecv.lab.common import run_folder
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import METRICS, Curves, ToyResults, record_iterations


def read(folder: Path) -> ToyResults:
    """What `doublecv toy --out` wrote; a `ValueError`, `KeyError` or `OSError` where it is not that."""
    given = json.loads((folder / run_folder.CONFIG).read_text())["settings"]
    settings = ToySettings.from_json(given)
    seeds, iterations = tuple(range(1, settings.seeds + 1)), record_iterations(settings)
    with (folder / METRICS).open(newline="") as file:
        rows = {(int(row["seed"]), row["estimator"], int(row["iteration"])): row for row in csv.DictReader(file)}

    def curve(estimator: str, name: str) -> np.ndarray:
        written = [[rows[seed, estimator, int(iteration)][name] for iteration in iterations] for seed in seeds]
        return np.array([[float(value) if value else np.nan for value in of_seed] for of_seed in written])

    curves = {
        estimator: Curves(**{field.name: curve(estimator, field.name) for field in fields(Curves)})
        for estimator in settings.estimators
    }
    return ToyResults(settings, seeds, iterations, curves)
