"""The tables and figures of Titsias and Shi (2022), which targets.toml lists, each as the runs behind it.

A run that several of them show is one run: its name depends only on its settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from itertools import product
from typing import Any, NamedTuple

import msgspec

from doublecv import estimators
from doublecv.lab.bench.problem import BenchSettings
from doublecv.lab.common.errors import InputError
from doublecv.lab.sweep.plan import PAPER_STEPS, Kind, Only
from doublecv.lab.toy.problem import PAPER as TOY_PAPER
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.train.settings import TrainSettings

DATASETS = ("mnist", "fashion-mnist", "omniglot")
LIKELIHOODS = ("bernoulli", "gaussian")
NETWORKS = ("nonlinear", "linear")
SEEDS = (1, 2, 3, 4, 5)
"""The paper has five independent runs."""

TOY_ESTIMATORS = {
    1: TOY_PAPER,
    10: ("rloo", "double-cv", "disarm", "r-star", "double-cv-current", "double-cv-others"),
    200: TOY_PAPER,
}
"""The estimators of the toy problem with D variables, in all figures."""


class Planned(NamedTuple):
    """A run before it has a folder."""

    name: str
    kind: Kind
    settings: dict[str, Any]


@dataclass(frozen=True)
class TrainTarget:
    """Autoencoders on the three data sets, one run per estimator and seed."""

    summary: str
    samples: int
    estimators: tuple[str, ...]
    likelihoods: tuple[str, ...] = LIKELIHOODS
    networks: tuple[str, ...] = NETWORKS

    def runs(self, steps: int | None, seeds: Sequence[int], only: Only) -> Iterator[Planned]:
        """Yield the runs, seed by seed, so that an interrupted sweep has complete tables of fewer seeds."""
        if str(self.samples) not in only.get("samples", [str(self.samples)]):
            return
        length = PAPER_STEPS if steps is None else steps
        # At least ten times per run.
        often = max(1, length // 10)
        for seed, dataset, likelihood, network, estimator in product(
            seeds,
            only.get("dataset", DATASETS),
            _selected(self.likelihoods, only, "likelihood"),
            _selected(self.networks, only, "network"),
            only.get("estimator", self.estimators),
        ):
            settings = TrainSettings(
                dataset=dataset,  # type: ignore[arg-type]
                likelihood=likelihood,  # type: ignore[arg-type]
                network=network,  # type: ignore[arg-type]
                estimator=estimator,
                samples=own_samples(estimator, self.samples),
                seed=seed,
                steps=length,
                record_every=min(TrainSettings.record_every, often),
                evaluate_every=min(TrainSettings.evaluate_every, often),
                checkpoint_every=min(TrainSettings.checkpoint_every, often),
            )
            yield _planned(
                "train", f"{dataset}-{likelihood}-{network}-{estimator}-k{settings.samples}-seed{seed}", settings
            )


@dataclass(frozen=True)
class ToyTarget:
    """The toy problem, one run per dimension with all its estimators and seeds."""

    summary: str
    dimensions: tuple[int, ...]

    def runs(self, steps: int | None, seeds: Sequence[int], only: Only) -> Iterator[Planned]:
        """Yield the runs; fewer steps than the paper's iterations shorten them."""
        if {"dataset", "likelihood", "network"} & only.keys() or "2" not in only.get("samples", ["2"]):
            return
        if sorted(seeds) != [*range(1, len(seeds) + 1)]:
            raise InputError(f"the toy problem has the seeds 1, 2, ...; got --seeds {' '.join(map(str, seeds))}")
        iterations = ToySettings.iterations if steps is None else min(steps, ToySettings.iterations)
        for dimension in self.dimensions:
            chosen = tuple(only.get("estimator", TOY_ESTIMATORS[dimension]))
            settings = ToySettings(dimension=dimension, estimators=chosen, iterations=iterations, seeds=len(seeds))
            yield _planned("toy", f"toy-d{dimension}", settings)


@dataclass(frozen=True)
class BenchTarget:
    """The time per step, one run for all estimators and numbers of samples."""

    summary: str
    samples: tuple[int, ...]
    estimators: tuple[str, ...]

    def runs(self, steps: int | None, seeds: Sequence[int], only: Only) -> Iterator[Planned]:
        """Yield the run; it depends neither on steps and seeds nor on the likelihood, which hardly changes a step."""
        fixed = {"dataset": "fashion-mnist", "network": "nonlinear"}
        samples = tuple(int(K) for K in _selected(tuple(map(str, self.samples)), only, "samples"))
        if not samples or any(value not in only.get(key, [value]) for key, value in fixed.items()):
            return
        settings = BenchSettings(estimators=tuple(only.get("estimator", self.estimators)), samples=samples)
        yield _planned("bench", "bench-" + "-".join(f"k{K}" for K in samples), settings)


@dataclass(frozen=True)
class _Targets:
    """The content of targets.toml."""

    toy: dict[str, ToyTarget]
    train: dict[str, TrainTarget]
    bench: dict[str, BenchTarget]


_READ = msgspec.toml.decode(files(__package__).joinpath("targets.toml").read_bytes(), type=_Targets)
TARGETS: dict[str, TrainTarget | ToyTarget | BenchTarget] = {**_READ.toy, **_READ.train, **_READ.bench}
"""All targets by name, in the order of `--list`."""

ALL = "all"
"""The target that is all targets."""


def own_samples(estimator: str, samples: int) -> int:
    """Return K, or 1 for the relaxed control variates, which then evaluate f three times, as in the paper."""
    if estimator not in estimators.names():
        return samples
    made = estimators.make(estimator, 4)
    return made.needs.minimum_samples if made.needs.relaxed_points else samples


def _selected(of_target: Sequence[str], only: Only, key: str) -> list[str]:
    return [value for value in of_target if value in only.get(key, of_target)]


def _planned(kind: Kind, name: str, settings: TrainSettings | ToySettings | BenchSettings) -> Planned:
    """Name a run by the settings that differ from the defaults, so that new settings do not rename old runs."""
    settings.check()
    plain = settings.as_json()
    defaults = json.loads(json.dumps({field.name: field.default for field in fields(settings)}))
    special = {name: value for name, value in plain.items() if value != defaults[name]}
    digest = hashlib.sha256(json.dumps(special, sort_keys=True).encode()).hexdigest()
    return Planned(f"{name}-{digest[:8]}", kind, plain)
