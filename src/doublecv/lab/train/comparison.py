"""Measure the variance of several estimators at the same parameters and on the same batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from doublecv.diagnostics.meter import Meter, mean_variance
from doublecv.distributions import Distribution
from doublecv.estimators import Learned
from doublecv.jax.diagnostics import best_coefficients, measure
from doublecv.jax.rule import Function
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import make_context, make_expectation, start_estimator
from doublecv.lab.vae.batches import observe
from doublecv.lab.vae.model import VAE
from doublecv.lab.vae.objective import elbo

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray, UInt8


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
            estimator = make_expectation(of_name).estimator
            if name == settings.estimator:
                learned = trained
            elif estimator.needs.coefficients:
                learned = best_coefficients(f, q, estimator, fit_key, settings.compare_draws)
            else:
                learned = start_estimator(of_name, model).learned
            return mean_variance(
                measure_gradient(of_name, model, y, f, q, learned, measure_key, settings.compare_draws)
            )

        return {name: variance(name) for name in settings.compare_variance}

    return compare


def measure_gradient(
    settings: TrainSettings,
    model: VAE,
    y: Float[Array, "batch pixels"],
    f: Function,
    q: Distribution,
    learned: Learned,
    key: PRNGKeyArray,
    draws: int,
) -> Meter:
    """Return the meter of the gradient in the logits over independent draws."""
    expectation = make_expectation(settings)
    context = make_context(expectation, model, y)
    return measure(lambda key: expectation.estimate(f, q, learned, key, context=context).gradient, key, draws)
