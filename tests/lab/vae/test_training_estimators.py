"""Any registered estimator trains, with both families of latents and both likelihoods."""

import jax
import numpy as np
import pytest
from tiny_images import tiny_dataset, tiny_settings

from doublecv import estimators
from doublecv.lab.train.step import make_step
from problems import samples_for

TRAINABLE = [name for name in estimators.names() if name != "r-star"]


@pytest.mark.parametrize("name", TRAINABLE)
def test_any_estimator_trains_binary_latents(name):
    settings = tiny_settings(estimator=name, samples=samples_for(name))
    program = make_step(settings, tiny_dataset())
    state = program.start()
    start = jax.tree.map(np.array, (state.model, state.coefficients))
    state, report = program.chunk(state, 0, 3)
    assert int(report.first_bad_step) == -1
    assert np.isfinite([report.elbo, report.encoder_variance, report.logits_variance]).all()
    end = (state.model, state.coefficients)
    unmoved = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (start, end)), strict=True)]
    assert not any(unmoved)


@pytest.mark.parametrize("name", ["double-cv", "relax"])
@pytest.mark.parametrize("kl", ["sampled", "analytic"])
def test_categorical_latents_and_gaussian_likelihood(name, kl):
    settings = tiny_settings(estimator=name, latent="categorical", categories=4, likelihood="gaussian", kl=kl)
    program = make_step(settings, tiny_dataset())
    state, report = program.chunk(program.start(), 0, 3)
    assert int(report.first_bad_step) == -1
    assert state.tracker.logits.shape == (12,)
    assert np.isfinite(float(report.elbo))
