"""The learned surrogate: unbiased with any factor, in units of the spread of f, and unused where it does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import doublecv as dcv
from doublecv.estimators import Evaluation
from doublecv.exact import exact_gradient, exact_moments
from doublecv.jax import Expectation

SLOPE = np.array([1.0, -2.0, 0.5])


def quadratic(x):
    return x @ SLOPE + 1.5 * x[..., 0] * x[..., 1]


def quadratic_df(x):
    extra = np.stack([x[..., 1], x[..., 0], np.zeros_like(x[..., 0])], axis=-1)
    return SLOPE + 1.5 * extra


@pytest.mark.parametrize("base", [dcv.RLOO(samples=2), dcv.QuadraticDoubleCV(samples=2)], ids=str)
def test_the_estimate_is_unbiased_whatever_the_state(base):
    q, estimator = dcv.Bernoulli(logits=np.array([[0.2, -0.4, 1.0]])), dcv.LearnedSurrogate(base)
    rng, start = np.random.default_rng(0), estimator.init(q)
    learned = type(start)(*({name: rng.normal(size=np.shape(value)) for name, value in tree.items()} for tree in start))
    learned.averages["surrogate_coefficients"], learned.averages["surrogate_log_fallen"] = np.array([0.7]), np.zeros(())
    moments = exact_moments(quadratic, q, estimator, learned, df=quadratic_df)
    np.testing.assert_allclose(moments.mean, exact_gradient(quadratic, q), atol=1e-10)
    without = exact_moments(quadratic, q, estimator, start, df=quadratic_df)
    assert np.any(np.abs(moments.variance - without.variance) > 1e-3)


@pytest.mark.parametrize("samples", [2, 3])
def test_the_estimate_is_unbiased_where_the_gradient_is_below_the_floor_at_some_samples(samples):
    q = dcv.Bernoulli(logits=np.array([[0.2, -0.4, 1.0]]))
    estimator = dcv.LearnedSurrogate(dcv.QuadraticDoubleCV(samples=samples))
    rng, start = np.random.default_rng(0), estimator.init(q)
    learned = type(start)(*({name: rng.normal(size=np.shape(value)) for name, value in tree.items()} for tree in start))
    learned.averages["surrogate_coefficients"], learned.averages["surrogate_log_fallen"] = np.array([0.7]), np.zeros(())
    estimates = {}
    for floor in (0.0, 4.0, 1e6):
        learned.averages["floor"] = np.asarray(floor)
        estimates[floor] = exact_moments(quadratic, q, estimator, learned, df=quadratic_df)
        np.testing.assert_allclose(estimates[floor].mean, exact_gradient(quadratic, q), atol=1e-10)
    rloo = exact_moments(quadratic, q, dcv.RLOO(samples=samples))
    np.testing.assert_allclose(estimates[1e6].variance, rloo.variance, rtol=1e-6)
    assert np.all(np.abs(estimates[4.0].variance - estimates[0.0].variance) > 1e-3)
    assert np.all(np.abs(estimates[4.0].variance - rloo.variance) > 1e-3)


@pytest.mark.parametrize("fall", [10.0, 1e6])
def test_a_surrogate_does_no_harm_in_the_very_step_in_which_f_falls_nor_later(fall):
    estimator = dcv.LearnedSurrogate(dcv.QuadraticDoubleCV(samples=2))
    q = dcv.Bernoulli(logits=np.array([[0.2, -0.4, 1.0]]))
    learned, rng, ratios = estimator.init(q), np.random.default_rng(0), []
    for step in range(315):
        scale = 1.0 if step < 300 else 1 / fall
        f, df = (lambda x, scale=scale: scale * quadratic(x)), (lambda x, scale=scale: scale * quadratic_df(x))
        rloo, own = (
            np.sum(exact_moments(f, q, *made, df=df).variance)
            for made in ((dcv.RLOO(samples=2),), (estimator, learned))
        )
        ratios.append(own / rloo)
        x = estimator.draw(q, rng.random(estimator.noise_shape(q)))
        applied = estimator.apply(q, Evaluation(x, f(x), df(x)), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
        if step == 0:
            unit = np.exp(learned.averages["surrogate_log_scale"] / 2)
            learned.numbers["surrogate_readout_bias"][:3] = quadratic_df(np.asarray(q.mean[0])) / unit
    assert ratios[299] < 0.7
    assert max(ratios[300:]) < 1.1


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_surrogate_learns_an_f_of_any_scale_and_lowers_the_variance(scale):
    q = dcv.Bernoulli(logits=jnp.tile(jnp.array([[0.2, -0.4, 1.0]]), (8, 1)))
    expectation = Expectation(dcv.LearnedSurrogate(dcv.RLOO(samples=2)))

    def f(x):
        return scale * (x @ jnp.asarray(SLOPE, jnp.float32) + 1.5 * x[..., 0] * x[..., 1])

    @jax.jit
    def train(key):
        def step(state, key):
            gradients = expectation.estimate(f, q, state.learned, key).learned_gradient
            return expectation.update(gradients, state), state.learned.averages["surrogate_coefficients"][0]

        return jax.lax.scan(step, expectation.init(q), jax.random.split(key, 3000))

    state, factors = train(jax.random.key(0))
    assert factors[0] == 0
    assert factors[-1] > 0.8
    exact_q = dcv.Bernoulli(logits=np.array([[0.2, -0.4, 1.0]]))
    learned = jax.tree.map(lambda leaf: np.asarray(leaf, float), state.learned)
    args = (lambda x: scale * quadratic(x), exact_q)
    own = exact_moments(*args, expectation.estimator, learned, df=lambda x: scale * quadratic_df(x)).variance
    assert np.sum(own) < 0.3 * np.sum(exact_moments(*args, dcv.RLOO(samples=2)).variance)


def test_a_surrogate_is_left_out_at_once_where_f_becomes_much_smaller():
    q, estimator = dcv.Bernoulli(logits=np.tile([0.2, -0.4, 1.0], (8, 1))), dcv.LearnedSurrogate(dcv.RLOO(samples=2))
    learned, rng, exact_q = estimator.init(q), np.random.default_rng(0), dcv.Bernoulli(logits=np.zeros((1, 3)))
    ratios = {}
    for step in range(45):
        scale = 1e-6 if step >= 40 else 1.0
        x = estimator.draw(q, rng.random(estimator.noise_shape(q)))
        evaluation = Evaluation(x, scale * quadratic(x), scale * quadratic_df(x))
        applied = estimator.apply(q, evaluation, learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
        if step == 0:
            # The slope at the mean, in the unit of the first step.
            unit = np.exp(learned.averages["surrogate_log_scale"] / 2)
            learned.numbers["surrogate_readout_bias"][:3] = quadratic_df(np.asarray(q.mean[0])) / unit
        own, rloo = (
            np.sum(
                exact_moments(
                    lambda x, scale=scale: scale * quadratic(x),
                    exact_q,
                    *made,
                    df=lambda x, scale=scale: scale * quadratic_df(x),
                ).variance
            )
            for made in ((estimator, learned), (dcv.RLOO(samples=2),))
        )
        ratios[step] = own / rloo
    assert ratios[39] < 0.7
    assert ratios[40] == pytest.approx(1)
    assert ratios[44] < 1.05


@pytest.mark.parametrize(("base", "change"), [(dcv.DoubleCV(2), 1e-6), (dcv.QuadraticDoubleCV(2), 1e6)], ids=str)
def test_the_base_uses_no_control_variate_after_a_large_change_of_f(base, change):
    """Its coefficients are those of a residual, and in the next step it gets nearly all of f."""
    estimator = dcv.LearnedSurrogate(base)
    q, rng = dcv.Bernoulli(logits=np.tile([0.2, -0.4, 1.0], (8, 1))), np.random.default_rng(0)
    learned, states = estimator.init(q), []
    for step in range(65):
        scale = change if step >= 60 else 1.0
        x = estimator.draw(q, rng.random(estimator.noise_shape(q)))
        evaluation = Evaluation(x, scale * quadratic(x), scale * quadratic_df(x))
        applied = estimator.apply(q, evaluation, learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
        states.append(learned.averages["coefficients"])
    assert np.max(np.abs(states[59])) > 1e-3
    assert np.all(states[60] == 0)
    assert np.max(np.abs(states[64])) > 1e-3
