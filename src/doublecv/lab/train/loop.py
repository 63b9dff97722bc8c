"""One training run: chunks of compiled steps, and between them metrics, evaluations and checkpoints."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from doublecv.estimators import make
from doublecv.lab.common import run_folder
from doublecv.lab.common.devices import Devices
from doublecv.lab.common.errors import InputError
from doublecv.lab.data import Dataset
from doublecv.lab.train import checkpoint
from doublecv.lab.train import distributed as processes
from doublecv.lab.train import folder as train_folder
from doublecv.lab.train.evaluate import bounds
from doublecv.lab.train.event_log import EventLog
from doublecv.lab.train.folder import Plan
from doublecv.lab.train.metrics import FILE as METRICS
from doublecv.lab.train.metrics import Metrics
from doublecv.lab.train.results import Interrupted, NotFinite, TrainResult, Watch
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import Program, Report, State, key_of, make_step
from doublecv.lab.vae.pictures import write_pictures
from doublecv.lab.variance.comparison import make_comparison

EVALUATE, COMPARE, TEST, PICTURES = range(100, 104)
"""What a random key is for, apart from those of the training step."""


def identity(plan: Plan) -> dict[str, Any]:
    """All that has a part in the numbers, as JSON."""
    described = train_folder.settings_as_json(plan.settings)
    return described | {"seeds": plan.seeds, "parallel_seeds": plan.parallel_seeds}


def identity_on(plan: Plan, dataset: Dataset) -> dict[str, Any]:
    """The same, with the images."""
    return identity(plan) | {"training_images_crc32": zlib.crc32(dataset.train.tobytes())}


class Run:
    """One run in one folder, of one seed or of several in parallel."""

    def __init__(self, plan: Plan, folder: Path | None, dataset: Dataset, watch: Watch, devices: Devices) -> None:
        self.plan, self.settings, self.folder, self.dataset, self.watch = plan, plan.settings, folder, dataset, watch
        self.identity = identity_on(plan, dataset)
        processes.check_same(self.identity)
        self.devices = devices
        self.written = folder if processes.is_first() else None
        self.seeds = plan.seed_numbers
        self.estimator = make(plan.settings.estimator, plan.settings.samples)
        self.program: Program = make_step(plan.settings, dataset, self.seeds if plan.parallel_seeds else None, devices)
        self.compare = make_comparison(plan.settings) if plan.settings.compare_variance else None
        self.seconds: list[tuple[float, int]] = []

    def carry_out(self) -> tuple[TrainResult, ...]:
        """Train from the last checkpoint to the end."""
        finished = self.folder is not None and train_folder.is_finished(self.folder)
        step, state, metrics_bytes = self._start(finished)
        self.metrics = Metrics(self.written, metrics_bytes)
        self.events = EventLog(None, step)
        try:
            if self.plan.tensorboard:
                self.events = EventLog(self.written, step)
            state = self.devices.here(self._train(step, state))
            if not finished:
                self._finish(state)
        except OSError as error:
            raise InputError(f"{error}; {self._what_is_kept()}") from error
        finally:
            self.metrics.close()
            self.events.close()
        return tuple(self._result(place, seed, state) for place, seed in enumerate(self.seeds))

    def _start(self, finished: bool) -> tuple[int, State, int]:
        loaded = None
        if self.folder is not None:
            like = jax.eval_shape(self.program.start)
            loaded = checkpoint.load_newest(self.folder, like, self.identity, self.watch.notice)
        processes.check_same({"last_checkpoint": loaded and loaded.step, "end": finished})
        if self.folder is None or loaded is None:
            return 0, self.program.start(), 0
        self.watch.notice(f"going on from {loaded.path}")
        metrics_bytes = (self.folder / METRICS).stat().st_size if finished else loaded.metrics_bytes
        return loaded.step, self.devices.place(loaded.state), metrics_bytes

    def _train(self, step: int, state: State) -> State:
        while step < self.settings.steps:
            end = _next_boundary(self.settings, step)
            started = time.perf_counter()
            state, report = self.program.chunk(state, step, end - step)
            report = Report(*(np.atleast_1d(np.asarray(values)) for values in report))
            self.seconds.append((time.perf_counter() - started, end - step))
            self._check_finite(report)
            step = end
            here = self.devices.here(state)
            records = self._train_records(step, here, report)
            self._record(records)
            self.watch.progress(self.seeds[0], step, records[0], 1 / self._seconds_a_step(last=True))
            if step % self.settings.evaluate_every == 0 or step == self.settings.steps:
                self._record(self._evaluations(step, here))
            stop = processes.asked_of_any(self.watch.stop())
            if step % self.settings.checkpoint_every == 0 or step == self.settings.steps or stop:
                self._save(here, step)
            if stop:
                raise Interrupted(f"stopped after step {step}")
        return state

    def _check_finite(self, report: Report) -> None:
        bad = report.first_bad_step[report.first_bad_step >= 0]
        if bad.size:
            raise NotFinite(
                f"the loss or a gradient was not finite at step {bad.min()}; {self._what_is_kept()}; "
                f"a smaller --learning-rate than {self.settings.rate} may help"
            )

    def _train_records(self, step: int, state: State, report: Report) -> list[dict[str, Any]]:
        return [
            {"kind": "train", "step": step, "seed": seed}
            | {name: float(getattr(report, name)[place]) for name in ("elbo", "encoder_variance", "logits_variance")}
            | _scalars(self.estimator.numbers(self._of_seed(state, place).coefficients))
            for place, seed in enumerate(self.seeds)
        ]

    def _evaluations(self, step: int, state: State) -> list[dict[str, Any]]:
        return [
            {"kind": "evaluation", "step": step, "seed": seed} | self._evaluation(step, self._of_seed(state, place))
            for place, seed in enumerate(self.seeds)
        ]

    def _evaluation(self, step: int, state: State) -> dict[str, Any]:
        sets = {"train_elbo": self.dataset.train, "validation_elbo": self.dataset.validation}
        found: dict[str, Any] = {
            name: bounds(
                self.settings, state.model, images, key_of(state, EVALUATE, step, part), self.settings.samples
            ).elbo
            for part, (name, images) in enumerate(sets.items())
        }
        if self.compare is not None:
            batch = self.program.images[: self.settings.batch]
            variances = self.compare(state.model, state.coefficients, batch, key_of(state, COMPARE, step))
            found["variance"] = {name: float(value) for name, value in variances.items()}
        return found

    def _finish(self, state: State) -> None:
        for place, seed in enumerate(self.seeds):
            of_seed = self._of_seed(state, place)
            found: dict[str, Any] = {}
            for samples in dict.fromkeys((self.settings.samples, self.settings.bound_samples)):
                key = key_of(of_seed, TEST, samples)
                both = bounds(self.settings, of_seed.model, self.dataset.test, key, samples, self._stop_if_asked)
                found |= {} if found else {"test_elbo": both.elbo}
                found[f"test_bound_{samples}"] = both.multi_sample
            self._record([{"kind": "final", "step": self.settings.steps, "seed": seed} | found])
            if self.written is not None:
                name = f"pictures-seed-{seed}.png" if self.plan.parallel_seeds else "pictures.png"
                write_pictures(
                    self.written / name,
                    of_seed.model,
                    self.dataset,
                    self.settings.likelihood,
                    key_of(of_seed, PICTURES),
                )
        if self.written is not None:
            self.metrics.sync()
            run_folder.write_config(self.written, "train", train_folder.settings_as_json(self.settings))

    def _stop_if_asked(self) -> None:
        if processes.asked_of_any(self.watch.stop()):
            raise Interrupted("stopped in the last evaluation")

    def _record(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.metrics.append(records)
        self.events.append(records)

    def _save(self, state: State, step: int) -> None:
        if self.written is not None:
            checkpoint.save(self.written, state, step, self.metrics.sync(), self.identity)

    def _what_is_kept(self) -> str:
        kept = checkpoint.paths(self.folder) if self.folder is not None else []
        if not kept:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {kept[0]}; to go on from it: doublecv train --resume {self.folder}"

    def _result(self, place: int, seed: int, state: State) -> TrainResult:
        records = [record for record in self.metrics.records if record["seed"] == seed]
        model = self._of_seed(state, place).model
        return TrainResult(self.settings, seed, records, model, self._seconds_a_step())

    def _seconds_a_step(self, last: bool = False) -> float:
        """Without the first chunk of this call, which the compiler takes part in, where there is another."""
        chunks = self.seconds[-1:] if last else self.seconds[1:] or self.seconds
        return (
            sum(seconds for seconds, _ in chunks) / max(1, sum(steps for _, steps in chunks))
            if chunks
            else float("nan")
        )

    def _of_seed(self, state: State, place: int) -> State:
        if not self.plan.parallel_seeds:
            return state
        of_seed: State = jax.tree.map(lambda leaf: leaf[place], state)
        return of_seed


def _next_boundary(settings: TrainSettings, step: int) -> int:
    """The end of the chunk that begins at `step`: the next multiple of whatever is to be done, or the last step."""
    every = (settings.record_every, settings.evaluate_every, settings.checkpoint_every)
    return min(settings.steps, *((step // steps + 1) * steps for steps in every))


def _scalars(coefficients: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value) for name, value in coefficients.items() if isinstance(value, jax.Array) and not value.ndim
    }
