"""Measure the variance of several estimators at the same parameters and on the same batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from doublecv.distributions import Distribution
from doublecv.estimators import Learned, LinearEstimator
from doublecv.estimators.moments import least_variance
from doublecv.jax import Expectation
from doublecv.jax.rule import Function
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import make_context, make_expectation, start_estimator
from doublecv.lab.vae.batches import observe
from doublecv.lab.vae.model import VAE
from doublecv.lab.vae.objective import elbo

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray, UInt8


class Variance(NamedTuple):
    """Hold a variance that was measured from independent estimates.

    Attributes:
        value: the variance of a gradient in the logits, averaged over batch elements and logits.
        standard_error: its standard error.
    """

    value: Float[Array, ""]
    standard_error: Float[Array, ""]


def make_comparison(
    settings: TrainSettings,
) -> Callable[[VAE, Learned, UInt8[Array, "batch pixels"], PRNGKeyArray], dict[str, Any]]:
    """Return a compiled function from model, learned state, images and key to the variance of each estimator.

    The estimator that is being trained is measured with its own learned state. Another one is measured with the best
    coefficients, solved from separate draws, if its estimate is linear in them, and otherwise with its initial state.
    """

    @jax.jit
    def compare(model: VAE, trained: Learned, images: Any, key: Any) -> dict[str, Any]:
        observe_key, fit_key, measure_key = jax.random.split(key, 3)
        y = observe(observe_key, images, settings.likelihood)
        q = model.posterior(model.encoder(y))
        f = elbo(model, y, q, settings.kl).f

        def variance(name: str) -> Any:
            of_name = replace(settings, estimator=name)
            expectation = make_expectation(of_name)
            context = make_context(expectation, model, y)
            learned = trained if name == settings.estimator else start_estimator(of_name, model).learned
            if name != settings.estimator:
                learned = best_coefficients(expectation, f, q, learned, fit_key, settings.compare_draws)
            return measure_variance(expectation, f, q, learned, measure_key, settings.compare_draws, context).value

        return {name: variance(name) for name in settings.compare_variance}

    return compare


def measure_variance(
    expectation: Expectation,
    f: Function,
    q: Distribution,
    learned: Learned,
    key: PRNGKeyArray,
    draws: int,
    context: Float[Array, "*batch features"] | None = None,
) -> Variance:
    """Return the unbiased sample variance of the gradient over independent draws."""

    def gradient(key: Any) -> Any:
        return expectation.estimate(f, q, learned, key, context=context).gradient

    gradients = jax.lax.map(gradient, jax.random.split(key, draws))
    squares = jnp.mean((gradients - jnp.mean(gradients, axis=0)) ** 2, axis=tuple(range(1, gradients.ndim)))
    squares = squares * draws / (draws - 1)
    return Variance(jnp.mean(squares), jnp.std(squares, ddof=1) / jnp.sqrt(draws))


def best_coefficients(
    expectation: Expectation, f: Function, q: Distribution, learned: Learned, key: PRNGKeyArray, draws: int
) -> Learned:
    """Return the coefficients of least variance over fresh draws, or `learned` if the estimate is not linear."""
    estimator, names = expectation.estimator, expectation.estimator.needs.coefficients
    if not isinstance(estimator, LinearEstimator) or not names:
        return learned

    def add(products: Any, key: Any) -> tuple[Any, None]:
        evaluation = expectation.estimate(f, q, learned, key).evaluation
        flat = estimator.parts(q, evaluation).stack(names).reshape(1 + len(names), -1)
        return products + flat @ flat.T / draws, None

    zeros = jnp.zeros((len(names) + 1, len(names) + 1))
    products, _ = jax.lax.scan(add, zeros, jax.random.split(key, draws))
    return Learned(dict(zip(names, least_variance(products), strict=True)), {}, {})
