"""Any registered estimator trains, with both families of latents and both likelihoods."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from doublecv import Bernoulli, estimators
from doublecv.lab.common.errors import InputError
from doublecv.lab.train.step import loss, make_model, make_step, start_estimator
from doublecv.lab.vae.likelihoods import observe
from tiny_images import tiny_dataset, tiny_settings

TRAINABLE = [
    name
    for name, needs in ((name, estimators.make(name, samples=4).needs) for name in estimators.names())
    if Bernoulli in needs.families and not needs.expected_f
]


def samples_for(name):
    return max(2, estimators.make(name, samples=4).needs.minimum_samples)


def moving(state):
    """Return what every step changes.

    Solved coefficients are 0 until later steps than the first support them, and no fall is seen so early.
    """
    numbers, averages, _ = state.estimator.learned
    later = ("coefficients", "fallen")
    averages = {name: value for name, value in averages.items() if not any(word in name for word in later)}
    return state.model, numbers, averages


@pytest.mark.parametrize("name", TRAINABLE)
def test_any_estimator_trains_binary_latents(name):
    settings = tiny_settings(estimator=name, samples=samples_for(name))
    program = make_step(settings, tiny_dataset())
    state = program.start()
    start = jax.tree.map(np.array, moving(state))
    state, report = program.chunk(state, 0, 3)
    assert int(report.first_bad_step) == -1
    assert np.isfinite([report.elbo, report.encoder_variance, report.logits_variance]).all()
    unmoved = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (start, moving(state))), strict=True)]
    assert not any(unmoved)


@pytest.mark.parametrize("name", ["double-cv", "relax"])
def test_categorical_latents_and_gaussian_likelihood(name):
    settings = tiny_settings(estimator=name, latent="categorical", categories=4, likelihood="gaussian")
    program = make_step(settings, tiny_dataset())
    state, report = program.chunk(program.start(), 0, 3)
    assert int(report.first_bad_step) == -1
    assert state.tracker.logits.shape == (12,)
    assert np.isfinite(float(report.elbo))


@pytest.mark.parametrize("name", ["disarm", "arms"])
def test_the_decoder_can_train_on_independent_samples(name):
    """The encoder's gradient is that of the coupled samples; the decoder's has the same mean as with them."""
    settings = tiny_settings(estimator=name, batch=20)
    dataset = tiny_dataset()
    model = make_model(settings, 6, jax.random.key(0))
    learned = start_estimator(settings, model).learned
    y = observe(jax.random.key(1), dataset.train[:20], "bernoulli")
    shift = np.zeros((20, model.encoder.outputs), np.float32)

    def gradients(decoder_samples, key):
        of = replace(settings, decoder_samples=decoder_samples)
        return jax.grad(loss, argnums=1)(of, model, learned, shift, y, key)

    keys = jax.random.split(jax.random.key(2), 3000)
    shared, independent = (jax.jit(jax.vmap(partial(gradients, kind)))(keys) for kind in ("shared", "independent"))
    for a, b in zip(*(jax.tree.leaves(tree.encoder) for tree in (shared, independent)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(*(jax.tree.leaves(tree.decoder) for tree in (shared, independent)), strict=True):
        assert not np.allclose(a, b)
        error = np.sqrt((np.var(a, axis=0) + np.var(b, axis=0)) / len(keys))
        assert np.all(np.abs(np.mean(a, axis=0) - np.mean(b, axis=0)) < 6 * error + 1e-6)


@pytest.mark.parametrize("name", ["rloo", "quadratic-double-cv"])
def test_two_layers_train(name):
    settings = tiny_settings(estimator=name, network="two-layer")
    program = make_step(settings, tiny_dataset())
    state = program.start()
    start = jax.tree.map(np.array, state.model)
    state, report = program.chunk(state, 0, 3)
    assert int(report.first_bad_step) == -1
    assert np.isfinite([report.elbo, report.encoder_variance, report.logits_variance]).all()
    assert not any(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (start, state.model)), strict=True))


@pytest.mark.parametrize("changes", [{"estimator": "disarm"}, {"latent": "categorical"}])
def test_what_two_layers_do_not_have(changes):
    with pytest.raises(InputError, match="--network two-layer"):
        tiny_settings(network="two-layer", **changes).check()


BOUND = {"objective": "iwae", "bound_samples_train": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"estimator": "vimco", "samples": 1},
        {"estimator": "vimco-double-cv", "samples": 2},
        {"estimator": "vimco-double-cv", "samples": 1, "network": "two-layer"},
        {"estimator": "vimco-double-cv", "samples": 1, "latent": "categorical", "categories": 3},
        {"estimator": "rloo"},
        {"estimator": "quadratic-double-cv", "network": "two-layer"},
        {"estimator": "double-cv", "latent": "categorical", "categories": 3},
        {"estimator": "relax", "samples": 1},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_the_importance_weighted_bound_trains(changes):
    program = make_step(tiny_settings(**BOUND | changes), tiny_dataset())
    state = program.start()
    start = jax.tree.map(np.array, state.model)
    state, report = program.chunk(state, 0, 3)
    assert int(report.first_bad_step) == -1
    assert np.isfinite([report.elbo, report.encoder_variance, report.logits_variance]).all()
    assert not any(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (start, state.model)), strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_samples": "independent"}, "is for --objective elbo"),
        ({"objective": "elbo"}, "--bound-samples-train is for --objective iwae"),
        ({"objective": "elbo", "bound_samples_train": 8, "estimator": "vimco"}, "vimco is for --objective iwae"),
        ({"bound_samples_train": 1}, "--bound-samples-train must be at least 2, got 1"),
        ({"network": "two-layer", "estimator": "disarm"}, "needs independent latents"),
    ],
)
def test_what_does_not_fit_the_bound(changes, message):
    with pytest.raises(InputError, match=message):
        tiny_settings(**BOUND | {"estimator": "rloo"} | changes).check()


def test_the_numbers_of_evaluations_are_those_of_the_model():
    settings = tiny_settings(**BOUND)
    of = {
        name: replace(settings, estimator=name).evaluations for name in ("vimco", "vimco-double-cv", "rloo", "muprop")
    }
    assert of == {"vimco": 6, "vimco-double-cv": 6, "rloo": 6, "muprop": 9}
    assert tiny_settings().evaluations == 2
