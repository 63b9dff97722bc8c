"""A small sweep whose files are written as the laboratory writes them, with made-up numbers."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np

from doublecv.lab.common import files
from doublecv.lab.common.records import seal_document, seal_line
from doublecv.lab.sweep import plan as sweep
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import METRICS, Curves, ToyResults, record_iterations, write_metrics
from doublecv.lab.train import results
from doublecv.lab.train.settings import FILE as SETTINGS
from doublecv.lab.train.settings import TrainSettings

STEPS = 20
SHIFT = 0.5
LEVEL = {"rloo": -300.0, "double-cv": -290.0, "relax": -280.0, "disarm": -295.0}
PAPER_STEPS = 1_000_000

BENCH = {
    "library": "JAX, made-up times",
    "rounds": 2,
    "calls": 3,
    "rows": [
        {
            "workload": workload,
            "baseline_samples": samples,
            "estimator": estimator,
            "samples": 1 if estimator == "relax" else samples,
            "evaluations": 3 if estimator == "relax" else 0 if estimator == "floor" else samples,
            "milliseconds": sum(rounds) / 2,
            "ratio": (rounds[0] / 2.0 + rounds[1] / 4.0) / 2,
            "floor_ratio": None,
            "rounds": rounds,
        }
        for workload in ("gradient", "step")
        for samples in (2, 4)
        for estimator, rounds in (
            ("rloo", [2.0, 4.0]),
            ("double-cv", [2.2, 4.8]),
            ("relax", [5.0, 9.0]),
            ("floor", [1.0, 2.0]),
        )
    ],
}
"""As `doublecv bench --out` writes it."""


def train_settings(**changes):
    given = {"dataset": "fashion-mnist", "latents": 4, "batch": 10, "steps": STEPS, "record_every": 2}
    return TrainSettings(**given | {"evaluate_every": 10, "checkpoint_every": 10} | changes)


def records(settings, level, upto=None):
    """Ten records of training, two evaluations on the way, and the numbers at the end."""
    steps, seed = settings.steps, settings.seed
    for step in range(steps // 10, (upto or steps) + 1, steps // 10):
        curve = level - 10 * (1 - step / steps)
        alpha = {"alpha": step / steps} if settings.estimator == "double-cv" else {}
        train = {"elbo": curve, "encoder_variance": 1e-3 * steps / step, "logits_variance": 0.5}
        yield {"kind": "train", "step": step, "seed": seed, **train, **alpha}
        if step * 2 % steps == 0:
            yield {"kind": "evaluation", "step": step, "seed": seed, "train_elbo": curve, "validation_elbo": curve - 1}
    if upto is None:
        bounds = {"test_bound_2": level - 1.5, "test_bound_100": level - 1}
        yield {"kind": "final", "step": steps, "seed": seed, "test_elbo": level - 2, **bounds}


def write_lines(path, lines):
    checksum = 0
    with path.open("wb") as file:
        for line in lines:
            written, checksum = seal_line(line, checksum)
            file.write(written)


class TinySweep:
    """A sweep that is put together run by run."""

    def __init__(self, folder):
        self.folder, self.runs = folder, []

    def add(self, name, kind, settings, targets):
        planned = sweep.SweepRun(name, kind, settings, targets, self.folder / "runs" / name)
        self.runs.append(planned)
        return planned.folder

    def planned(self, name, targets=("table-k2-bernoulli",), **changes):
        return self.add(name, "train", train_settings(**changes).as_json(), targets)

    def train(self, name, level=None, upto=None, **changes):
        """A complete run that ends at `level`, or one that was interrupted after `upto` steps."""
        settings = train_settings(**changes)
        folder = self.planned(name, **changes)
        folder.mkdir(parents=True)
        (folder / sweep.LOG).touch()
        (folder / SETTINGS).write_bytes(seal_document(settings.as_json() | {"data_dir": None, "tensorboard": False}))
        write_lines(
            folder / results.METRICS, records(settings, LEVEL[settings.estimator] if level is None else level, upto)
        )
        if upto is None:
            files.write_config(folder, "train", settings.as_json())
        return folder

    def toy(self, name, **changes):
        settings = ToySettings(**{"dimension": 3, "iterations": 20, "seeds": 2, "every": 5} | changes)
        folder = self.add(name, "toy", settings.as_json(), ("figure-1",))
        folder.mkdir(parents=True)
        write_metrics(toy_results(settings), folder / METRICS)
        files.write_config(folder, "toy", settings.as_json(), [METRICS])

    def bench(self, name, content=None):
        settings = {"samples": [2, 4], "estimators": ["rloo", "double-cv", "relax"]}
        folder = self.add(name, "bench", settings, ("table-time",))
        folder.mkdir(parents=True)
        (folder / sweep.BENCH).write_bytes(seal_document(content or BENCH))

    def write(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / sweep.FILE).write_bytes(seal_document(sweep.as_json(self.content())))
        return self.folder

    def content(self):
        return sweep.Sweep(
            self.folder,
            command="doublecv reproduce figure-1 table-k2-bernoulli --only 'dataset=<fashion-mnist>' --out results",
            versions={"doublecv": "0", "jax": "made up"},
            machine={"processor": "abacus", "cores": 2},
            runs=tuple(self.runs),
        )


def toy_results(settings):
    iterations = record_iterations(settings)
    random = np.random.default_rng(1)

    def curves(name):
        made = {one.name: random.uniform(0.5, 1.0, (settings.seeds, len(iterations))) for one in fields(Curves)}
        unknown = {} if name == "double-cv" else {"alpha": np.full_like(made["alpha"], np.nan)}
        return Curves(**made | unknown)

    return ToyResults(settings, iterations, {name: curves(name) for name in settings.estimators})


def make(folder: Path) -> Path:
    """Two seeds of RLOO and Double CV, one of RELAX, an interrupted, a failed and a planned run, toys, and times."""
    made = TinySweep(folder)
    for estimator in ("rloo", "double-cv"):
        made.train(f"{estimator}-1", estimator=estimator, seed=1)
        made.train(f"{estimator}-2", LEVEL[estimator] + SHIFT, estimator=estimator, seed=2)
    made.train("relax-1", estimator="relax", samples=1, seed=1)
    made.train("disarm-1", upto=10, estimator="disarm", seed=1)
    failed = made.planned("disarm-2", estimator="disarm", seed=2)
    failed.mkdir()
    (failed / sweep.FAILURE).write_text("out of memory at <step 3>\n")
    made.planned("rloo-linear-1", estimator="rloo", network="linear", seed=1)
    made.toy("toy-d3", estimators=("rloo", "double-cv", "r-star"))
    made.bench("bench-k2-k4")
    return made.write()


def unseal(folder, change):
    """Change the entries of sweep.json, which then has no checksum."""
    path = folder / sweep.FILE
    held = json.loads(path.read_text())
    del held["checksum"]
    change(held)
    path.write_text(json.dumps(held))


def trained(content):
    """The training runs of a report that have numbers, complete or not."""
    return [run for run in content.runs if run.records.last]
