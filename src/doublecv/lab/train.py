"""Training runs: chunks of compiled steps, and between them metrics, evaluations and checkpoints.

    from doublecv.lab import train

    (result,) = train.run(train.TrainSettings(estimator="double-cv", steps=2000))
    result.final["test_elbo"]
    result.curve("encoder_variance")          # steps and values

With a folder the run can be cut at any moment, also by `kill -9`: called again with the same settings and folder it
goes on from its last checkpoint, and ends with the same bits as a run that was not cut.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from doublecv.lab import checkpoint, run_folder, train_folder
from doublecv.lab.data import Dataset, load
from doublecv.lab.errors import InputError
from doublecv.lab.evaluate import bounds
from doublecv.lab.event_log import EventLog
from doublecv.lab.metrics import Metrics
from doublecv.lab.pictures import write_pictures
from doublecv.lab.train_folder import Plan
from doublecv.lab.train_settings import TrainSettings
from doublecv.lab.training_step import Program, Report, State, make_step
from doublecv.lab.vae import VAE
from doublecv.lab.variance_comparison import make_comparison

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

__all__ = ["Interrupted", "NotFinite", "TrainResult", "TrainSettings", "Watch", "make_step", "run"]

EVALUATE, COMPARE, TEST, PICTURES = range(100, 104)
"""What a random key is for, apart from those of the training step."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and all that it had done is in its last checkpoint."""


class NotFinite(InputError):
    """A loss or a gradient was infinite or not a number."""


def _nothing(*_: Any) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Watch:
    """What looks on while a run goes its way.

    Attributes:
        progress: called after each chunk with the seed, the number of steps done, the last record, and steps a second.
        notice: called with a sentence that the user should read.
        stop: asked after each chunk whether to save and stop.
    """

    progress: Callable[[int, int, Mapping[str, Any], float], None] = _nothing
    notice: Callable[[str], None] = _nothing
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What one seed came to.

    Attributes:
        settings: what was run.
        seed: the seed.
        records: all records of `metrics.jsonl` that are of this seed.
        model: the trained autoencoder.
        seconds_a_step: of the steps that this call did, without compilation and evaluation; NaN if it did none.
    """

    settings: TrainSettings
    seed: int
    records: Sequence[Mapping[str, Any]]
    model: VAE
    seconds_a_step: float

    @property
    def final(self) -> dict[str, Any]:
        """The last values of all metrics."""
        last: dict[str, Any] = {}
        for record in self.records:
            last |= record
        return {name: value for name, value in last.items() if name not in ("kind", "seed")}

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """The steps at which a metric was recorded, and its values."""
        points = [(record["step"], record[name]) for record in self.records if name in record]
        return [step for step, _ in points], [value for _, value in points]


def run(
    settings: TrainSettings,
    folder: Path | None = None,
    *,
    seeds: int = 1,
    parallel_seeds: bool = False,
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
        dataset: the images; without it `settings.data` is loaded.
        data_dir: where to look for the data first.
        tensorboard: write TensorBoard events into the folder as well.
        watch: who is told of the progress, and may stop it.
    """
    plan = Plan(settings, seeds, parallel_seeds, None if data_dir is None else str(data_dir), tensorboard)
    plan.check()
    images = load(settings.data, data_dir) if dataset is None else dataset
    return _run(plan, folder, images, watch or Watch())


def _run(plan: Plan, folder: Path | None, dataset: Dataset, watch: Watch) -> tuple[TrainResult, ...]:
    if folder is not None:
        _begin(folder, plan)
    if plan.seeds == 1 or plan.parallel_seeds:
        return _Run(plan, folder, dataset, watch).carry_out()
    results: list[TrainResult] = []
    for seed in plan.seed_numbers:
        results += _run(plan.of_seed(seed), folder and folder / f"seed-{seed}", dataset, watch)
    if folder is not None:
        run_folder.write_config(folder, "train", train_folder.settings_as_json(plan.settings))
    return tuple(results)


def _begin(folder: Path, plan: Plan) -> None:
    if not train_folder.is_begun(folder):
        train_folder.write(folder, plan)
        return
    begun = train_folder.read(folder)
    wanted, given = _identity(plan), _identity(begun)
    for name, value in wanted.items():
        if given[name] != value:
            raise InputError(
                f"{folder} was begun with {name.replace('_', ' ')} {given[name]}, not {value}; name another folder"
            )


def _identity(plan: Plan) -> dict[str, Any]:
    """All that has a part in the numbers, as JSON."""
    described = train_folder.settings_as_json(plan.settings)
    return described | {"seeds": plan.seeds, "parallel_seeds": plan.parallel_seeds}


class _Run:
    """One run in one folder, of one seed or of several in parallel."""

    def __init__(self, plan: Plan, folder: Path | None, dataset: Dataset, watch: Watch) -> None:
        self.plan, self.settings, self.folder, self.dataset, self.watch = plan, plan.settings, folder, dataset, watch
        self.identity = _identity(plan) | {"training_images_crc32": zlib.crc32(dataset.train.tobytes())}
        self.seeds = plan.seed_numbers
        self.program: Program = make_step(plan.settings, dataset, self.seeds if plan.parallel_seeds else None)
        self.compare = make_comparison(plan.settings) if plan.settings.compare_variance else None
        self.seconds: list[tuple[float, int]] = []

    def carry_out(self) -> tuple[TrainResult, ...]:
        """Train from the last checkpoint to the end."""
        finished = self.folder is not None and train_folder.is_finished(self.folder)
        step, state, metrics_bytes = self._start(finished)
        self.metrics = Metrics(self.folder, metrics_bytes)
        self.events = EventLog(self.folder if self.plan.tensorboard else None, step)
        try:
            state = self._train(step, state)
            if not finished:
                self._finish(state)
        except OSError as error:
            raise InputError(f"{error}; {self._what_is_kept()}") from error
        finally:
            self.metrics.close()
            self.events.close()
        return tuple(self._result(place, seed, state) for place, seed in enumerate(self.seeds))

    def _start(self, finished: bool) -> tuple[int, State, int]:
        if self.folder is not None:
            like = jax.eval_shape(self.program.start)
            loaded = checkpoint.load_newest(self.folder, like, self.identity, self.watch.notice)
            if loaded is not None:
                self.watch.notice(f"going on from {loaded.path}")
                whole = self.folder / "metrics.jsonl"
                return loaded.step, loaded.state, whole.stat().st_size if finished else loaded.metrics_bytes
        return 0, self.program.start(), 0

    def _train(self, step: int, state: State) -> State:
        while step < self.settings.steps:
            end = _next_boundary(self.settings, step)
            started = time.perf_counter()
            state, report = self.program.chunk(state, step, end - step)
            report = Report(*(np.atleast_1d(np.asarray(values)) for values in report))
            self.seconds.append((time.perf_counter() - started, end - step))
            self._check_finite(report)
            step = end
            records = self._train_records(step, state, report)
            self._record(records)
            self.watch.progress(self.seeds[0], step, records[0], 1 / self._seconds_a_step(last=True))
            if step % self.settings.evaluate_every == 0 or step == self.settings.steps:
                self._record(self._evaluations(step, state))
            stop = self.watch.stop()
            if step % self.settings.checkpoint_every == 0 or step == self.settings.steps or stop:
                self._save(state, step)
            if stop and step < self.settings.steps:
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
            | _scalars(self._of_seed(state, place).coefficients)
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
                self.settings, state.model, images, _key(state, EVALUATE, step, part), self.settings.samples
            ).elbo
            for part, (name, images) in enumerate(sets.items())
        }
        if self.compare is not None:
            batch = self.program.images[: self.settings.batch]
            variances = self.compare(state.model, state.coefficients, batch, _key(state, COMPARE, step))
            found["variance"] = {name: float(value) for name, value in variances.items()}
        return found

    def _finish(self, state: State) -> None:
        for place, seed in enumerate(self.seeds):
            of_seed = self._of_seed(state, place)
            found: dict[str, Any] = {}
            for samples in dict.fromkeys((self.settings.samples, self.settings.bound_samples)):
                both = bounds(self.settings, of_seed.model, self.dataset.test, _key(of_seed, TEST, samples), samples)
                found |= {} if found else {"test_elbo": both.elbo}
                found[f"test_bound_{samples}"] = both.multi_sample
            self._record([{"kind": "final", "step": self.settings.steps, "seed": seed} | found])
            if self.folder is not None:
                name = f"pictures-seed-{seed}.png" if self.plan.parallel_seeds else "pictures.png"
                write_pictures(
                    self.folder / name, of_seed.model, self.dataset, self.settings.likelihood, _key(of_seed, PICTURES)
                )
        if self.folder is not None:
            self.metrics.sync()
            run_folder.write_config(self.folder, "train", train_folder.settings_as_json(self.settings))

    def _record(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.metrics.append(records)
        self.events.append(records)

    def _save(self, state: State, step: int) -> None:
        if self.folder is not None:
            checkpoint.save(self.folder, state, step, self.metrics.sync(), self.identity)

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


def _key(state: State, *numbers: int) -> PRNGKeyArray:
    key = state.key
    for number in numbers:
        key = jax.random.fold_in(key, jnp.uint32(number))
    return key
