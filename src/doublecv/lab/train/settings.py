"""Define the settings of a training run, and read and write them in its folder. This module does not import JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from doublecv import estimators
from doublecv.distributions import Bernoulli, Categorical
from doublecv.estimators import Estimator, MultiSampleBound
from doublecv.lab.common import files
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import write_atomically
from doublecv.lab.common.options import SEED, Option, ProgramSettings, flag
from doublecv.lab.common.records import read_fields, seal_document
from doublecv.lab.data import catalogue as data

FILE = "settings.json"

LEARNING_RATES = {"bernoulli": 1e-3, "gaussian": 1e-4}
"""Adam's rates in the paper: 0.001 for binarised data and 0.0001 for continuous data."""

COEFFICIENT_LEARNING_RATE = 1e-3
"""Adam's rate for an estimator's coefficients in the paper."""

LARGEST = 2**31 - 1
"""The largest step number and seed: the compiled program counts in 32-bit integers."""

MOST_DEVICES = 256
"""The largest number of devices per process: JAX starts threads for every virtual one, and hangs with thousands."""

BOUND_ESTIMATORS: dict[str, Callable[..., Estimator]] = {
    "vimco": partial(MultiSampleBound, control=False, held=True),
    "vimco-double-cv": partial(MultiSampleBound, held=True),
}
"""Estimators of a bound with S samples, which are no estimators of an expectation and so not in the registry."""

BOUND_SAMPLES_TRAIN = 8
"""The default of S."""


def estimator_names() -> tuple[str, ...]:
    """Return the names of the registered estimators and of those of bounds."""
    return (*estimators.names(), *BOUND_ESTIMATORS)


def trainable() -> tuple[str, ...]:
    """Return the names of the estimators for binary latents that do not need the exact mean of f, unknown here."""
    names = estimators.names(Bernoulli)
    return tuple(name for name in names if not estimators.make(name, samples=4).needs.expected_f)


COUNT = Option(minimum=1, maximum=LARGEST)
ESTIMATORS = Option(metavar="NAME", names=estimator_names, what="estimator", unique=True)

EXECUTION = ("devices", "coordinator", "processes", "process", "data_dir", "out", "resume")


@dataclass(frozen=True)
class TrainSettings(ProgramSettings):
    """Train a variational autoencoder with discrete latent variables, with any estimator.

    The experiment is that of Titsias and Shi (2022), section 5.2. A run that was interrupted, even by kill -9, is
    resumed with --resume DIR and ends with the same bytes. A finished run is extended with --resume DIR --steps MORE.

    Example: doublecv train --dataset fashion-mnist --estimator quadratic-double-cv --samples 2 --out runs/quadratic
    """

    execution = EXECUTION

    dataset: Literal["digits", "mnist", "fashion-mnist", "omniglot"] = "digits"
    """The images. "omniglot" is Omniglot 28x28."""
    likelihood: Literal["bernoulli", "gaussian"] = "bernoulli"
    """Bernoulli on images that are binarised afresh at every visit, or Gaussian on values in [-1, 1]."""
    network: Literal["nonlinear", "linear", "two-layer"] = "nonlinear"
    """Two hidden layers of 200 LeakyReLU units on both sides, or one dense layer; or two stochastic dense layers."""
    latent: Literal["bernoulli", "categorical"] = "bernoulli"
    """The family of the latent variables."""
    latents: Annotated[int, COUNT] = 200
    """D, the number of latent variables."""
    categories: Annotated[int, Option(minimum=2, maximum=LARGEST)] = 10
    """The number of categories per variable, for --latent categorical."""
    objective: Literal["elbo", "iwae"] = "elbo"
    """The evidence lower bound, or the importance weighted bound log 1/S sum w with S samples (Burda et al., 2016)."""
    bound_samples_train: Annotated[int, Option(minimum=2, maximum=LARGEST)] = BOUND_SAMPLES_TRAIN
    """S, the number of samples of the bound that --objective iwae maximises."""
    estimator: Annotated[str, ESTIMATORS] = "double-cv"
    """The name of a registered estimator; or vimco or, its default, vimco-double-cv for --objective iwae."""
    samples: Annotated[int, COUNT] = 2
    """K, the number of samples per estimate; with --objective iwae, of groups of S samples (its default: 1)."""
    decoder_samples: Literal["shared", "independent"] = "shared"
    """Train the decoder on the samples of the estimator, or on K independent ones as in the paper's DisARM and ARMS."""
    steps: Annotated[int, COUNT] = 10_000
    """The number of optimisation steps (the paper: 1,000,000)."""
    batch: Annotated[int, COUNT] = 100
    """The number of images per step."""
    learning_rate: Annotated[float | None, Option(metavar="RATE", positive=True)] = None
    """Adam's learning rate; if not given, 0.001 for Bernoulli and 0.0001 for Gaussian likelihoods."""
    coefficient_learning_rate: Annotated[float | None, Option(metavar="RATE", positive=True)] = None
    """Adam's rate for the estimator's coefficients; if not given, 0.001, and for REBAR and RELAX the model's own."""
    seed: Annotated[int, SEED] = 1
    """The seed, or the first of several."""
    seeds: Annotated[int, COUNT] = 1
    """The number of seeds, counted from --seed."""
    parallel_seeds: bool = False
    """Run the seeds as one program, for accelerators, and not one after the other."""
    record_every: Annotated[int, COUNT] = 200
    """The number of steps that run as one compiled program; metrics are recorded after each."""
    evaluate_every: Annotated[int, COUNT] = 5000
    """The number of steps between two evaluations of the ELBO over the training and validation sets."""
    checkpoint_every: Annotated[int, COUNT] = 2000
    """The number of steps between two checkpoints."""
    bound_samples: Annotated[int, COUNT] = 100
    """The number of samples of the multi-sample bound on the test set at the end."""
    devices: Annotated[int, Option(minimum=1, maximum=MOST_DEVICES)] = 1
    """The number of devices that share each batch (virtual ones on a CPU); sums then differ in their last bits."""
    coordinator: Annotated[str | None, Option(metavar="HOST:PORT")] = None
    """The address of process 0, for --processes on one or several hosts; all must see the same folder."""
    processes: Annotated[int, COUNT] = 1
    """The number of processes that train together, each started with this command and its own --process."""
    process: Annotated[int, Option(minimum=0, maximum=LARGEST)] = 0
    """The index of this process; process 0 writes and prints."""
    data_dir: Annotated[Path | None, Option(metavar="DIR")] = None
    """The folder of the data; if not given, $DOUBLECV_DATA, or a download into the user's cache."""
    out: Annotated[Path | None, Option(metavar="DIR")] = None
    """A new folder for the run; if not given, one in runs/ named after the settings."""
    resume: Annotated[Path | None, Option(metavar="DIR")] = None
    """Resume the run in this folder, with its settings; only --steps may be changed, to a larger number."""

    @property
    def rate(self) -> float:
        """The learning rate of the model."""
        return LEARNING_RATES[self.likelihood] if self.learning_rate is None else self.learning_rate

    @property
    def coefficient_rate(self) -> float:
        """The learning rate of the coefficients, for relaxed control variates that of the model, as in the paper."""
        if self.coefficient_learning_rate is not None:
            return self.coefficient_learning_rate
        return self.rate if self.make_estimator().needs.relaxed_points else COEFFICIENT_LEARNING_RATE

    @property
    def metric(self) -> str:
        """The name of the objective in the metrics: "elbo", or "bound" for the importance weighted bound."""
        return "elbo" if self.objective == "elbo" else "bound"

    @property
    def evaluation_samples(self) -> int:
        """The number of samples with which the ELBO and the bound are evaluated: K, or S for --objective iwae."""
        return self.samples if self.objective == "elbo" else self.bound_samples_train

    @property
    def evaluations(self) -> int:
        """The number of points at which one estimate evaluates the model."""
        groups = self.samples if self.estimator in BOUND_ESTIMATORS else self.make_estimator().evaluations
        return groups if self.objective == "elbo" else groups * self.bound_samples_train

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """All seeds of the run."""
        return tuple(range(self.seed, self.seed + self.seeds))

    @property
    def folder(self) -> Path:
        """The folder of a new run."""
        if self.out is not None:
            return self.out
        parts = [self.dataset, self.likelihood, self.network, self.estimator, f"k{self.samples}", f"seed{self.seed}"]
        if self.latent != "bernoulli":
            parts.insert(3, f"{self.latent}{self.categories}")
        if self.objective != "elbo":
            parts.insert(-3, f"{self.objective}{self.bound_samples_train}")
        return Path("runs") / "-".join(parts)

    def make_estimator(self) -> Estimator:
        """Return the estimator: for K samples, or for a bound with S samples."""
        if self.estimator in BOUND_ESTIMATORS:
            return BOUND_ESTIMATORS[self.estimator](samples=self.bound_samples_train)
        return estimators.make(self.estimator, self.samples)

    def defaults(self) -> TrainSettings | None:
        """Return what replaces the defaults: the settings of the resumed run, or the estimator of the bound."""
        if self.resume is None:
            return None if self.objective == "elbo" else TrainSettings(estimator="vimco-double-cv", samples=1)
        held = replace(read(self.resume), devices=self.devices)
        return held if self.data_dir is None else replace(held, data_dir=self.data_dir)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> TrainSettings:
        """Return the settings that `as_json` described; those of version 0.1 are understood."""
        renamed, removed = {"data": "dataset", "model": "network"}, {"compare_variance", "compare_draws", "tensorboard"}
        held = {renamed.get(name, name): value for name, value in given.items() if name not in removed}
        if held.pop("kl", "sampled") != "sampled":
            raise InputError("this version has no analytic Kullback-Leibler term")
        return super().from_json(held)

    def check(self) -> None:
        """Raise an `InputError` if a setting cannot work."""
        super().check()
        if self.resume is not None:
            if self.out is not None:
                raise InputError("--out and --resume exclude each other: a run is resumed in its own folder")
            check_same_run(self.resume, self)
        if self.seed + self.seeds - 1 > LARGEST:
            raise InputError(f"--seed plus --seeds must be at most {LARGEST + 1}, got {self.seed} and {self.seeds}")
        if self.network == "two-layer" and self.latent == "categorical":
            raise InputError("--network two-layer needs --latent bernoulli")
        self._check_objective()
        self._check_processes()
        self._check_estimator()

    def check_machine(self) -> None:
        """Raise an `InputError` if a run on the data set needs more memory than there is."""
        self.check_memory(data.size(self.dataset).pixels)

    def check_memory(self, pixels: int) -> None:
        """Raise an `InputError` if the arrays of a step or of the last evaluation need more memory than there is."""
        latents = self.latents * (self.categories if self.latent == "categorical" else 1)
        hidden = 400 if self.network == "nonlinear" else 0
        width = pixels + hidden + latents
        weights = 2 * (width * 200 if hidden else (pixels + latents) * latents)
        # Parameters, gradient, three averages; a decoder's activations with their cotangents.
        points = self.batch * (1 + self.evaluations)
        replicates = self.seeds if self.parallel_seeds else 1
        given = f" with --batch {self.batch}{f' and {replicates} parallel seeds' if replicates > 1 else ''}"
        self.check_memory_of("latents", 4.0 * replicates * 5 * weights, given)
        self.check_memory_of("samples", 4.0 * replicates * 2 * points * width, given)
        self.check_memory_of("bound_samples", 4.0 * max(2000, self.bound_samples) * width, given)

    def _check_objective(self) -> None:
        if self.objective == "iwae" and self.decoder_samples == "independent":
            raise InputError("--decoder-samples independent is for --objective elbo; leave it out")
        if self.objective == "elbo" and self.bound_samples_train != BOUND_SAMPLES_TRAIN:
            raise InputError("--bound-samples-train is for --objective iwae; the bound of a test has --bound-samples")

    def _check_processes(self) -> None:
        if self.process >= self.processes:
            raise InputError(f"--process must be less than --processes {self.processes}, got {self.process}")
        if self.processes > 1 and self.coordinator is None:
            raise InputError(f"--processes {self.processes} needs --coordinator HOST:PORT, the address of process 0")
        if self.coordinator is not None:
            host, _, port = self.coordinator.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise InputError(
                    f"--coordinator must be HOST:PORT, the address of process 0, got {self.coordinator!r}; "
                    "for example --coordinator localhost:1234"
                )
        if self.batch % (shares := self.devices * self.processes):
            each = "" if self.processes == 1 else f", --devices {self.devices} in each of {self.processes} processes"
            raise InputError(f"--batch must be a multiple of {shares}, the number of devices{each}; got {self.batch}")

    def _check_estimator(self) -> None:
        name = f"--estimator {self.estimator}"
        if self.estimator in BOUND_ESTIMATORS and self.objective == "elbo":
            raise InputError(f"{name} is for --objective iwae; for the ELBO take rloo or quadratic-double-cv")
        try:
            estimator = self.make_estimator()
        except (ValueError, TypeError) as error:
            raise InputError(f"--samples {self.samples} does not fit {name}: {error}") from error
        if estimator.needs.expected_f:
            raise InputError(f"{name} needs the exact mean of f, which is unknown here; rloo estimates it")
        family = Categorical if self.latent == "categorical" else Bernoulli
        if family not in estimator.needs.families:
            raise InputError(f"{name} needs binary latents; for --latent categorical use rloo or double-cv")
        if self.network == "two-layer" and not estimator.needs.path:
            raise InputError(f"{name} needs independent latents; for --network two-layer use quadratic-double-cv")


def write(folder: Path, settings: TrainSettings) -> None:
    """Claim a new or empty folder and write the settings into it."""
    files.claim(folder, f".{FILE}-partial")
    rewrite(folder, settings)


def rewrite(folder: Path, settings: TrainSettings) -> None:
    """Write the settings into a folder that already belongs to the run."""
    described = settings.as_json() | {"data_dir": None if settings.data_dir is None else str(settings.data_dir)}
    write_atomically(folder / FILE, seal_document(described))


def read(folder: Path) -> TrainSettings:
    """Return the settings of the run in a folder, or raise an `InputError`."""
    path = folder / FILE
    try:
        return TrainSettings.from_json(read_fields(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{folder} holds no training run: there is no {path}; start one with --out") from error
    except InputError as error:
        raise InputError(f"{path} cannot be read ({error}); start again with --out and a new folder") from error


def check_same_run(folder: Path, settings: TrainSettings) -> TrainSettings:
    """Return the settings of the run in a folder, or raise an `InputError` if others than more steps are given."""
    held, given = read(folder), settings.as_json()
    for name, wanted in held.as_json().items():
        if given[name] != wanted and not (name == "steps" and given[name] > wanted):
            remedy = "only more steps can be made" if name == "steps" else "leave it out, or start a new run"
            raise InputError(f"{folder} was started with {flag(name)} {wanted}, got {given[name]}; {remedy}")
    return held


def is_started(folder: Path) -> bool:
    """Return whether the folder holds a training run, finished or not."""
    return (folder / FILE).is_file()


def is_finished(folder: Path) -> bool:
    """Return whether the folder holds a complete run: its last file is there and can be read."""
    try:
        read_fields(folder / files.CONFIG)
    except (OSError, InputError):
        return False
    return True
