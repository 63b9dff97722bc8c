"""The running scale of g0, and how a fall of f is told from chance."""

import numpy as np
import pytest
from test_moments import exact_ratio, run

import doublecv as dcv
from doublecv.estimators import scale


def follow(averages, log_own, steps=100.0, *, sees_f=True, bounded=False):
    own = np.exp(np.asarray(log_own, dtype=float))
    one = np.ones(())
    return scale.follow(averages, own, own + 1, 2 * one, steps * one, sees_f=sees_f, bounded=bounded)


def follow_many(steps, deviation, seed=0):
    rng, averages = np.random.default_rng(seed), scale.start()
    for step in range(steps):
        log_own = deviation * rng.normal() - float(averages["log_scale"])
        averages = follow(averages, log_own, step + 1.0).state
    return averages


def test_before_anything_is_known_a_fall_is_one_by_a_hundred():
    assert scale.has_fallen(follow(scale.start(), scale.FALL - 0.1).state)
    assert not scale.has_fallen(follow(scale.start(), scale.FALL + 0.1).state)


@pytest.mark.parametrize("deviation", [0.3, 1.0, 4.0])
def test_a_fall_is_four_standard_deviations(deviation):
    averages = follow_many(300, deviation)
    learned = float(averages["own_variance"]) ** 0.5
    assert learned == pytest.approx(deviation, rel=0.4)
    assert scale.has_fallen(follow(averages, -4.1 * learned).state)
    assert not scale.has_fallen(follow(averages, -3.9 * learned).state)


def test_a_fall_counts_in_the_deviation_only_if_it_was_chance():
    averages = follow_many(300, 1.0)
    fallen = follow(averages, -12.0).state
    assert fallen["own_variance"] == averages["own_variance"]
    assert scale.has_fallen(follow(fallen, -12.0).state)
    back = follow(fallen, 0.0).state
    assert not scale.has_fallen(back)
    assert back["own_variance"] > averages["own_variance"] + 5


def test_the_scale_of_what_does_not_see_f_follows_two_falls_in_a_row():
    averages = follow_many(300, 0.5)
    once = follow(averages, -6.0, sees_f=False).state
    assert averages["log_scale"] - 1 < once["log_scale"]
    twice = follow(once, -6.0, sees_f=False).state
    assert twice["log_scale"] == pytest.approx(float(once["log_scale"]) - 5.85, abs=0.2)
    assert not scale.has_fallen(twice)


@pytest.mark.parametrize(("seed", "batch", "sharpness"), [(1, 100, 20), (0, 4, 40)])
def test_a_fall_does_no_harm_in_the_next_steps_where_the_gradient_vanishes_in_most_outcomes(seed, batch, sharpness):
    """A steep sigmoid and a batch: the norm of the gradient varies by orders of magnitude, and g0 . g0 does not."""
    rng = np.random.default_rng(seed)
    slope = rng.normal(size=5)
    slope *= 2 / np.linalg.norm(slope)
    estimator, logits = dcv.QuadraticDoubleCV(samples=2), rng.normal(size=5) / 2

    def f(x):
        return 1 / (1 + np.exp(-sharpness * ((x - 0.5) @ slope - 0.3)))

    def df(x):
        return (sharpness * f(x) * (1 - f(x)))[..., None] * slope

    q = dcv.Bernoulli(logits=np.tile(logits, (batch, 1)))
    states = run(estimator, q, f, df, 205, lambda step: 1.0 if step < 200 else 1e-6, seed=seed)
    small = dcv.Bernoulli(logits=logits), lambda x: 1e-6 * f(x), lambda x: 1e-6 * df(x)
    assert exact_ratio(estimator, dcv.Bernoulli(logits=logits), f, df, states[200]) < 0.95
    assert max(exact_ratio(estimator, *small, states[step]) for step in range(201, 206)) <= 1.1
