"""Define the problems of the harm benchmark: small functions f on which control variates can do harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

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


def _direction(rng: np.random.Generator, size: int, length: float) -> Any:
    direction = rng.normal(size=size)
    return {"direction": length * direction / np.linalg.norm(direction)}, {}


def _size(problem: HarmProblem) -> int:
    return problem.variables * max(1, problem.categories)


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


def _nothing(rng: np.random.Generator, problem: HarmProblem) -> Any:
    return {}, {}


def _along(constants: Any, x: Any) -> Any:
    return (x - 0.5) @ constants["direction"]


KINDS: dict[str, Kind] = {
    "toy": Kind(_nothing, lambda c, m, x, d: jnp.mean((x - TOY_TARGET) ** 2, axis=-1)),
    "linear": Kind(lambda rng, p: _direction(rng, _size(p), 1.0), lambda c, m, x, d: _along(c, x)),
    "network": Kind(_network, _tanh),
    "heavy-tailed": Kind(
        _network, lambda c, m, x, d: _tanh(c, m, x, d) * d, lambda c, key, batch: jax.random.t(key, 2.0, (batch,))
    ),
    "quadratic": Kind(_quadratic, _bilinear),
    "policy": Kind(_quadratic, _bilinear),
    "exponential": Kind(lambda rng, p: _direction(rng, _size(p), 4.0), lambda c, m, x, d: jnp.exp(_along(c, x))),
    "steep": Kind(
        lambda rng, p: _direction(rng, _size(p), 2.0), lambda c, m, x, d: jax.nn.sigmoid(20 * (_along(c, x) - 0.3))
    ),
    "bump": Kind(lambda rng, p: _direction(rng, _size(p), 2.0), lambda c, m, x, d: 1 / (0.05 + _along(c, x) ** 2)),
    "gates": Kind(
        _gates,
        lambda c, m, x, d: jnp.mean((x @ c["features"] - c["target"]) ** 2, axis=-1) + 0.05 * jnp.sum(x, axis=-1),
    ),
    "autoencoder": Kind(_autoencoder, _cross_entropy, _images, encoder=True),
}

SCALES = (1.0, 1e-8, 1e8, 1e-4, 1e4)


def problems() -> list[HarmProblem]:
    """Return the problems of the complete benchmark."""
    toys = [
        HarmProblem("toy", samples, variables, learning_rate=0.01, spread=0.0)
        for samples, variables in ((2, 1), (2, 10), (2, 200), (4, 10), (8, 10), (4, 200))
    ]
    sizes = {
        "linear": ((2, 1, 1), (4, 1, 1), (2, 3, 1), (2, 100, 10)),
        "network": ((2, 5, 1), (2, 50, 1), (4, 50, 1), (2, 20, 100), (8, 5, 1), (2, 500, 4), (2, 200, 10), (8, 50, 10)),
        "quadratic": ((2, 1, 1), (2, 3, 1), (2, 10, 1), (4, 10, 1), (2, 50, 10), (8, 10, 1), (4, 200, 1)),
        "exponential": ((2, 5, 1), (4, 5, 1), (2, 20, 10), (8, 20, 1)),
        "steep": ((2, 5, 1), (2, 20, 1), (4, 20, 10)),
        "bump": ((2, 5, 1), (4, 20, 10)),
        "heavy-tailed": ((2, 20, 1), (2, 20, 10), (4, 50, 20)),
    }
    scales = cycle(SCALES)
    sized = [
        HarmProblem(kind, samples, variables, batch, scale=next(scales), seed=variables)
        for kind, chosen in sizes.items()
        for samples, variables, batch in chosen
    ]
    gates = [
        HarmProblem("gates", k, d, b, start=-3.0, scale=next(scales))
        for k, d, b in ((2, 50, 1), (2, 100, 4), (4, 20, 1))
    ]
    policies = [
        HarmProblem("policy", k, d, b, categories=c, scale=next(scales), seed=d)
        for k, d, b, c in ((2, 1, 1, 3), (2, 1, 8, 4), (4, 3, 1, 3), (2, 5, 10, 6), (8, 2, 1, 3))
    ]
    autoencoders = [
        HarmProblem("autoencoder", k, d, b, learning_rate=0.003) for k, d, b in ((2, 16, 20), (2, 50, 100), (4, 50, 10))
    ]
    changes = [
        replace(problem, **{change: factor})  # type: ignore[arg-type]
        for problem in (
            HarmProblem("network", 2, 50, 1, seed=50),
            HarmProblem("quadratic", 4, 10, 1, seed=10),
            HarmProblem("exponential", 2, 5, 1, seed=5),
        )
        for change, factor in (("later", 1e6), ("later", 1e-6), ("outlier", 1e6))
    ]
    drifting = [
        HarmProblem("quadratic", 2, 3, 1, learning_rate=0.1, seed=3),
        HarmProblem("network", 2, 5, 1, learning_rate=0.1, seed=5),
        HarmProblem("toy", 2, 10, learning_rate=0.05, spread=0.0),
        HarmProblem("linear", 64, 3, 1),
    ]
    return toys + sized + gates + policies + autoencoders + changes + drifting
