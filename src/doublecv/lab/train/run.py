"""Training runs, as functions.

    from doublecv.lab.train import run as train

    (result,) = train.run(train.TrainSettings(estimator="double-cv", steps=2000))
    result.final["test_elbo"]
    result.curve("encoder_variance")          # steps and values

With a folder the run can be cut at any moment, also by `kill -9`: called again with the same settings and folder it
goes on from its last checkpoint, and ends with the same bits as a run that was not cut.
"""

from __future__ import annotations

from pathlib import Path

from doublecv.lab.common import run_folder
from doublecv.lab.common.devices import Devices, devices_for
from doublecv.lab.common.errors import InputError
from doublecv.lab.data import Dataset, load
from doublecv.lab.train import distributed as processes
from doublecv.lab.train import folder as train_folder
from doublecv.lab.train.folder import Plan
from doublecv.lab.train.loop import Run, identity
from doublecv.lab.train.results import Interrupted, NotFinite, TrainResult, Watch
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import make_step

__all__ = ["Interrupted", "NotFinite", "TrainResult", "TrainSettings", "Watch", "make_step", "run"]


def run(
    settings: TrainSettings,
    folder: Path | None = None,
    *,
    seeds: int = 1,
    parallel_seeds: bool = False,
    devices: int = 1,
    dataset: Dataset | None = None,
    data_dir: Path | None = None,
    tensorboard: bool = False,
    watch: Watch | None = None,
) -> tuple[TrainResult, ...]:
    """Train, or go on with what was begun in the folder.

    Args:
        settings: what to train.
        folder: where metrics, checkpoints and pictures go: a new folder, or one in which the same run was begun.
            Without it nothing is written.
        seeds: how many seeds, from `settings.seed` on.
        parallel_seeds: run them as one program, with one folder; otherwise one after another, each with its own.
        devices: how many devices of every JAX process share each batch. With several processes all must call this with
            the same arguments and see the same folder; the first one writes.
        dataset: the images; without it `settings.data` is loaded.
        data_dir: where to look for the data first.
        tensorboard: write TensorBoard events into the folder as well.
        watch: who is told of the progress, and may stop it.
    """
    plan = Plan(settings, seeds, parallel_seeds, None if data_dir is None else str(data_dir), tensorboard)
    plan.check()
    places = devices_for(settings.batch, devices)
    images = load(settings.data, data_dir) if dataset is None else dataset
    return _run(plan, folder, images, watch or Watch(), places)


def _run(plan: Plan, folder: Path | None, dataset: Dataset, watch: Watch, devices: Devices) -> tuple[TrainResult, ...]:
    written = folder if processes.is_first() else None
    if written is not None:
        _begin(written, plan)
    if plan.seeds == 1 or plan.parallel_seeds:
        return Run(plan, folder, dataset, watch, devices).carry_out()
    results: list[TrainResult] = []
    for seed in plan.seed_numbers:
        results += _run(plan.of_seed(seed), folder and folder / f"seed-{seed}", dataset, watch, devices)
    if written is not None:
        run_folder.write_config(written, "train", train_folder.settings_as_json(plan.settings))
    return tuple(results)


def _begin(folder: Path, plan: Plan) -> None:
    if not train_folder.is_begun(folder):
        train_folder.write(folder, plan)
        return
    begun = train_folder.read(folder)
    wanted, given = identity(plan), identity(begun)
    for name, value in wanted.items():
        if given[name] != value:
            raise InputError(
                f"{folder} was begun with {name.replace('_', ' ')} {given[name]}, not {value}; name another folder"
            )
