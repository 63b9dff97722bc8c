"""A sweep that is small and real: short training runs on random images, a short toy run, and made-up times."""

import json
import shutil
from pathlib import Path

import numpy as np

from doublecv.lab.common import run_folder
from doublecv.lab.data import Dataset
from doublecv.lab.sweep import plan as sweep
from doublecv.lab.toy import results as toy_results
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.run import run
from doublecv.lab.train import metrics
from doublecv.lab.train.loop import run as train
from doublecv.lab.train.settings import TrainSettings

STEPS = 20
SHIFT = 0.5
SIDE = 6

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


def images(train_images=60):
    pixels = np.random.default_rng(0).integers(0, 256, (train_images + 30, SIDE * SIDE), dtype=np.uint8)
    return Dataset("fashion-mnist", SIDE, SIDE, pixels[:train_images], pixels[-30:-15], pixels[-15:])


def train_settings(**changes):
    given = {"dataset": "fashion-mnist", "latents": 4, "batch": 10, "steps": STEPS, "record_every": 2}
    given |= {"evaluate_every": 10, "checkpoint_every": 10, "bound_samples": 100}
    return TrainSettings(**given | changes)


def sweep_settings(settings):
    return settings.as_json()


class TinySweep:
    """A sweep that is put together run by run."""

    def __init__(self, folder):
        self.folder, self.runs = folder, []

    def add(self, name, kind, settings, targets):
        planned = sweep.SweepRun(name, kind, self.folder / "runs" / name, settings, targets)
        self.runs.append(planned)
        return planned.folder

    def train(self, name, targets=("table-k2-bernoulli",), **changes):
        settings = train_settings(**changes)
        folder = self.add(name, "train", sweep_settings(settings), targets)
        train(settings, folder, dataset=images())
        return folder

    def another_seed(self, name, folder, seed, **changes):
        """The same run again as another seed, all ELBOs higher by `SHIFT`: what the standard errors are is plain."""
        made = self.planned(name, seed=seed, **changes)
        shutil.copytree(folder, made)
        lines = [json.loads(line) for line in (made / metrics.FILE).read_text().splitlines()]
        shifted = [
            {key: value + SHIFT if "elbo" in key else value for key, value in line.items()} | {"seed": seed}
            for line in lines
        ]
        (made / metrics.FILE).write_text("".join(f"{json.dumps(line)}\n" for line in shifted))
        config = json.loads((made / run_folder.CONFIG).read_text())
        config["settings"]["seed"] = seed
        (made / run_folder.CONFIG).write_text(json.dumps(config))

    def planned(self, name, targets=("table-k2-bernoulli",), **changes):
        return self.add(name, "train", sweep_settings(train_settings(**changes)), targets)

    def toy(self, name, **changes):
        settings = ToySettings(**{"dimension": 3, "iterations": 20, "seeds": 2, "every": 5, "draws": 20} | changes)
        plain = settings.as_json()
        folder = self.add(name, "toy", plain, ("figure-1",))
        folder.mkdir(parents=True)
        with (folder / toy_results.METRICS).open("w", newline="") as file:
            toy_results.write_metrics(run(settings), file)
        run_folder.write_config(folder, "toy", plain)

    def bench(self, name):
        folder = self.add(
            name, "bench", {"samples": [2, 4], "estimators": ["rloo", "double-cv", "relax"]}, ("table-time",)
        )
        folder.mkdir(parents=True)
        (folder / sweep.BENCH).write_text(json.dumps(BENCH))

    def write(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = sweep.Sweep(
            self.folder,
            targets=("figure-1", "table-k2-bernoulli", "table-time"),
            command="doublecv reproduce figure-1 table-k2-bernoulli --only 'dataset=<fashion-mnist>' --out results",
            steps=STEPS,
            seeds=(1, 2),
            only={"dataset": ("fashion-mnist",)},
            versions={"doublecv": "0", "jax": "made up"},
            machine={"processor": "abacus", "cores": 2},
            runs=tuple(self.runs),
        )
        (self.folder / sweep.FILE).write_text(json.dumps(sweep.as_json(whole)))
        return self.folder


def make(folder: Path) -> Path:
    """Two seeds of RLOO and of Double CV, one of RELAX, a cut and a failed run, two that wait, a toy run, and times."""
    made = TinySweep(folder)
    for estimator in ("rloo", "double-cv"):
        first = made.train(f"{estimator}-1", estimator=estimator, seed=1)
        made.another_seed(f"{estimator}-2", first, estimator=estimator, seed=2)
    made.train("relax-1", estimator="relax", samples=1, seed=1)
    cut = made.planned("disarm-1", estimator="disarm", seed=1)
    shutil.copytree(folder / "runs" / "rloo-1", cut)
    (cut / run_folder.CONFIG).unlink()
    (cut / sweep.LOG).touch()
    failed = made.planned("disarm-2", estimator="disarm", seed=2)
    failed.mkdir()
    (failed / sweep.FAILURE).write_text("out of memory at <step 3>\n")
    made.planned("rloo-linear-1", estimator="rloo", network="linear", seed=1)
    made.toy("toy-d3", estimators=("rloo", "double-cv", "r-star"))
    made.bench("bench-k2-k4")
    return made.write()
