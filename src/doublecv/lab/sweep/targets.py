"""The tables and figures of Titsias and Shi (2022), each as the runs that it is made of.

A run that several of them show is one run: its name is made of its settings alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, NamedTuple

from doublecv import estimators
from doublecv.lab.bench.results import BenchSettings
from doublecv.lab.common.errors import InputError
from doublecv.lab.sweep.sweep import PAPER_STEPS, Kind
from doublecv.lab.toy.problem import PAPER as TOY_ESTIMATORS
from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.train.settings import TrainSettings

DATASETS = ("mnist", "fashion-mnist", "omniglot")
LIKELIHOODS = ("bernoulli", "gaussian")
NETWORKS = ("nonlinear", "linear")
SEEDS = (1, 2, 3, 4, 5)
"""The paper has five independent runs."""

OF_DIMENSION = {
    1: TOY_ESTIMATORS,
    10: ("rloo", "double-cv", "disarm", "r-star", "double-cv-current", "double-cv-others"),
    200: TOY_ESTIMATORS,
}
"""The estimators of the toy problem with D variables, in all figures together."""

OF_TABLE = {2: ("rloo", "double-cv", "disarm", "relax"), 4: ("rloo", "double-cv", "disarm", "arms")}
OF_FIGURE = {2: OF_TABLE[2], 4: (*OF_TABLE[4], "relax")}
"""The estimators with K samples in the tables of the paper's appendix, and in its figures."""

Only = Mapping[str, Sequence[str]]
"""What the targets are restricted to: by a name of `KEYS`, the values that are wanted."""


class Planned(NamedTuple):
    """A run before it has a folder."""

    name: str
    kind: Kind
    settings: dict[str, Any]


@dataclass(frozen=True)
class TrainTarget:
    """Autoencoders on the three data sets, one run an estimator and seed."""

    summary: str
    samples: int
    estimators: tuple[str, ...]
    likelihoods: tuple[str, ...] = LIKELIHOODS
    networks: tuple[str, ...] = NETWORKS

    def runs(self, steps: int | None, seeds: Sequence[int], only: Only) -> Iterator[Planned]:
        """The runs, seed by seed, so that a sweep that is cut has whole tables of fewer seeds."""
        if str(self.samples) not in only.get("samples", [str(self.samples)]):
            return
        length = PAPER_STEPS if steps is None else steps
        # As often as by default, but ten times at least.
        often = max(1, length // 10)
        for seed, dataset, likelihood, network, estimator in product(
            seeds,
            only.get("dataset", DATASETS),
            _those(self.likelihoods, only, "likelihood"),
            _those(self.networks, only, "network"),
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
    """The toy problem, one run a dimension with all its estimators and seeds."""

    summary: str
    dimensions: tuple[int, ...]

    def runs(self, steps: int | None, seeds: Sequence[int], only: Only) -> Iterator[Planned]:
        """The runs; fewer steps than the paper's iterations shorten them."""
        if {"dataset", "likelihood", "network"} & only.keys() or "2" not in only.get("samples", ["2"]):
            return
        if sorted(seeds) != [*range(1, len(seeds) + 1)]:
            raise InputError(f"the toy problem has the seeds 1, 2, ...; got --seeds {' '.join(map(str, seeds))}")
        iterations = ToySettings.iterations if steps is None else min(steps, ToySettings.iterations)
        for dimension in self.dimensions:
            chosen = tuple(only.get("estimator", OF_DIMENSION[dimension]))
            settings = ToySettings(dimension=dimension, estimators=chosen, iterations=iterations, seeds=len(seeds))
            yield _planned("toy", f"toy-d{dimension}", settings)


@dataclass(frozen=True)
class BenchTarget:
    """The time of a step, one run for all estimators and numbers of samples."""

    summary: str
    samples: tuple[int, ...]
    estimators: tuple[str, ...]

    def runs(self, steps: int | None, seeds: Sequence[int], only: Only) -> Iterator[Planned]:
        """The run; steps, seeds and the likelihood, which hardly changes a step, do not change it."""
        fixed = {"dataset": "fashion-mnist", "network": "nonlinear"}
        samples = tuple(int(K) for K in _those(tuple(map(str, self.samples)), only, "samples"))
        if not samples or any(value not in only.get(key, [value]) for key, value in fixed.items()):
            return
        settings = BenchSettings(estimators=tuple(only.get("estimator", self.estimators)), samples=samples)
        yield _planned("bench", "bench-" + "-".join(f"k{K}" for K in samples), settings)


_TOYS = {
    "figure-1": ToyTarget("toy problem, D = 200: variance, objective, probability", (200,)),
    "figure-toy-d1": ToyTarget("toy problem, D = 1: variance, probability", (1,)),
    "figure-halves": ToyTarget("toy problem, D = 10: the halves of Double CV", (10,)),
    "figure-alpha": ToyTarget("toy problem, D = 1, 10, 200: alpha", (1, 10, 200)),
}
_TABLES = {
    f"table-k{samples}-{likelihood}": TrainTarget(
        f"ELBO, K = {samples}, {likelihood.capitalize()} likelihood", samples, OF_TABLE[samples], (likelihood,)
    )
    for samples, likelihood in product((2, 4), LIKELIHOODS)
}
_FIGURES = {
    f"figure-{likelihood}-{network}-k{samples}": TrainTarget(
        f"variance and ELBO, K = {samples}, {likelihood.capitalize()} likelihood, {network}",
        samples,
        OF_FIGURE[samples],
        (likelihood,),
        (network,),
    )
    for (network, samples), likelihood in product((("nonlinear", 2), ("linear", 2), ("linear", 4)), LIKELIHOODS)
} | {
    f"figure-{shown.lower()}-nonlinear-k4": TrainTarget(
        f"{shown}, K = 4, both likelihoods, nonlinear", 4, OF_FIGURE[4], LIKELIHOODS, ("nonlinear",)
    )
    for shown in ("variance", "ELBO")
}

TARGETS: dict[str, TrainTarget | ToyTarget | BenchTarget] = {
    **_TOYS,
    **_TABLES,
    "table-time": BenchTarget("milliseconds a step, K = 4, and K = 2 besides", (2, 4), OF_FIGURE[4]),
    **_FIGURES,
}
"""By the name on the command line, in the order of the list."""

ALL = "all"
"""The target that is all targets."""


def own_samples(estimator: str, samples: int) -> int:
    """K, but the least for the relaxed control variates: 1 in the paper's comparison, with three evaluations of f."""
    if estimator not in estimators.names():
        return samples
    made = estimators.make(estimator, 4)
    return made.minimum_samples if made.relaxed_points else samples


def _those(of_target: Sequence[str], only: Only, key: str) -> list[str]:
    return [value for value in of_target if value in only.get(key, of_target)]


def _planned(kind: Kind, name: str, settings: TrainSettings | ToySettings | BenchSettings) -> Planned:
    """The digest is of what differs from the defaults, so that a setting of a later version leaves it as it is."""
    settings.check()
    plain = settings.as_json()
    defaults = json.loads(json.dumps({field.name: field.default for field in fields(settings)}))
    special = {name: value for name, value in plain.items() if value != defaults[name]}
    digest = hashlib.sha256(json.dumps(special, sort_keys=True).encode()).hexdigest()
    return Planned(f"{name}-{digest[:8]}", kind, plain)


def train_settings(settings: Mapping[str, Any]) -> TrainSettings:
    """The settings of a "train" run of a sweep, as `doublecv.lab.train.run` takes them."""
    return TrainSettings.from_json(settings)
