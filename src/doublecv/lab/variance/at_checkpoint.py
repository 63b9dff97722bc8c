"""The variance of every estimator at the parameters of a trained model, which stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from doublecv import estimators
from doublecv.distributions import Distribution
from doublecv.estimators import LinearEstimator, RStar
from doublecv.jax import Function, estimate
from doublecv.lab.common.errors import InputError
from doublecv.lab.data import load
from doublecv.lab.train import checkpoint
from doublecv.lab.train import folder as train_folder
from doublecv.lab.train.loop import identity_on
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import coefficient_optimiser, estimator_at, loss, start_coefficients, start_state
from doublecv.lab.vae.batches import observe
from doublecv.lab.vae.model import VAE
from doublecv.lab.vae.objective import elbo
from doublecv.lab.variance.comparison import best_coefficients

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray, UInt8


@dataclass(frozen=True)
class Measurement:
    """One estimator at one model.

    Attributes:
        run: the folder of the run that trained the model.
        data: the model's data set.
        likelihood: its likelihood.
        steps: how long it was trained.
        trained_with: the estimator that it was trained with.
        estimator: the estimator that was measured.
        samples: K.
        evaluations: the points at which one estimate evaluates f.
        variance: of the logits' gradient of an image, the mean over images and logits.
        standard_error: of the variance, over draws.
        relative: the variance divided by that of RLOO with the same K.
    """

    run: str
    data: str
    likelihood: str
    steps: int
    trained_with: str
    estimator: str
    samples: int
    evaluations: int
    variance: float
    standard_error: float
    relative: float

    @property
    def variance_times_evaluations(self) -> float:
        """What the variance would be if one evaluation of f were all, since that of a mean falls with their number."""
        return self.variance * self.evaluations

    def as_json(self) -> dict[str, Any]:
        """All that, and variance times evaluations."""
        return asdict(self) | {"variance_times_evaluations": self.variance_times_evaluations}

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Measurement:
        """What `as_json` wrote."""
        return cls(**{field.name: written[field.name] for field in fields(cls)})


def measure(
    folder: Path,
    names: Sequence[str],
    samples: Sequence[int],
    draws: int,
    fit_steps: int,
    data_dir: Path | None = None,
    measured: Sequence[Measurement] = (),
) -> Iterator[Measurement]:
    """The estimators' variances at the model of a run, RLOO's first for every K, one at a time as they are measured.

    All are measured on the same images and with the same number of draws. Coefficients that are linear are the best
    ones, from separate draws; others are learned on the frozen model for `fit_steps` steps, as in training. An
    estimator that cannot have K samples is passed over.

    Args:
        folder: a training run's folder.
        names: the estimators.
        samples: the numbers of samples K.
        draws: estimates from which a variance is computed.
        fit_steps: steps in which coefficients that are not linear are learned.
        data_dir: where to look for the data first.
        measured: what was measured at this model before, which is handed out again in the place of a measurement.
    """
    known = {(one.steps, one.estimator, one.samples): one for one in measured}
    plan = train_folder.read(folder)
    settings = plan.settings
    dataset = load(settings.data, data_dir)
    count, pixels = dataset.train.shape
    start = jax.eval_shape(lambda: start_state(settings, count, pixels, settings.seed))
    found = checkpoint.load_newest(folder, start, identity_on(plan, dataset), lambda _: None)
    if found is None:
        raise InputError(f"{folder} has no checkpoint to measure at; go on with doublecv train --resume {folder}")
    images = jnp.asarray(dataset.train)
    for K in samples:
        of_rloo = None
        for name in ["rloo", *(name for name in names if name != "rloo")]:
            of_name = replace(settings, estimator=name, samples=K)
            if not applies(of_name):
                continue
            if (found.step, name, K) in known:
                variance, standard_error = (
                    known[found.step, name, K].variance,
                    known[found.step, name, K].standard_error,
                )
            else:
                program = _program(_of_the_loss(of_name), draws, fit_steps)
                variance, standard_error = map(float, program(found.state.model, images, jax.random.key(settings.seed)))
            of_rloo = variance if of_rloo is None else of_rloo
            yield Measurement(
                run=str(folder.resolve()),
                data=settings.data,
                likelihood=settings.likelihood,
                steps=found.step,
                trained_with=settings.estimator,
                estimator=name,
                samples=K,
                evaluations=estimators.make(name, K).evaluations,
                variance=variance,
                standard_error=standard_error,
                relative=variance / of_rloo,
            )


def applies(settings: TrainSettings) -> bool:
    """Whether the estimator of the settings can have their K and their latents."""
    try:
        settings.check()
    except InputError:
        return False
    return True


def measurable() -> tuple[str, ...]:
    """The registered estimators, but R*, which needs the exact mean of f."""
    return tuple(name for name in estimators.names() if not isinstance(estimators.make(name, 4), RStar))


def _of_the_loss(settings: TrainSettings) -> TrainSettings:
    """The settings without what the loss does not depend on, so that one program serves all models of one shape."""
    enters = ("likelihood", "model", "latent", "latents", "categories", "kl", "batch", "estimator", "samples")
    return TrainSettings(
        **{name: getattr(settings, name) for name in enters},
        coefficient_learning_rate=settings.coefficient_learning_rate,
    )


@lru_cache
def _program(
    settings: TrainSettings, draws: int, fit_steps: int
) -> Callable[[VAE, UInt8[Array, "images pixels"], PRNGKeyArray], tuple[Any, Any]]:
    @jax.jit
    def measured(model: VAE, images: Any, key: Any) -> tuple[Any, Any]:
        batch_key, observe_key, start_key, fit_key, measure_key = jax.random.split(key, 5)
        y = observe(observe_key, _some(images, batch_key, settings.batch), settings.likelihood)
        q = model.posterior(model.encoder(y))
        f = elbo(model, y, q, settings.kl).f
        coefficients = start_coefficients(settings, model, start_key)
        estimator = estimator_at(settings, model, coefficients, y)
        if isinstance(estimator, LinearEstimator):
            coefficients = best_coefficients(estimator, f, q, fit_key, draws)
            estimator = replace(estimator, learning="gradient")
        elif coefficients:
            coefficients = _learned(settings, model, coefficients, images, fit_key, fit_steps)
            estimator = estimator_at(settings, model, coefficients, y)
        return _variance(estimator, f, q, coefficients, measure_key, draws)

    program: Callable[..., tuple[Any, Any]] = measured
    return program


def _learned(
    settings: TrainSettings, model: VAE, coefficients: dict[str, Any], images: Any, key: PRNGKeyArray, steps: int
) -> dict[str, Any]:
    """The coefficients after so many steps of their optimiser, the model staying as it is."""
    optimiser = coefficient_optimiser(settings)
    shift = jnp.zeros((settings.batch, model.encoder.outputs))

    def one_more(step: Any, carry: Any) -> Any:
        coefficients, moments = carry
        batch_key, observe_key, draw_key = jax.random.split(jax.random.fold_in(key, step), 3)
        y = observe(observe_key, _some(images, batch_key, settings.batch), settings.likelihood)
        gradient = jax.grad(loss, argnums=2)(settings, model, coefficients, shift, y, draw_key)
        return optimiser.update(coefficients, gradient, moments, step)

    learned: dict[str, Any]
    learned, _ = jax.lax.fori_loop(0, steps, one_more, (coefficients, optimiser.start(coefficients)))
    return learned


def _some(images: UInt8[Array, "images pixels"], key: PRNGKeyArray, count: int) -> UInt8[Array, "batch pixels"]:
    return images[jax.random.randint(key, (count,), 0, images.shape[0])]


def _variance(
    estimator: estimators.Estimator, f: Function, q: Distribution, coefficients: Any, key: PRNGKeyArray, draws: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The unbiased variance, and its standard error from the squared distances of single draws."""

    def gradient(key: Any) -> Any:
        return estimate(f, q, estimator, coefficients, key).gradient

    gradients = jax.lax.map(gradient, jax.random.split(key, draws))
    distances = jnp.mean((gradients - jnp.mean(gradients, axis=0)) ** 2, axis=tuple(range(1, gradients.ndim)))
    distances = distances * draws / (draws - 1)
    return jnp.mean(distances), jnp.std(distances, ddof=1) / jnp.sqrt(draws)
