"""The variance of several estimators' gradients at the same parameters, on the same batch: compiled once for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, LinearEstimator
from doublecv.estimators.linear import least_variance
from doublecv.jax import Function, estimate
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import estimator_at, start_coefficients
from doublecv.lab.vae.batches import observe
from doublecv.lab.vae.model import VAE
from doublecv.lab.vae.objective import elbo

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray, UInt8


def make_comparison(
    settings: TrainSettings,
) -> Callable[[VAE, Mapping[str, Any], UInt8[Array, "batch pixels"], PRNGKeyArray], dict[str, Any]]:
    """A function of model, trained coefficients, images and key to the variance of each estimator of the settings.

    The variance is over fresh draws, of the logits' gradient of each image, and its mean is over images and logits.
    The estimator that is being trained is measured with its own coefficients, another one with the best ones, from
    separate draws, where the gradient is linear in them, and otherwise with those that it starts with.
    """

    @jax.jit
    def compare(model: VAE, trained: Mapping[str, Any], images: Any, key: Any) -> dict[str, Any]:
        observe_key, start_key, fit_key, measure_key = jax.random.split(key, 4)
        y = observe(observe_key, images, settings.likelihood)
        q = model.posterior(model.encoder(y))
        f = elbo(model, y, q, settings.kl).f

        def variance(name: str) -> Any:
            of_name = replace(settings, estimator=name)
            coefficients: Any = trained
            if name != settings.estimator:
                coefficients = start_coefficients(of_name, model, start_key)
            estimator = estimator_at(of_name, model, coefficients, y)
            if name != settings.estimator and isinstance(estimator, LinearEstimator):
                coefficients = best_coefficients(estimator, f, q, fit_key, settings.compare_draws)
                estimator = replace(estimator, learning="gradient")
            return _variance(estimator, f, q, coefficients, measure_key, settings.compare_draws)

        return {name: variance(name) for name in settings.compare_variance}

    return compare


def _variance(
    estimator: Estimator, f: Function, q: Distribution, coefficients: Mapping[str, Any], key: PRNGKeyArray, draws: int
) -> Float[Array, ""]:
    """The unbiased variance, by the running mean of Welford (1962), which does not cancel."""

    def one_more(carry: Any, numbered_key: Any) -> tuple[Any, None]:
        mean, squares = carry
        number, key = numbered_key
        gradient = estimate(f, q, estimator, coefficients, key).gradient
        moved = mean + (gradient - mean) / number
        return (moved, squares + (gradient - mean) * (gradient - moved)), None

    nothing = jnp.zeros_like(q.logits)
    numbers = jnp.arange(1, draws + 1, dtype=q.logits.dtype)
    (_, squares), _ = jax.lax.scan(one_more, (nothing, nothing), (numbers, jax.random.split(key, draws)))
    return jnp.mean(squares) / (draws - 1)


def best_coefficients(
    estimator: LinearEstimator, f: Function, q: Distribution, key: PRNGKeyArray, draws: int
) -> dict[str, Any]:
    """The solution of E[h h^T] c = -E[h g0], where the gradient is g0 + sum_i c_i h_i."""
    names = list(estimator.starts())
    if not names:
        return {}

    def one_more(products: Any, key: Any) -> tuple[Any, None]:
        evaluation = estimate(f, q, estimator, estimator.coefficients(), key).evaluation
        flat = estimator.parts(q, evaluation).stacked(names).reshape(1 + len(names), -1)
        return products + flat @ flat.T / draws, None

    nothing = jnp.zeros((len(names) + 1, len(names) + 1))
    products, _ = jax.lax.scan(one_more, nothing, jax.random.split(key, draws))
    return dict(zip(names, least_variance(products), strict=True))
