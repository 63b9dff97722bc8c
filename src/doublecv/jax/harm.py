"""Measure whether learned control variates ever hurt: the variance relative to RLOO along short training runs.

::

    from doublecv.jax import harm

    row = harm.measure("quadratic-double-cv", harm.HarmProblem("network", samples=2, variables=50, scale=1e-6))
    row.worst, row.mean           # relative to RLOO at the same parameters
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from doublecv import estimators
from doublecv.distributions import Bernoulli, Categorical
from doublecv.estimators import Estimator
from doublecv.jax.expectation import Expectation

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

STEPS = 600

CHECKPOINTS = (0, 1, 2, 4, 8, 15, 30, 60, 120, 199, 201, 205, 230, 299, 301, 305, 330, 400, 500, 599)
"""The steps before which the variance is measured, out of 600: dense at the start and after a change of the scale."""

NUMBERS = 200_000
"""The number of gradient entries that are drawn per measurement."""

TOY_TARGET = 0.499
"""The p0 of the toy problem (Tucker et al., 2017; Titsias and Shi, 2022)."""


@dataclass(frozen=True)
class HarmProblem:
    """Describe one problem and the training run along which the variance is measured.

    Attributes:
        kind: a name in `KINDS`, which defines f.
        samples: K.
        variables: D.
        batch: the number of batch elements; all have the same logits unless the kind has an encoder.
        categories: the number of categories of each variable; 0 for Bernoulli.
        scale: the factor of f.
        later: one more factor of f, from the middle of the run on.
        outlier: one more factor of f, in the step at one third of the run only.
        learning_rate: the rate of Adam.
        start: the mean of the initial logits.
        spread: the standard deviation of the initial logits.
        seed: the seed of the problem's own numbers.
    """

    kind: str
    samples: int
    variables: int
    batch: int = 1
    categories: int = 0
    scale: float = 1.0
    later: float = 1.0
    outlier: float = 1.0
    learning_rate: float = 0.02
    start: float = 0.0
    spread: float = 0.5
    seed: int = 0

    @property
    def name(self) -> str:
        """Return a short description."""
        size = f"{self.variables}" + (f"x{self.categories}" if self.categories else "")
        extra = "".join(
            f" {name} {value:g}"
            for name, value in (("scale", self.scale), ("later x", self.later), ("outlier x", self.outlier))
            if value != 1
        )
        return f"{self.kind} D={size} batch={self.batch} K={self.samples}{extra}"

    @property
    def event(self) -> tuple[int, ...]:
        """Return the shape of one x."""
        return (self.variables, self.categories) if self.categories else (self.variables,)

    @property
    def family(self) -> type[Bernoulli] | type[Categorical]:
        """Return the family of q."""
        return Categorical if self.categories else Bernoulli

    @property
    def shape(self) -> HarmProblem:
        """Return the problem without the numbers that do not change the compiled program."""
        return replace(self, scale=1.0, later=1.0, outlier=1.0, learning_rate=0.0, start=0.0, spread=0.0, seed=0)


class Kind(NamedTuple):
    """Define a family of functions.

    Attributes:
        make: from a generator and the problem to the constants of f and the parameters that f learns.
        f: from constants, parameters, x flattened over the event, and the data of a step, to f.
        data: from the constants, a key and the size of the batch to the data of a step.
        encoder: whether the logits are linear in the data.
    """

    make: Callable[[np.random.Generator, HarmProblem], tuple[dict[str, Any], dict[str, Any]]]
    f: Callable[[Any, Any, Float[Array, "K batch d"], Any], Float[Array, "K batch"]]
    data: Callable[[Any, PRNGKeyArray, int], Any] = lambda constants, key, batch: ()
    encoder: bool = False


def _direction(length: float) -> Callable[[np.random.Generator, HarmProblem], Any]:
    def make(rng: np.random.Generator, problem: HarmProblem) -> Any:
        direction = rng.normal(size=_size(problem))
        return {"direction": length * direction / np.linalg.norm(direction)}, {}

    return make


def _size(problem: HarmProblem) -> int:
    return int(np.prod(problem.event))


def _network(rng: np.random.Generator, problem: HarmProblem) -> Any:
    size, hidden = _size(problem), 20
    inner = rng.normal(size=(size, hidden)) * 2 / np.sqrt(size)
    return {"inner": inner, "bias": rng.normal(size=hidden) / 2, "outer": rng.normal(size=hidden)}, {}


def _quadratic(rng: np.random.Generator, problem: HarmProblem) -> Any:
    size = _size(problem)
    matrix = rng.normal(size=(size, size)) / np.sqrt(size)
    return {"matrix": matrix + matrix.T, "slope": rng.normal(size=size)}, {}


def _gates(rng: np.random.Generator, problem: HarmProblem) -> Any:
    features = rng.normal(size=(problem.variables, 20))
    target = ((rng.random(problem.variables) < 0.2) * rng.normal(size=problem.variables)) @ features
    return {"features": features * rng.normal(size=(problem.variables, 1)), "target": target}, {}


def _autoencoder(rng: np.random.Generator, problem: HarmProblem) -> Any:
    pixels, hidden = 36, 32
    prototypes = rng.random((10, pixels)) < 0.4
    images = prototypes[rng.integers(0, 10, 500)] ^ (rng.random((500, pixels)) < 0.1)
    model = {
        "first": rng.normal(size=(problem.variables, hidden)) * np.sqrt(2 / (problem.variables + hidden)),
        "last": rng.normal(size=(hidden, pixels)) * np.sqrt(2 / (hidden + pixels)),
        "bias": np.zeros(pixels),
    }
    return {"images": images.astype(float)}, model


def _images(constants: Any, key: PRNGKeyArray, batch: int) -> Any:
    images = constants["images"]
    return images[jax.random.randint(key, (batch,), 0, images.shape[0])]


def _cross_entropy(constants: Any, model: Any, x: Any, images: Any) -> Any:
    hidden = (2 * x - 1) @ model["first"]
    logits = jnp.where(hidden > 0, hidden, 0.3 * hidden) @ model["last"] + model["bias"]
    return jnp.sum(jnp.logaddexp(0, logits) - images * logits, axis=-1)


def _tanh(constants: Any, model: Any, x: Any, data: Any) -> Any:
    return jnp.tanh(x @ constants["inner"] + constants["bias"]) @ constants["outer"]


def _bilinear(constants: Any, model: Any, x: Any, data: Any) -> Any:
    return jnp.sum((x @ constants["matrix"]) * x, axis=-1) / 2 + x @ constants["slope"]


def _along(constants: Any, x: Any) -> Any:
    return (x - 0.5) @ constants["direction"]


KINDS: dict[str, Kind] = {
    "toy": Kind(lambda rng, p: ({}, {}), lambda c, m, x, d: jnp.mean((x - TOY_TARGET) ** 2, axis=-1)),
    "linear": Kind(_direction(1.0), lambda c, m, x, d: _along(c, x)),
    "network": Kind(_network, _tanh),
    "heavy-tailed": Kind(
        _network, lambda c, m, x, d: _tanh(c, m, x, d) * d, lambda c, key, batch: jax.random.t(key, 2.0, (batch,))
    ),
    "quadratic": Kind(_quadratic, _bilinear),
    "policy": Kind(_quadratic, _bilinear),
    "exponential": Kind(_direction(4.0), lambda c, m, x, d: jnp.exp(_along(c, x))),
    "steep": Kind(_direction(2.0), lambda c, m, x, d: jax.nn.sigmoid(20 * (_along(c, x) - 0.3))),
    "bump": Kind(_direction(2.0), lambda c, m, x, d: 1 / (0.05 + _along(c, x) ** 2)),
    "gates": Kind(
        _gates,
        lambda c, m, x, d: jnp.mean((x @ c["features"] - c["target"]) ** 2, axis=-1) + 0.05 * jnp.sum(x, axis=-1),
    ),
    "autoencoder": Kind(_autoencoder, _cross_entropy, _images, encoder=True),
}


def problems() -> list[HarmProblem]:
    """Return the problems of the complete benchmark, which are in harm.csv."""
    text = files(__package__).joinpath("harm.csv").read_text(encoding="utf-8")
    types: dict[str, Any] = {field.name: type(field.default) for field in fields(HarmProblem)}
    types |= {"kind": str, "samples": int, "variables": int}
    rows = csv.DictReader(text.splitlines())
    return [HarmProblem(**{name: types[name](value) for name, value in row.items()}) for row in rows]


@dataclass(frozen=True)
class HarmRow:
    """Hold the variance of one estimator relative to RLOO along one run.

    Attributes:
        problem: the description of the problem.
        estimator: the estimator's name in the registry.
        steps: the steps before which the variance was measured.
        ratios: the variance relative to RLOO at the same parameters, before each of them; NaN where RLOO has none.
        errors: the standard errors of the ratios.
    """

    problem: str
    estimator: str
    steps: tuple[int, ...]
    ratios: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def largest(self) -> float:
        """Return the largest ratio."""
        return float(np.nanmax(self.ratios))

    @property
    def worst(self) -> float:
        """Return the largest ratio after two standard errors of its measurement are taken off."""
        return float(np.nanmax(np.asarray(self.ratios) - 2 * np.asarray(self.errors)))

    @property
    def mean(self) -> float:
        """Return the mean ratio over the steps of the run, linear between those at which it was measured."""
        steps, ratios = (np.asarray(values, dtype=float) for values in (self.steps, self.ratios))
        known = np.isfinite(ratios)
        if not known.any():
            return float("nan")
        every = np.arange(steps[0], steps[-1] + 1)
        return float(np.mean(np.interp(every, steps[known], ratios[known])))


def measure(
    name: str,
    problem: HarmProblem,
    steps: int = STEPS,
    numbers: int = NUMBERS,
    checkpoints: Sequence[int] = CHECKPOINTS,
) -> HarmRow | None:
    """Train with an estimator and measure its variance along the run; None if it does not support the problem.

    Args:
        name: the estimator's name in the registry.
        problem: the problem.
        steps: the number of steps.
        numbers: the number of gradient entries that are drawn per measurement.
        checkpoints: the steps before which the variance is measured, out of 600.
    """
    try:
        estimator = estimators.make(name, samples=problem.samples)
        estimator.check_family(problem.family(logits=np.zeros((1, *problem.event))))
    except (TypeError, ValueError):
        return None
    rng = np.random.default_rng(problem.seed)
    constants, model = KINDS[problem.kind].make(rng, problem)
    parameters = {"bias": problem.start + problem.spread * rng.normal(size=problem.event), "model": model}
    if KINDS[problem.kind].encoder:
        parameters["weight"] = 0.3 * rng.normal(size=(constants["images"].shape[1], problem.variables))
    arrays = jax.tree.map(partial(jnp.asarray, dtype=jnp.float32), (constants, parameters))
    measured_at = tuple(sorted({min(steps - 1, step * steps // STEPS) for step in checkpoints}))
    run = _program(estimator, problem.shape, measured_at, numbers)
    factors = jnp.float32([problem.scale, problem.later, problem.outlier, problem.learning_rate])
    ratios, errors = run(*arrays, factors, jnp.int32(steps), jax.random.key(problem.seed))
    return HarmRow(problem.name, name, measured_at, tuple(map(float, ratios)), tuple(map(float, errors)))


# A compiled program holds about a thousand memory maps, of which a process may have 65,530 on Linux.
@lru_cache(maxsize=24)
def _program(estimator: Estimator, problem: HarmProblem, checkpoints: tuple[int, ...], numbers: int) -> Any:
    """Return the compiled run, which problems of the same shape share."""
    kind, expectation, rloo = KINDS[problem.kind], Expectation(estimator), Expectation(estimators.RLOO(problem.samples))
    event, batch = problem.event, problem.batch
    # Adam without its rate, which is an argument.
    optimizer = optax.scale_by_adam(eps=1e-30)
    draws = max(20, min(2000, numbers // (batch * int(np.prod(event)) * problem.samples)))

    def distribution(parameters: Any, data: Any) -> Any:
        logits = jnp.broadcast_to(parameters["bias"], (batch, *event))
        return problem.family(logits=logits + data @ parameters["weight"] if kind.encoder else logits)

    def function(constants: Any, model: Any, data: Any, factor: Any) -> Any:
        return lambda x: factor * kind.f(constants, model, jnp.reshape(x, (*x.shape[:2], -1)), data)

    @jax.jit
    def run(constants: Any, parameters: Any, factors: Any, steps: Any, key: Any) -> Any:
        scale, later, outlier, rate = factors

        def factor_at(step: Any) -> Any:
            return scale * jnp.where(step >= steps // 2, later, 1) * jnp.where(step == steps // 3, outlier, 1)

        def train(step: Any, carry: Any) -> Any:
            parameters, moments, state = carry
            data_key, draw_key = jax.random.split(jax.random.fold_in(key, step))
            data = kind.data(constants, data_key, batch)

            def loss(parameters: Any, learned: Any) -> Any:
                f = function(constants, parameters["model"], data, factor_at(step))
                return jnp.mean(expectation(f, distribution(parameters, data), learned, draw_key))

            gradient, of_learned = jax.grad(loss, argnums=(0, 1))(parameters, state.learned)
            updates, moments = optimizer.update(gradient, moments)
            parameters = jax.tree.map(lambda leaf, update: leaf - rate * update, parameters, updates)
            return parameters, moments, expectation.update(of_learned, state)

        def variance(step: Any, parameters: Any, state: Any) -> Any:
            data_key, draw_key = jax.random.split(jax.random.fold_in(key, -1 - step))
            data = kind.data(constants, data_key, batch)
            f = function(constants, parameters["model"], data, factor_at(step))
            q = distribution(parameters, data)

            def both(key: Any) -> Any:
                own = expectation.estimate(f, q, state.learned, key).gradient
                # Divided by the scale, so that the squares are in the range of the numbers.
                return own / scale, rloo.estimate(f, q, rloo.init(q).learned, key).gradient / scale

            drawn = jax.lax.map(both, jax.random.split(draw_key, draws), batch_size=min(draws, 100))
            own, base = (jnp.sum(jnp.square(g - g.mean(0)).reshape(draws, -1), axis=1) for g in drawn)
            ratio = own.sum() / base.sum()
            return ratio, jnp.sqrt(jnp.sum(jnp.square(own - ratio * base))) / base.sum()

        def until_checkpoint(carry: Any, checkpoint: Any) -> Any:
            first, *rest = carry
            rest = jax.lax.fori_loop(first, checkpoint, train, tuple(rest))
            return (checkpoint, *rest), variance(checkpoint, rest[0], rest[2])

        state = expectation.init(distribution(parameters, kind.data(constants, key, batch)))
        start = (jnp.int32(0), parameters, optimizer.init(parameters), state)
        return jax.lax.scan(until_checkpoint, start, jnp.int32(checkpoints))[1]

    return run
