"""The compiled steps: the same bits however a run is cut, every image once an epoch, and what is not finite."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doublecv.lab.common.errors import InputError
from doublecv.lab.train.step import make_step
from tiny_images import tiny_dataset, tiny_settings


def trained(settings, chunks, dataset=None, seeds=None):
    program = make_step(settings, dataset or tiny_dataset(), seeds)
    state, step = program.start(), 0
    reports = []
    for steps in chunks:
        state, report = program.chunk(state, step, steps)
        reports.append(report)
        step += steps
    return state, reports


def same_bits(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


def test_a_run_that_is_cut_anywhere_ends_with_the_same_bits():
    settings = tiny_settings()
    whole, _ = trained(settings, [17])
    cut, _ = trained(settings, [1, 5, 6, 2, 3])
    assert same_bits(whole, cut)
    assert not same_bits(whole, trained(replace(settings, seed=2), [17])[0])


def test_parallel_seeds_are_the_single_ones():
    settings = tiny_settings()
    together, (report,) = trained(settings, [9], seeds=(3, 4))
    alone, (its_report,) = trained(replace(settings, seed=4), [9])
    assert (together.order[1] == alone.order).all()
    for a, b in zip(jax.tree.leaves(together.model), jax.tree.leaves(alone.model), strict=True):
        np.testing.assert_allclose(a[1], b, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(report.elbo[1], its_report.elbo, rtol=1e-5)
    assert report.elbo[0] != report.elbo[1]


def test_an_epoch_visits_each_image_once():
    """With learning rates that do nothing and a decoder of zeros, the ELBO of an epoch is a sum over the set."""
    settings = tiny_settings(likelihood="gaussian", learning_rate=1e-30, batch=7)
    dataset = tiny_dataset(train=49)
    program = make_step(settings, dataset)

    def zero_decoder(state):
        return state._replace(model=jax.tree.map(jnp.zeros_like, state.model))

    y = dataset.train.astype(float) * (2 / 255) - 1
    variance = np.log(2)
    of_image = (-0.5 * (y**2 / variance + np.log(2 * np.pi * variance))).sum(1)
    state, first = program.chunk(zero_decoder(program.start()), 0, 7)
    order = np.array(state.order)
    state, second = program.chunk(state, 7, 7)
    assert not np.array_equal(order, state.order)
    assert float(first.elbo) == pytest.approx(of_image.mean(), rel=1e-5)
    assert float(second.elbo) == pytest.approx(of_image.mean(), rel=1e-5)
    _, part = program.chunk(state, 14, 3)
    assert float(part.elbo) != pytest.approx(of_image.mean(), rel=1e-5)


def test_training_raises_the_elbo_and_learns_alpha():
    pixels = np.zeros((60, 6), np.uint8)
    pixels[::2, :3] = 255
    dataset = replace(tiny_dataset(), train=pixels)
    state, reports = trained(tiny_settings(learning_rate=0.02), [200, 200, 200], dataset)
    elbos = [float(report.elbo) for report in reports]
    assert elbos[0] < elbos[1] < elbos[2]
    assert elbos[2] > -1.2
    assert abs(float(state.estimator.learned.numbers["alpha"])) > 0.05


def test_the_first_step_that_is_not_finite_is_named():
    settings = tiny_settings()
    program = make_step(settings, tiny_dataset())
    state, report = program.chunk(program.start(), 0, 5)
    assert int(report.first_bad_step) == -1
    broken = state.model.decoder.layers[0].weight.at[0, 0].set(jnp.nan)
    model = jax.tree.map(lambda leaf: broken if leaf is state.model.decoder.layers[0].weight else leaf, state.model)
    _, report = program.chunk(state._replace(model=model), 5, 4)
    assert int(report.first_bad_step) == 5


def test_a_learning_rate_that_blows_up_is_noticed_within_the_chunk():
    settings = tiny_settings(learning_rate=1e25, likelihood="gaussian")
    _, (report,) = trained(settings, [6])
    assert 0 <= int(report.first_bad_step) < 6


def test_more_images_a_step_than_there_are():
    with pytest.raises(InputError, match="--batch must be at most 60, the number of training images of tiny; got 61"):
        make_step(tiny_settings(batch=61), tiny_dataset())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimator": "r-star"}, "--estimator r-star needs the exact mean of f, which is unknown here"),
        ({"estimator": "dubble-cv"}, "unknown estimator 'dubble-cv'; did you mean 'double-cv'?"),
        ({"estimator": "disarm", "samples": 3}, "--samples 3 does not fit --estimator disarm"),
        ({"estimator": "arms", "latent": "categorical"}, "arms needs binary latents"),
        ({"batch": 0}, "--batch must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "--learning-rate must be a positive number, got 0.0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be a positive number, got nan"),
    ],
)
def test_settings_that_cannot_work(changes, message):
    with pytest.raises(InputError) as error:
        tiny_settings(**changes).check()
    assert message in str(error.value)
