"""Run the training: chunks of compiled steps, with metrics, evaluations and checkpoints between them.

With a folder, the run can be interrupted at any moment, also by ``kill -9``. Called again with the same settings and
folder it resumes from its last checkpoint and ends with the same bits as an uninterrupted run. Called with more steps
it extends the run, and ends with the same bits as a run that had that many steps from the start.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from doublecv.estimators import Learned, LinearEstimator
from doublecv.lab.common import files
from doublecv.lab.common.devices import Devices, any_process, check_same, devices_for, is_first
from doublecv.lab.common.errors import InputError
from doublecv.lab.data import Dataset, load
from doublecv.lab.train import checkpoint
from doublecv.lab.train import settings as train_settings
from doublecv.lab.train.results import Callbacks, Interrupted, Metrics, NotFinite, TrainResult, has_end
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import Program, Report, State, key_of, make_step
from doublecv.lab.vae.objective import bounds
from doublecv.lab.vae.pictures import write_pictures

EVALUATE, TEST, PICTURES = 100, 102, 103
"""The purposes of random keys, beyond those of the training step."""


def run(
    settings: TrainSettings,
    folder: Path | None = None,
    *,
    dataset: Dataset | None = None,
    callbacks: Callbacks | None = None,
) -> tuple[TrainResult, ...]:
    """Train, or resume what was started in the folder, and return one result per seed.

    The folder for metrics, checkpoints and pictures is a new one, or one in which the same run was started; without it
    nothing is written. Several seeds that do not run in parallel get subfolders. `settings.out` and `settings.resume`
    are not used here, and `settings.dataset` is loaded if no images are given.
    """
    settings.check()
    images = load(settings.dataset, settings.data_dir) if dataset is None else dataset
    settings.check_memory(images.train.shape[1])
    devices = devices_for(settings.devices)
    return _run(settings, folder, images, callbacks or Callbacks(), devices)


def identity(settings: TrainSettings, dataset: Dataset) -> dict[str, Any]:
    """Return what a checkpoint must agree on to be resumed: all that determines the state, except its age."""
    described = settings.as_json()
    del described["steps"]
    return described | {"training_images_crc32": zlib.crc32(dataset.train.tobytes())}


def _run(
    settings: TrainSettings, folder: Path | None, dataset: Dataset, callbacks: Callbacks, devices: Devices
) -> tuple[TrainResult, ...]:
    written = folder if is_first() else None
    if written is not None and not train_settings.is_started(written):
        train_settings.write(written, settings)
    elif written is not None:
        held = train_settings.check_same_run(written, settings)
        if settings.steps > held.steps:
            _extend(written, held, settings)
    if settings.seeds == 1 or settings.parallel_seeds:
        return Run(settings, folder, dataset, callbacks, devices).run()
    results: list[TrainResult] = []
    for seed in settings.seed_numbers:
        of_seed = replace(settings, seed=seed, seeds=1)
        results += _run(of_seed, folder and folder / f"seed-{seed}", dataset, callbacks, devices)
    if written is not None:
        files.write_config(written, "train", settings.as_json())
    return tuple(results)


def _extend(folder: Path, held: TrainSettings, settings: TrainSettings) -> None:
    """Turn a run into an interrupted run of more steps; an interruption in between leaves a run of the old length.

    The last step of a run is evaluated in any case. Where the longer run is not evaluated at that step, its metrics
    differ from there on, so the last checkpoint is dropped and the run resumes from the one before.
    """
    (folder / files.CONFIG).unlink(missing_ok=True)
    if held.steps % held.evaluate_every:
        checkpoint.remove(checkpoint.path_of(folder, held.steps))
    train_settings.rewrite(folder, settings)


class Run:
    """Execute one run in one folder, of one seed or of several in parallel."""

    def __init__(
        self, settings: TrainSettings, folder: Path | None, dataset: Dataset, callbacks: Callbacks, devices: Devices
    ) -> None:
        self.settings, self.folder, self.dataset, self.callbacks = settings, folder, dataset, callbacks
        self.identity = identity(settings, dataset)
        check_same(self.identity | {"steps": settings.steps})
        self.devices = devices
        self.written = folder if is_first() else None
        self.seeds = settings.seed_numbers
        self.program: Program = make_step(settings, dataset, self.seeds if settings.parallel_seeds else None, devices)
        self.seconds: list[tuple[float, int]] = []

    def run(self) -> tuple[TrainResult, ...]:
        """Train from the last checkpoint to the end."""
        finished = self.folder is not None and train_settings.is_finished(self.folder) and has_end(self.folder)
        step, state, metrics_bytes = self._start(finished)
        self.metrics = Metrics(self.written, metrics_bytes)
        try:
            state = self.devices.local(self._train(step, state))
            if not finished:
                self._finish(state)
        except OSError as error:
            raise InputError(f"{error}; {self._last_checkpoint()}") from error
        finally:
            self.metrics.close()
        return tuple(
            TrainResult(self.settings, seed, self.metrics.of_seed(seed), of_seed.model, self._seconds_per_step())
            for seed, of_seed in self._per_seed(state)
        )

    def _start(self, finished: bool) -> tuple[int, State, int | None]:
        loaded = None
        if self.folder is not None:
            like = jax.eval_shape(self.program.start)
            loaded = checkpoint.load_newest(self.folder, like, self.identity, self.callbacks.notice)
        check_same({"last_checkpoint": loaded and loaded.step, "end": finished})
        if loaded is None:
            return 0, self.program.start(), 0
        self.callbacks.notice(f"resuming from {loaded.path}")
        return loaded.step, self.devices.replicate(loaded.state), None if finished else loaded.metrics_bytes

    def _train(self, step: int, state: State) -> State:
        while step < self.settings.steps:
            end = _next_boundary(self.settings, step)
            started = time.perf_counter()
            state, report = self.program.chunk(state, step, end - step)
            report = Report(*(np.atleast_1d(np.asarray(values)) for values in report))
            self.seconds.append((time.perf_counter() - started, end - step))
            self._check_finite(report)
            step = end
            here = self.devices.local(state)
            records = self._train_records(step, here, report)
            self.metrics.append(records)
            self.callbacks.progress(self.seeds[0], step, records[0], 1 / self._seconds_per_step(last=True))
            if step % self.settings.evaluate_every == 0 or step == self.settings.steps:
                self.metrics.append([self._evaluation(step, *pair) for pair in self._per_seed(here)])
            stop = any_process(self.callbacks.stop())
            due = step % self.settings.checkpoint_every == 0 or step == self.settings.steps or stop
            if due and self.written is not None:
                checkpoint.save(self.written, here, step, self.metrics.sync(), self.identity)
            if stop:
                raise Interrupted(f"stopped after step {step}")
        return state

    def _check_finite(self, report: Report) -> None:
        bad = report.first_bad_step[report.first_bad_step >= 0]
        if bad.size:
            remedy = f"a smaller --learning-rate than {self.settings.rate} may help"
            raise NotFinite(
                f"the loss or a gradient was not finite at step {bad.min()}; {remedy}; {self._last_checkpoint()}"
            )

    def _per_seed(self, state: State) -> Iterator[tuple[int, State]]:
        """Yield each seed with its state."""
        for index, seed in enumerate(self.seeds):
            yield seed, jax.tree.map(itemgetter(index), state) if self.settings.parallel_seeds else state

    def _train_records(self, step: int, state: State, report: Report) -> list[dict[str, Any]]:
        return [
            {"kind": "train", "step": step, "seed": seed}
            | {self.settings.metric: float(elbo), "encoder_variance": float(encoder), "logits_variance": float(logits)}
            | coefficients(self.settings, of_seed.estimator.learned)
            for (seed, of_seed), elbo, encoder, logits, _ in zip(self._per_seed(state), *report, strict=True)
        ]

    def _evaluation(self, step: int, seed: int, state: State) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": "evaluation", "step": step, "seed": seed}
        for part, name in enumerate(("train", "validation")):
            images, key = getattr(self.dataset, name), key_of(state, EVALUATE, step, part)
            both = bounds(state.model, images, key, self.settings.evaluation_samples)
            found[f"{name}_elbo"] = both.elbo
            if self.settings.objective == "iwae":
                found[f"{name}_bound_{self.settings.bound_samples_train}"] = both.multi_sample
        return found

    def _finish(self, state: State) -> None:
        for seed, of_seed in self._per_seed(state):
            found: dict[str, Any] = {"kind": "final", "step": self.settings.steps, "seed": seed}
            for samples in dict.fromkeys((self.settings.evaluation_samples, self.settings.bound_samples)):
                key = key_of(of_seed, TEST, samples)
                both = bounds(of_seed.model, self.dataset.test, key, samples, self._stop_if_requested)
                found.setdefault("test_elbo", both.elbo)
                found[f"test_bound_{samples}"] = both.multi_sample
            self.metrics.append([found])
            if self.written is not None:
                name = f"pictures-seed-{seed}.png" if self.settings.parallel_seeds else "pictures.png"
                write_pictures(self.written / name, of_seed.model, self.dataset, key_of(of_seed, PICTURES))
        if self.written is not None:
            self.metrics.sync()
            files.write_config(self.written, "train", self.settings.as_json())

    def _stop_if_requested(self) -> None:
        if any_process(self.callbacks.stop()):
            raise Interrupted("stopped in the last evaluation")

    def _last_checkpoint(self) -> str:
        for path in checkpoint.paths(self.folder) if self.folder is not None else ():
            return f"the last good checkpoint is {path}; to resume from it: doublecv train --resume {self.folder}"
        return "there is no checkpoint yet"

    def _seconds_per_step(self, last: bool = False) -> float:
        """Return the mean over all chunks but the first, which includes compilation, or the time of the last one."""
        chunks = self.seconds[-1:] if last else self.seconds[1:] or self.seconds
        if not chunks:
            return float("nan")
        return sum(seconds for seconds, _ in chunks) / sum(steps for _, steps in chunks)


def _next_boundary(settings: TrainSettings, step: int) -> int:
    """Return the end of the chunk that starts at `step`: the next multiple of an interval, or the last step."""
    intervals = (settings.record_every, settings.evaluate_every, settings.checkpoint_every)
    return min(settings.steps, *((step // interval + 1) * interval for interval in intervals))


def coefficients(settings: TrainSettings, learned: Learned) -> dict[str, float]:
    """Return the scalar numbers of an estimator by name, such as alpha, however they are learned."""
    estimator, numbers = settings.make_estimator(), dict(learned.numbers)
    if isinstance(estimator, LinearEstimator):
        numbers = estimator.coefficients(learned)
    return {name: float(value) for name, value in numbers.items() if not value.ndim}
