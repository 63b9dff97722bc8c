"""Measure the variance of estimators at the same parameters and on the same batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from doublecv.diagnostics.meter import Meter, mean_variance
from doublecv.estimators import Learned
from doublecv.jax.diagnostics import best_coefficients, measure
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

    The estimator that is being trained is measured with its own learned state.
    """

    @jax.jit
    def compare(model: VAE, trained: Learned, images: Any, key: Any) -> dict[str, Any]:
        observe_key, *keys = jax.random.split(key, 3)
        y = observe(observe_key, images, settings.likelihood)
        found = {}
        for name in settings.compare_variance:
            learned = trained if name == settings.estimator else None
            meter = measure_gradient(
                replace(settings, estimator=name), model, y, learned, *keys, settings.compare_draws
            )
            found[name] = mean_variance(meter)
        return found

    return compare


def measure_gradient(
    settings: TrainSettings,
    model: VAE,
    y: Float[Array, "batch pixels"],
    learned: Learned | None,
    fit_key: PRNGKeyArray,
    measure_key: PRNGKeyArray,
    draws: int,
) -> Meter:
    """Return the meter of the gradient in the logits over independent draws.

    Without a learned state, an estimator that is linear in its coefficients is measured with the best ones, solved from
    as many separate draws, and another one with its initial state.
    """
    expectation = make_expectation(settings)
    context = make_context(expectation, model, y)
    q = model.posterior(model.encoder(y))
    f = elbo(model, y, q, settings.kl).f
    if learned is None and expectation.estimator.needs.coefficients:
        learned = best_coefficients(f, q, expectation.estimator, fit_key, draws)
    elif learned is None:
        learned = start_estimator(settings, model).learned
    return measure(lambda key: expectation.estimate(f, q, learned, key, context=context).gradient, measure_key, draws)
