"""The running norm of the gradient, its floor, and the test for a fall of f."""

import numpy as np
import pytest
from test_moments import exact_ratio, network, run

import doublecv as dcv
from doublecv.estimators import Evaluation, norm


def follow(averages, log_squares, rise=0.0):
    """Return the running norm after a step with the given logarithms of N, of one batch element per column."""
    log_squares = np.atleast_2d(np.asarray(log_squares, dtype=float))
    weight = np.full(log_squares.shape[1], 0.5)
    statistics = norm.statistics(averages, np.exp(log_squares / 2), weight)
    return norm.follow(averages, statistics["norms"], np.sum(weight), np.asarray(rise))


def follow_many(steps, mean=0.0, spread=1.0, seed=0, samples=(2, 4)):
    rng, averages = np.random.default_rng(seed), norm.start()
    for _ in range(steps):
        averages = follow(averages, mean + spread * rng.normal(size=samples)).state
    return averages


def log_mean_norm(log_squares):
    return 2 * np.log(np.mean(np.exp(np.asarray(log_squares) / 2)))


def test_the_first_step_is_its_own_unit():
    followed = follow(norm.start(), [[1.0, 2.0], [3.0, 4.0]])
    z = log_mean_norm([1, 2, 3, 4])
    np.testing.assert_allclose(followed.state["log_norm"], z)
    np.testing.assert_allclose(followed.state["log_unit"], z)
    np.testing.assert_allclose(followed.of_step, z)
    np.testing.assert_allclose(followed.state["norm_offset"], 2.5 - z)
    np.testing.assert_allclose(followed.state["norm_variance"], np.var([1, 2, 3, 4], ddof=1))
    assert followed.of_earlier == 0
    assert followed.state["norm_scatter"] == 0


@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_the_running_norm_and_its_floor_are_those_of_the_samples(spread):
    averages = follow_many(400, mean=7.0, spread=spread)
    steps = 7 + spread * np.random.default_rng(1).normal(size=(10_000, 8))
    z = 2 * np.log(np.mean(np.exp(steps / 2), axis=1))
    np.testing.assert_allclose(averages["log_norm"], z.mean(), atol=0.2 * spread)
    np.testing.assert_allclose(averages["norm_scatter"], z.var(), rtol=0.3)
    np.testing.assert_allclose(averages["norm_variance"], spread**2, rtol=0.2)
    mean = averages["log_norm"] + averages["norm_offset"]
    np.testing.assert_allclose(mean, 7, atol=0.2 * spread)
    wanted = (mean - norm.DEPTH * averages["norm_variance"]) / 2
    np.testing.assert_allclose(np.log(averages["floor"]), wanted)


def test_samples_where_f_is_flat_do_not_move_the_norm():
    """The norm at most samples falls without end, as for a sigmoid that training makes small."""
    averages, rng = follow_many(100, samples=(2, 10)), np.random.default_rng(1)
    before = float(averages["log_norm"])
    for step in range(100):
        log_squares = rng.normal(size=(2, 10))
        log_squares[:, 4:] -= step
        averages = follow(averages, log_squares).state
    assert before - 3 < averages["log_norm"] < before


@pytest.mark.parametrize("missing", [-np.inf, np.inf, np.nan])
def test_samples_without_a_gradient_do_not_count(missing):
    averages = follow_many(100)
    half = follow(averages, [[1.0, missing], [1.0, missing]]).state
    none = follow(averages, np.full((2, 2), missing)).state
    all_of_them = follow(averages, np.ones((2, 2))).state
    moved = {name: half[name] - averages[name] for name in ("log_norm", "norm_steps", "norm_variance")}
    for name, value in moved.items():
        np.testing.assert_allclose(value, (all_of_them[name] - averages[name]) / 2, err_msg=name)
    for name, value in none.items():
        np.testing.assert_allclose(value, averages[name], err_msg=name)


@pytest.mark.parametrize("fall", [5.0, 30.0])
def test_the_norm_follows_a_clear_fall_at_once_and_stays_below(fall):
    averages = follow_many(200)
    fallen = follow(averages, np.random.default_rng(1).normal(size=(2, 4)) - fall).state
    assert averages["log_norm"] - fall - 2 < fallen["log_norm"] < averages["log_norm"] - fall + 0.5


def test_several_small_steps_in_a_row_are_a_fall():
    """Each of them is usual for samples with this spread."""
    averages, rng = follow_many(200, spread=4.0, samples=(2, 1)), np.random.default_rng(1)
    before = averages["log_norm"]
    for _ in range(12):
        averages = follow(averages, 4 * rng.normal(size=(2, 1)) - 8).state
    assert averages["log_norm"] < before - 5


def test_an_unusually_small_step_lowers_the_unit_of_the_next_step_only():
    averages = follow_many(200)
    deviation = np.sqrt(averages["norm_scatter"])
    small = follow(averages, np.full((2, 4), averages["log_norm"] - 3.0 * deviation)).state
    assert small["log_unit"] < averages["log_norm"] - 3 * deviation
    assert small["log_norm"] > averages["log_norm"] - 0.5 * deviation
    usual = follow(small, np.full((2, 4), averages["log_norm"])).state
    np.testing.assert_allclose(usual["log_unit"], usual["log_norm"], atol=0.1 * deviation)


def test_a_fall_that_was_chance_is_taken_back_and_widens_what_is_usual():
    averages, rng = follow_many(200), np.random.default_rng(1)
    flat = follow(averages, rng.normal(size=(2, 4)) - 25).state
    assert flat["norm_fallen"] > 20
    back = follow(flat, rng.normal(size=(2, 4))).state
    assert back["norm_fallen"] == 0
    np.testing.assert_allclose(back["log_norm"], averages["log_norm"], atol=1e-10)
    assert back["norm_scatter"] > averages["norm_scatter"] + 10
    again = follow(back, rng.normal(size=(2, 4)) - 12).state
    assert again["norm_fallen"] == 0


def test_a_fall_that_lasts_is_not_taken_back():
    averages, rng = follow_many(200), np.random.default_rng(1)
    for _ in range(50):
        averages = follow(averages, rng.normal(size=(2, 4)) - 25).state
    assert averages["norm_fallen"] > 20
    np.testing.assert_allclose(averages["log_norm"], -25, atol=2)


def test_one_large_step_does_not_raise_the_norm_but_a_rise_of_the_scale_does():
    averages = follow_many(200)
    large = follow(averages, np.full((2, 4), 14.0)).state
    assert large["log_norm"] < averages["log_norm"] + 0.1
    risen = follow(averages, np.full((2, 4), 14.0), rise=14.0).state
    np.testing.assert_allclose(risen["log_norm"], averages["log_norm"] + 14, atol=0.1)


@pytest.mark.parametrize("fall", [0.1, 0.01, 1e-6])
@pytest.mark.parametrize("seed", [0, 2, 5])
def test_a_fall_of_f_does_little_harm_in_the_same_step_and_none_after_it(seed, fall):
    f, df = network(5, seed)
    estimator, q = dcv.QuadraticDoubleCV(samples=2), dcv.Bernoulli(0.5 * np.random.default_rng(seed).normal(size=5))
    states = run(estimator, q, f, df, 320, lambda step: 1.0 if step < 300 else fall, seed=seed)
    coefficients = estimator.coefficients(states[300])
    assert max(abs(float(coefficients[name])) for name in estimator.bounded) > 0.01

    def ratio(step, factor):
        return exact_ratio(estimator, q, lambda x: factor * f(x), lambda x: factor * df(x), states[step])

    assert ratio(300, 1.0) < 0.9
    assert ratio(300, fall) < 1.2
    assert max(ratio(step, fall) for step in (301, 302, 305, 310, 320)) <= 1.01


def test_what_is_held_in_a_step_gives_the_same_estimate_as_the_averages():
    f, df = network(5)
    estimator, q = dcv.QuadraticDoubleCV(samples=2), dcv.Bernoulli(np.zeros((4, 5)))
    learned = run(estimator, q, f, df, 60)[-1]
    held = dict(zip(estimator.held_names, estimator.hold(learned.averages), strict=True))
    assert held["floor"] > 0
    fixed = dcv.Learned(held, {}, {})
    x = (np.random.default_rng(0).random((2, 4, 5)) < 0.5).astype(float)
    evaluation = Evaluation(x, f(x), df(x))
    wanted = estimator.apply(q, evaluation, learned).gradient
    np.testing.assert_allclose(estimator.apply(q, evaluation, fixed).gradient, wanted, rtol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_large_fall_does_no_harm_in_the_same_step_where_the_norm_varies_by_orders_of_magnitude(seed):
    rng = np.random.default_rng(seed)
    slope = rng.normal(size=5)
    slope *= 4 / np.linalg.norm(slope)
    estimator, q = dcv.QuadraticDoubleCV(samples=2), dcv.Bernoulli(rng.normal(size=5))

    def f(x):
        return np.exp((x - 0.5) @ slope)

    def df(x):
        return f(x)[..., None] * slope

    learned = run(estimator, q, f, df, 300, seed=seed)[-1]
    assert exact_ratio(estimator, q, f, df, learned) < 0.6
    assert exact_ratio(estimator, q, lambda x: 1e-6 * f(x), lambda x: 1e-6 * df(x), learned) <= 1.1


def test_an_estimator_without_bounded_terms_refuses_a_floor():
    estimator, q = dcv.DoubleCV(samples=2, learning="gradient"), dcv.Bernoulli(np.zeros((4, 5)))
    evaluation = Evaluation(np.zeros((2, 4, 5)), np.zeros((2, 4)), np.zeros((2, 4, 5)))
    with pytest.raises(ValueError, match="floor"):
        estimator.apply(q, evaluation, dcv.Learned({"alpha": 0.1, "floor": 1.0}, {}, {}))
