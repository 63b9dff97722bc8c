"""Solved coefficients: unbiased, additive over batch elements, free of scale, and never worse than RLOO."""

from dataclasses import replace

import numpy as np
import pytest

import doublecv as dcv
from doublecv.estimators import Evaluation, Learned, fixed_coefficients, judgement, moments
from doublecv.exact import enumerate_outcomes, exact_gradient, exact_moments

ESTIMATORS = [
    dcv.DoubleCV(samples=2, learning="moments"),
    dcv.DoubleCV(samples=3, learning="moments"),
    dcv.QuadraticDoubleCV(samples=2),
    dcv.QuadraticDoubleCV(samples=3),
]


def network(variables, seed=0):
    """Return a tanh network of the variables and its gradient."""
    rng = np.random.default_rng(seed)
    inner, outer = rng.normal(size=(variables, 6)) * 2 / variables**0.5, rng.normal(size=6)

    def f(x):
        return np.tanh(x @ inner) @ outer

    def df(x):
        return ((1 - np.tanh(x @ inner) ** 2) * outer) @ inner.T

    return f, df


def cast(learned, dtype):
    return Learned(*({name: np.asarray(value, dtype) for name, value in tree.items()} for tree in learned))


def draw(estimator, q, f, df, rng, factor=1.0):
    dtype = q.logits.dtype
    x = estimator.draw(q, rng.random(estimator.noise_shape(q)))
    return Evaluation(x, (f(x) * factor).astype(dtype), (df(x) * factor).astype(dtype))


def run(estimator, q, f, df, steps, factor=lambda step: 1.0, seed=0):
    """Return the learned states before each step and after the last."""
    rng, learned = np.random.default_rng(seed), cast(estimator.init(), q.logits.dtype)
    states = [learned]
    with np.errstate(invalid="ignore", over="ignore"):
        for step in range(steps):
            evaluation = draw(estimator, q, f, df, rng, factor(step))
            applied = estimator.apply(q, evaluation, learned)
            learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
            states.append(learned)
    return states


def exact_ratio(estimator, q, f, df, learned):
    """Return the variance relative to RLOO's, both by enumeration."""
    rloo = exact_moments(f, q, dcv.RLOO(samples=estimator.samples))
    return np.sum(exact_moments(f, q, estimator, learned, df=df).variance) / np.sum(rloo.variance)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_the_estimate_is_unbiased_whatever_the_state(estimator):
    f, df = network(3)
    q, rng = dcv.Bernoulli(logits=np.array([-1.0, 0.3, 2.0])), np.random.default_rng(1)
    start = estimator.init()
    averages = {name: rng.normal(size=np.shape(value)) for name, value in start.averages.items()}
    learned = start._replace(averages=averages)
    mean = exact_moments(f, q, estimator, learned, df=df).mean
    np.testing.assert_allclose(mean, exact_gradient(f, q), atol=1e-10)
    without = exact_moments(f, q, estimator, start, df=df).variance
    assert np.any(np.abs(exact_moments(f, q, estimator, learned, df=df).variance - without) > 1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_the_first_estimate_is_that_of_rloo(estimator):
    f, df = network(3)
    q = dcv.Bernoulli(logits=np.zeros((4, 3)))
    evaluation = draw(estimator, q, f, df, np.random.default_rng(0))
    rloo = dcv.RLOO(samples=estimator.samples).apply(q, evaluation).gradient
    np.testing.assert_allclose(estimator.apply(q, evaluation, estimator.init()).gradient, rloo)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_statistics_add_up_over_batch_elements_and_ignore_those_without_weight(estimator):
    f, df = network(5)
    logits, weight = np.random.default_rng(3).normal(size=(6, 5)), np.array([0.5, 0.1, 0.0, 0.2, 0.0, 0.2])
    q = dcv.Bernoulli(logits=logits)
    learned = run(estimator, q, f, df, 20)[-1]
    assert np.any(learned.averages["coefficients"] != 0)
    evaluation = draw(estimator, q, f, df, np.random.default_rng(4))
    evaluation.f[:, weight == 0], evaluation.df[:, weight == 0] = np.nan, np.nan
    with np.errstate(invalid="ignore"):
        whole = estimator.apply(q, evaluation, learned, weight).statistics
        parts = [
            estimator.apply(
                dcv.Bernoulli(logits=logits[part]),
                Evaluation(evaluation.x[:, part], evaluation.f[:, part], evaluation.df[:, part]),
                learned,
                weight[part],
            ).statistics
            for part in (slice(0, 1), slice(1, 4), slice(4, 6))
        ]
    assert whole.keys() == estimator.init().statistics.keys()
    for name, value in whole.items():
        assert np.shape(value) == np.shape(estimator.init().statistics[name])
        np.testing.assert_allclose(value, sum(part[name] for part in parts), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_neither_the_scale_of_f_nor_that_of_the_weights_changes_the_coefficients(estimator):
    f, df = network(5)
    q = dcv.Bernoulli(logits=np.random.default_rng(3).normal(size=(4, 5)))
    wanted = run(estimator, q, f, df, 30)[-1].averages
    assert np.max(np.abs(wanted["coefficients"])) > 0.05
    has_unit = [name not in estimator.bounded for name in estimator.needs.coefficients]
    for scale in (1e-8, 1e8):
        scaled = run(estimator, q, f, df, 30, lambda step, scale=scale: scale)[-1].averages
        unit = np.where(has_unit, 1, scale)
        np.testing.assert_allclose(scaled["coefficients"], unit * wanted["coefficients"], rtol=1e-6)
        np.testing.assert_allclose(scaled["candidates"], wanted["candidates"], rtol=1e-6, atol=1e-12)
    evaluation, learned = draw(estimator, q, f, df, np.random.default_rng(5)), run(estimator, q, f, df, 30)[-1]
    small, large = (
        estimator.advance(learned.averages, estimator.apply(q, evaluation, learned, np.full(4, weight)).statistics)
        for weight in (1e-6, 10.0)
    )
    for name in small:
        np.testing.assert_allclose(small[name], large[name], rtol=1e-8)


@pytest.mark.parametrize("factor", [np.nan, np.inf, 0.0], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_that_says_nothing_changes_nothing(factor, dtype):
    f, df = network(5)
    q, estimator = dcv.Bernoulli(logits=np.zeros((4, 5), dtype)), dcv.QuadraticDoubleCV(samples=2)
    states = run(estimator, q, f, df, 21, lambda step: factor if step == 20 else 1.0)
    for name, value in states[20].averages.items():
        np.testing.assert_array_equal(states[21].averages[name], value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_batch_without_weight_changes_nothing(dtype):
    f, df = network(5)
    q, estimator = dcv.Bernoulli(logits=np.zeros((4, 5), dtype)), dcv.QuadraticDoubleCV(samples=2)
    learned = run(estimator, q, f, df, 20)[-1]
    evaluation = draw(estimator, q, f, df, np.random.default_rng(5))
    statistics = estimator.apply(q, evaluation, learned, np.zeros(4, dtype)).statistics
    for name, value in estimator.advance(learned.averages, statistics).items():
        np.testing.assert_array_equal(value, learned.averages[name])


@pytest.mark.parametrize(
    "factor",
    [
        lambda step: 1e6 if step == 60 else 1.0,
        lambda step: 1e6 if step >= 60 else 1.0,
        lambda step: 1e-6 if step >= 60 else 1.0,
    ],
    ids=["outlier", "jump up", "jump down"],
)
@pytest.mark.parametrize("samples", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_one_outlier_or_a_jump_of_the_scale_does_not_hurt(samples, factor):
    f, df = network(4, seed=1)
    q, estimator = (
        dcv.Bernoulli(logits=np.array([0.5, -0.5, 1.0, 0.0], np.float32)),
        dcv.QuadraticDoubleCV(samples=samples),
    )
    states = run(estimator, q, f, df, 160, factor)
    exact = dcv.Bernoulli(logits=q.logits.astype(float))
    ratios = [exact_ratio(estimator, exact, f, df, cast(states[step], float)) for step in range(0, 161, 10)]
    assert max(ratios) <= 1.1
    assert ratios[6] < 0.9
    assert ratios[-1] < 0.9


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_an_f_of_any_scale_is_learned_in_single_precision(scale):
    f, df = network(5)
    q, estimator = dcv.Bernoulli(logits=np.zeros((4, 5), np.float32)), dcv.QuadraticDoubleCV(samples=2)
    wanted, found = (
        run(estimator, q, f, df, 30, lambda step, factor=factor: factor)[-1].averages["coefficients"]
        for factor in (1.0, scale)
    )
    assert np.max(np.abs(wanted)) > 0.05
    unit = np.where([name in estimator.bounded for name in estimator.needs.coefficients], scale, 1.0)
    # With 1e12 the squares of the first step are too large for single precision, and it does not count.
    np.testing.assert_allclose(found / unit, wanted, rtol=0.1, atol=0.06)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_constant_f_changes_nothing(estimator):
    q = dcv.Bernoulli(logits=np.zeros((2, 3)))
    states = run(estimator, q, lambda x: np.full(x.shape[:-1], 3.0), np.zeros_like, 3)
    for name, value in states[0].averages.items():
        np.testing.assert_array_equal(states[-1].averages[name], value)


def test_one_outlier_changes_no_coefficient_and_a_jump_does():
    f, df = network(4, seed=1)
    q, estimator = dcv.Bernoulli(logits=np.array([0.5, -0.5, 1.0, 0.0])), dcv.QuadraticDoubleCV(samples=2)
    outlier = run(estimator, q, f, df, 42, lambda step: 1e6 if step == 40 else 1.0)
    np.testing.assert_array_equal(outlier[41].averages["coefficients"], outlier[40].averages["coefficients"])
    assert np.any(outlier[42].averages["coefficients"] != outlier[41].averages["coefficients"])
    assert np.abs(outlier[42].averages["log_scale"] - outlier[40].averages["log_scale"]) < 1
    jump = run(estimator, q, f, df, 43, lambda step: 1e6 if step >= 40 else 1.0)
    assert jump[43].averages["log_scale"] - jump[40].averages["log_scale"] > 20
    assert np.any(jump[43].averages["coefficients"] != jump[41].averages["coefficients"])


@pytest.mark.parametrize("samples", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_an_outcome_that_becomes_rare_does_no_harm(samples, seed):
    """One variable whose logit drifts: both samples 1 is rare, and there the control variates are large."""
    estimator, rng = dcv.QuadraticDoubleCV(samples=samples), np.random.default_rng(seed)
    f, df = (lambda x: np.exp(4 * x.sum(-1) - 2)), (lambda x: 4 * np.exp(4 * x - 2))
    learned, ratios = estimator.init(), []
    for step in range(150):
        q = dcv.Bernoulli(logits=np.array([-0.02 * step]))
        if step % 10 == 0:
            ratios.append(exact_ratio(estimator, q, f, df, learned))
        applied = estimator.apply(q, draw(estimator, q, f, df, rng), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
    assert max(ratios) <= 1.1


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.parametrize("seed", [1, 4])
def test_a_policy_of_few_categories_does_no_harm(estimator, seed):
    """One variable with three categories, of which one becomes rare; the seeds are those with the most variance."""
    rng = np.random.default_rng(seed)
    matrix, slope = rng.normal(size=(3, 3)) / 3**0.5, rng.normal(size=3)
    matrix = matrix + matrix.T
    f, df = (lambda x: np.sum((x @ matrix / 2 + slope) * x, axis=(-2, -1))), (lambda x: x @ matrix + slope)
    learned, ratios = estimator.init(), []
    for step in range(200):
        q = dcv.Categorical(logits=0.02 * step * np.array([[1.0, 0.0, -1.0]]))
        if step % 10 == 0:
            ratios.append(exact_ratio(estimator, q, f, df, learned))
        applied = estimator.apply(q, draw(estimator, q, f, df, rng), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
    assert min(ratios) < 0.97
    assert max(ratios) <= 1.1


def along_an_almost_certain_policy(estimator, seed):
    """Return the ratios of variances while a policy of five actions becomes almost certain."""
    rng = np.random.default_rng(seed)
    matrix, slope = rng.normal(size=(5, 5)) / 5**0.5, rng.normal(size=5)
    matrix = matrix + matrix.T
    f, df = (lambda x: np.sum((x @ matrix / 2 + slope) * x, axis=(-2, -1))), (lambda x: x @ matrix + slope)
    learned, logits, mean, square, ratios = estimator.init(), rng.normal(size=(1, 5)), 0, 0, []
    rng = np.random.default_rng(seed)
    for step in range(500):
        q = dcv.Categorical(logits=logits)
        if step % 5 == 0:
            ratios.append(exact_ratio(estimator, q, f, df, learned))
        applied = estimator.apply(q, draw(estimator, q, f, df, rng), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
        # Adam with rate 0.1.
        mean, square = 0.9 * mean + 0.1 * applied.gradient, 0.999 * square + 0.001 * applied.gradient**2
        first, second = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.999 ** (step + 1))
        logits = logits - 0.1 * first / (np.sqrt(second) + 1e-30)
    assert np.max(q.mean) > 0.99
    return ratios


@pytest.mark.parametrize("seed", [13, 19])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_solution_that_rests_on_one_outcome_does_no_harm(estimator, seed):
    """The memories of an almost certain policy hold few outcomes, the short one nothing for long and then one."""
    assert max(along_an_almost_certain_policy(estimator, seed)) <= 1.1


@pytest.mark.parametrize("estimator", [dcv.DoubleCV(samples=2), dcv.QuadraticDoubleCV(samples=2)], ids=str)
def test_a_gradient_that_is_large_in_rare_outcomes_only_does_no_harm(estimator):
    """A steep sigmoid: f is 0 or 1 in frequent outcomes, and its gradient is a hundred times larger in a rare one."""
    rng = np.random.default_rng(1014)
    slope = rng.normal(size=4)
    slope = 40 * slope / np.linalg.norm(slope)

    def f(x):
        return 1 / (1 + np.exp(6 - (x - 0.5) @ slope))

    def df(x):
        return (f(x) * (1 - f(x)))[..., None] * slope

    q, learned, ratios = dcv.Bernoulli(logits=2 * rng.normal(size=4)), estimator.init(), []
    for step in range(100):
        if step % 10 == 0:
            ratios.append(exact_ratio(estimator, q, f, df, learned))
        applied = estimator.apply(q, draw(estimator, q, f, df, rng), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
    assert max(ratios) <= 1.1


@pytest.mark.parametrize("seed", [16, 31])
def test_many_samples_of_few_variables_do_no_harm(seed):
    """With 64 samples of three variables g0 is nearly its mean, and the products with it say little of its noise."""
    rng = np.random.default_rng(seed)
    slope, logits = rng.normal(size=3), rng.normal(size=3) / 2
    estimator, rloo, ratios = dcv.QuadraticDoubleCV(samples=64), dcv.RLOO(samples=64), []
    q, many = dcv.Bernoulli(logits=logits), dcv.Bernoulli(logits=np.tile(logits, (300, 1)))
    f, df = (lambda x: x @ slope), (lambda x: np.broadcast_to(slope, x.shape))
    learned = estimator.init()
    for step in range(361):
        if step in (15, 30, 60, 360):
            evaluation = draw(estimator, many, f, df, rng)
            own, base = (
                np.sum(np.var(made.gradient, axis=0))
                for made in (estimator.apply(many, evaluation, learned), rloo.apply(many, evaluation))
            )
            ratios.append(own / base)
        applied = estimator.apply(q, draw(estimator, q, f, df, rng), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
    assert min(ratios) < 0.9
    assert max(ratios) <= 1.1


def test_with_many_variables_small_coefficients_are_found_soon():
    """The toy problem: b is 500 times as large as f, and the terms of its control variate cancel but for a rest."""
    estimator, rloo, rng = dcv.DoubleCV(samples=2), dcv.RLOO(samples=2), np.random.default_rng(0)
    f, df = (lambda x: np.mean((x - 0.499) ** 2, axis=-1)), (lambda x: 2 * (x - 0.499) / 200)
    logits, square, learned = np.zeros((1, 200)), 0.0, estimator.init()
    for _ in range(300):
        q = dcv.Bernoulli(logits=logits)
        applied = estimator.apply(q, draw(estimator, q, f, df, rng), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
        # RMSprop with rate 0.01, upwards.
        square = 0.9 * square + 0.1 * applied.gradient**2
        logits = logits + 0.01 * applied.gradient / (np.sqrt(square) + 1e-7)
    many = dcv.Bernoulli(logits=np.tile(logits, (500, 1)))
    evaluation = draw(estimator, many, f, df, rng)
    own, base = (
        np.sum(np.var(made.gradient, axis=0))
        for made in (estimator.apply(many, evaluation, learned), rloo.apply(many, evaluation))
    )
    assert own < 0.6 * base


def almost_linear(x):
    return 1.3 * x[..., 0] - 0.7 * x[..., 1] + 0.5 * x[..., 0] * x[..., 1] + 0.37


def slope_of_almost_linear(x):
    return np.stack([1.3 + 0.5 * x[..., 1], -0.7 + 0.5 * x[..., 0]], axis=-1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("estimator", [dcv.DoubleCV(samples=3), dcv.QuadraticDoubleCV(samples=3)], ids=str)
def test_variables_that_are_almost_certain_are_learned(estimator, seed):
    """In most steps all samples agree, and g0 is a rounding error, which is not the scale of f."""
    q, f, df = dcv.Bernoulli(logits=np.array([-3.0, -3.5])), almost_linear, slope_of_almost_linear
    states = run(estimator, q, f, df, 400, seed=seed)
    values = almost_linear(q.sample(np.random.default_rng(seed).random((200, 3, 2))))
    spreads = np.var(values, axis=1)
    assert np.median(spreads) < 1e-25 < 1e-3 < np.mean(spreads)
    assert states[-1].averages["log_scale"] > -5
    assert exact_ratio(estimator, q, f, df, states[200]) < 0.2
    assert exact_ratio(estimator, q, f, df, states[400]) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_large_control_variates_beside_no_g0_do_not_move_the_scale(seed):
    """Where the samples agree, g0 is 0 and the control variate of the toy problem is 250,000 times as large."""
    q, estimator = dcv.Bernoulli(logits=np.zeros(1)), dcv.DoubleCV(samples=2)

    def f(x):
        return np.mean((x - 0.499) ** 2, axis=-1)

    states = run(estimator, q, f, lambda x: 2 * (x - 0.499), 60, seed=seed)
    scales = [state.averages["log_scale"] for state in states if state.averages["steps"][-1] > 0]
    assert len(scales) > 30
    np.testing.assert_allclose(scales, np.log(1e-6), rtol=1e-6)


def test_control_variates_that_become_large_beside_a_g0_as_before_are_not_used():
    q, estimator, rng = dcv.Bernoulli(logits=np.zeros((1, 3))), dcv.DoubleCV(samples=2), np.random.default_rng(9)
    f, df = network(3)
    learned = before = run(estimator, q, f, df, 60)[-1]
    assert abs(before.averages["coefficients"][0]) > 0.1
    for _ in range(3):
        evaluation = draw(estimator, q, f, lambda x: 1e4 * df(x), rng)
        averages = estimator.advance(learned.averages, estimator.apply(q, evaluation, learned).statistics)
        learned = learned._replace(averages=averages)
    assert abs(learned.averages["log_scale"] - before.averages["log_scale"]) < 2
    assert abs(learned.averages["coefficients"][0]) < 1e-4


def test_small_differences_of_f_beside_large_gradients_are_learned_without_a_batch():
    """The toy problem, in which f changes a thousand times less than its gradient says."""
    estimator, rng, variables = dcv.QuadraticDoubleCV(samples=2), np.random.default_rng(0), 200
    f, df = (lambda x: np.mean((x - 0.499) ** 2, axis=-1)), (lambda x: 2 * (x - 0.499) / variables)
    learned = cast(estimator.init(), np.float32)
    for step in range(400):
        q = dcv.Bernoulli(logits=np.full(variables, 0.01 * step, np.float32))
        applied = estimator.apply(q, draw(estimator, q, f, df, rng), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
    many = dcv.Bernoulli(logits=np.broadcast_to(q.logits, (200, variables)))
    evaluation = draw(estimator, many, f, df, rng)
    own, rloo = (
        np.sum(np.var(made.astype(float), axis=0))
        for made in (
            estimator.apply(many, evaluation, learned).gradient,
            dcv.RLOO(samples=2).apply(many, evaluation).gradient,
        )
    )
    assert own < 0.2 * rloo


@pytest.mark.parametrize("seed", [6, 7])
def test_coefficients_of_another_distribution_are_forgotten_where_variables_become_almost_certain(seed):
    """The logits grow by 0.3 per step; the ratio was up to 6 where all steps were remembered for as long."""
    (f, df), rng, estimator = network(5, seed), np.random.default_rng(seed), dcv.QuadraticDoubleCV(samples=2)
    learned, signs, ratios = estimator.init(), np.sign(rng.normal(size=5)), []
    for step in range(220):
        logits = signs * 0.3 * max(0, step - 180)
        if step in (180, 185, 190, 195, 200, 210):
            ratios.append(exact_ratio(estimator, dcv.Bernoulli(logits=logits), f, df, learned))
        many = dcv.Bernoulli(logits=np.tile(logits, (4, 1)))
        applied = estimator.apply(many, draw(estimator, many, f, df, rng), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
    assert ratios[0] < 0.8
    assert max(ratios) <= 1.1


def heavy_tailed(estimator, q, f, df, rng):
    """Return a step in which f has a factor per batch element, drawn from a distribution without a variance."""
    evaluation, factor = draw(estimator, q, f, df, rng), rng.standard_t(2, size=q.batch_shape)
    return replace(evaluation, f=factor * evaluation.f, df=factor[:, None] * evaluation.df)


def test_few_batch_elements_with_a_large_f_do_not_decide_how_far_coefficients_are_trusted():
    estimator, ratios = dcv.QuadraticDoubleCV(samples=2), []
    for seed in (0, 4, 11):
        (f, df), rng = network(6, seed), np.random.default_rng(seed)
        logits, learned = 0.5 * rng.normal(size=6), estimator.init()
        q = dcv.Bernoulli(logits=np.tile(logits, (10, 1)))
        for _ in range(60):
            applied = estimator.apply(q, heavy_tailed(estimator, q, f, df, rng), learned)
            learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
        ratios.append(exact_ratio(estimator, dcv.Bernoulli(logits=logits), f, df, learned))
    assert np.mean(ratios) < 0.5


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_batch_element_counts_in_the_judgement_up_to_a_multiple_of_what_is_usual(estimator):
    (f, df), q = network(5), dcv.Bernoulli(logits=np.zeros((4, 5)))
    learned = run(estimator, q, f, df, 40)[-1]
    system = estimator._system
    usual = judgement.split(learned.averages["sums"][-1], system).own[0] / learned.averages["steps"][-1]
    evaluation = draw(estimator, q, f, df, np.random.default_rng(4))
    one = np.array([1.0, 0.0, 0.0, 0.0])

    def judged(factor):
        larger = replace(evaluation, f=factor * evaluation.f, df=factor * evaluation.df)
        return judgement.split(estimator.apply(q, larger, learned, one).statistics["sums"], system)

    large, larger = judged(1e3), judged(1e4)
    np.testing.assert_allclose(large.own, moments.LARGEST_JUDGED * usual, rtol=1e-6)
    np.testing.assert_allclose(larger.own, large.own, rtol=1e-6)
    np.testing.assert_allclose(larger.own_square, large.own**2, rtol=1e-6)
    np.testing.assert_allclose(larger.products[0, 0], 100 * large.products[0, 0], rtol=1e-6)
    # Everything that is judged is made smaller together, so the factor that it shows stays the same.
    trusts = system.trusts * len(judgement.MEMORIES)
    unbounded = [trust in (judgement.OF_MULTIPLE, judgement.OF_SET) for trust in trusts]
    np.testing.assert_allclose(larger.judged[:, unbounded], large.judged[:, unbounded], rtol=1e-6)


def test_many_samples_are_of_use():
    estimator, rng = dcv.QuadraticDoubleCV(samples=64), np.random.default_rng(0)
    f, df = network(3)
    q = dcv.Bernoulli(logits=np.zeros((50, 3), np.float32))
    learned = run(estimator, q, f, df, 30)[-1]
    many = dcv.Bernoulli(logits=np.zeros((300, 3), np.float32))
    evaluation = draw(estimator, many, f, df, rng)
    own = estimator.apply(many, evaluation, learned).gradient
    rloo = dcv.RLOO(samples=64).apply(many, evaluation).gradient
    assert np.sum(np.var(own, axis=0)) < 0.9 * np.sum(np.var(rloo, axis=0))


def steep(seed, variables=5):
    """Return a steep sigmoid of the variables, which is flat in most outcomes, and its gradient."""
    slope = np.random.default_rng(seed).normal(size=variables)
    slope = 40 * slope / np.linalg.norm(slope)

    def f(x):
        return 1 / (1 + np.exp(6 - (x - 0.5) @ slope))

    def df(x):
        return (f(x) * (1 - f(x)))[..., None] * slope

    return f, df


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_bounded_control_variates_lower_the_variance_of_a_steep_function(scale):
    """The gradient of f is almost 0 in most outcomes, but its direction is right in all of them."""
    f, df = steep(3)
    q, estimator = dcv.Bernoulli(logits=np.zeros((4, 5))), dcv.QuadraticDoubleCV(samples=2)
    learned = run(estimator, q, f, df, 200, lambda step: scale)[-1]
    one = dcv.Bernoulli(logits=np.zeros(5))
    ratio = exact_ratio(estimator, one, lambda x: scale * f(x), lambda x: scale * df(x), learned)
    assert ratio < 0.6
    coefficients = dict(zip(estimator.needs.coefficients, learned.averages["coefficients"], strict=True))
    without = coefficients | dict.fromkeys(estimator.bounded, 0.0)
    assert exact_ratio(estimator, one, f, df, fixed_coefficients(without)) > ratio + 0.2


def test_bounded_control_variates_are_left_out_at_once_where_f_becomes_much_smaller():
    f, df = steep(3)
    q, estimator = dcv.Bernoulli(logits=np.zeros((4, 5))), dcv.QuadraticDoubleCV(samples=2)
    states = run(estimator, q, f, df, 230, lambda step: 1.0 if step < 200 else 1e-6)
    one = dcv.Bernoulli(logits=np.zeros(5))

    def ratio(step, factor):
        return exact_ratio(estimator, one, lambda x: factor * f(x), lambda x: factor * df(x), states[step])

    assert ratio(200, 1.0) < 0.7
    assert max(ratio(step, 1e-6) for step in (201, 202, 205, 215, 230)) <= 1.01


@pytest.mark.parametrize("length", [1e-18, 1e-21, 1e-24, 0.0])
def test_terms_with_the_direction_are_unbiased_where_the_gradient_is_almost_0_in_single_precision(length):
    f, df = network(3)
    q, rng = dcv.Bernoulli(logits=np.array([-1.0, 0.3, 2.0], np.float32)), np.random.default_rng(1)
    estimator = dcv.QuadraticDoubleCV(samples=2)
    numbers = {name: np.float32(rng.normal()) for name in estimator.needs.coefficients}

    def short(x):
        return (length * df(x)).astype(np.float32)

    mean = exact_moments(lambda x: f(x).astype(np.float32), q, estimator, fixed_coefficients(numbers), df=short).mean
    np.testing.assert_allclose(mean, exact_gradient(f, q), atol=2e-6)
    # A library that rounds tiny squares to 0 would give such a direction a wrong correction.
    evaluation = draw(estimator, q, f, short, rng)
    h = estimator.parts(q, evaluation).vectors()[1]
    assert all(np.all(h[name] == 0) for name in estimator.bounded)


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_terms_with_the_direction_of_the_gradient_do_not_see_its_length(samples):
    estimator = dcv.QuadraticDoubleCV(samples=samples)
    q, rng = dcv.Bernoulli(logits=np.random.default_rng(0).normal(size=(3, 4))), np.random.default_rng(1)
    evaluation = draw(estimator, q, *network(4), rng)
    longer = replace(evaluation, df=1e3 * evaluation.df)
    few, many = (estimator.parts(q, one).vectors()[1] for one in (evaluation, longer))
    for name in estimator.needs.coefficients:
        factor = 1.0 if name in estimator.bounded else 1e3
        np.testing.assert_allclose(many[name], factor * few[name], rtol=1e-9)


@pytest.mark.parametrize("samples", [2, 3])
def test_bounded_terms_have_the_direction_of_other_vectors_where_some_are_given(samples):
    estimator = dcv.QuadraticDoubleCV(samples=samples)
    q, rng = dcv.Bernoulli(logits=np.random.default_rng(0).normal(size=(3, 4))), np.random.default_rng(1)
    evaluation = draw(estimator, q, *network(4), rng)
    others = rng.normal(size=evaluation.df.shape)
    of_gradient, of_others, of_both = (
        estimator.parts(q, one)
        for one in (evaluation, replace(evaluation, df=others), replace(evaluation, direction=others))
    )
    for name, value in of_both.vectors()[1].items():
        wanted = of_others if name in estimator.bounded else of_gradient
        np.testing.assert_allclose(value, wanted.vectors()[1][name], rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(of_both.norm, of_others.norm)


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_the_direction_of_the_quadratic_form_is_double_cv(samples):
    f, df = network(4)
    q, quadratic, double_cv = (
        dcv.Bernoulli(logits=np.array([0.5, -0.5, 1.0, 0.0])),
        dcv.QuadraticDoubleCV(samples=samples),
        dcv.DoubleCV(samples=samples, learning="gradient"),
    )
    evaluation = draw(quadratic, q, f, df, np.random.default_rng(0))
    names = quadratic.needs.coefficients
    along = fixed_coefficients({name: -0.7 * u for name, u in zip(names, quadratic.direction, strict=True)})
    np.testing.assert_allclose(
        quadratic.apply(q, evaluation, along).gradient,
        double_cv.apply(q, evaluation, fixed_coefficients({"alpha": -0.7})).gradient,
        rtol=1e-10,
    )


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_the_magnitude_is_the_size_of_the_terms_before_they_cancel(estimator):
    """With one variable, all samples 1 and a large logit, the correction is what is left of h."""
    f, df = network(1)
    q = dcv.Bernoulli(logits=np.array([5.0]))
    x = np.ones((estimator.samples, 1))
    parts, names = estimator.parts(q, Evaluation(x, f(x), df(x))), estimator.needs.coefficients
    h = parts.stack(names)[1:, 0]
    magnitude = parts.magnitude(names)
    assert magnitude.shape == (len(names),)
    assert magnitude[0] >= h[0] ** 2 > 0
    weight = df(x)[0, 0] * (1 - q.mean[0])
    correction = q.mean[0] * weight
    terms = (weight * (1 - q.mean[0])) ** 2 / estimator.samples
    np.testing.assert_allclose(magnitude[0], terms + correction**2, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("samples", [2, 4])
def test_control_variates_that_are_rounding_get_no_coefficient(samples, seed):
    """One variable with logits 0 and f(x) = x: the squares are 0 but for rounding, and the gradient is 1/4."""
    estimator, q = dcv.QuadraticDoubleCV(samples=samples), dcv.Bernoulli(logits=np.zeros(1, np.float32))
    states = run(estimator, q, lambda x: x.sum(-1), np.ones_like, 100, seed=seed)
    assert max(np.max(np.abs(state.averages["coefficients"])) for state in states) < 5
    exact = dcv.Bernoulli(logits=np.zeros(1))
    args = (estimator, exact, lambda x: x.sum(-1), np.ones_like)
    # One variable has too few outcomes for a bound of 1.1; without the magnitude it was 1e13.
    assert max(exact_ratio(*args, cast(state, float)) for state in states[::20]) <= 5


def test_an_exact_fit_leaves_almost_no_variance():
    """For a linear f, Double CV with alpha = -1 has no variance."""
    slope = np.array([1.0, -2.0, 0.5])
    q, estimator = dcv.Bernoulli(logits=np.array([0.2, -0.4, 1.0])), dcv.DoubleCV(samples=2, learning="moments")
    problem = (lambda x: x @ slope, lambda x: np.broadcast_to(slope, x.shape))
    states = run(estimator, q, *problem, 200)
    assert exact_ratio(estimator, q, *problem, states[50]) < 0.2
    assert exact_ratio(estimator, q, *problem, states[-1]) < 0.02


@pytest.mark.parametrize("seed", range(4))
def test_an_exact_fit_of_many_variables_is_used_soon(seed):
    """For seed 0 the first step is a thousand times smaller than the others, which must not matter later."""
    slope = np.random.default_rng(seed).normal(size=100)
    q, estimator = dcv.Bernoulli(logits=np.zeros((1, 100))), dcv.DoubleCV(samples=2)
    states = run(estimator, q, lambda x: x @ slope, lambda x: np.broadcast_to(slope, x.shape), 60, seed=seed)
    np.testing.assert_allclose(states[-1].averages["coefficients"], -1, atol=0.1)


@pytest.mark.parametrize("steps", [3, 8, 40])
def test_the_ridge_of_one_coefficient_is_that_of_the_equation(steps):
    """It has the elements N of the memory that is solved, and what the candidate left over in the long memory."""
    q, problem = dcv.Bernoulli(logits=np.array([0.3, -0.2, 0.8])), network(3)
    averages = run(dcv.DoubleCV(samples=2), q, *problem, steps)[-1].averages
    for memory, candidate in enumerate(averages["candidates"][:, 0]):
        _, product, _, square, magnitude = averages["sums"][memory, :5]
        own, own_square = averages["sums"][memory, 9:11]
        elements = own**2 / own_square
        long = averages["sums"][-1]
        with_g0, judged_square = long[5 + memory], long[7 + memory]
        left_over = 1 - min(with_g0, 0) ** 2 / (judged_square * long[9]) if judged_square else 1
        ridge = judgement.RIDGE_OF_ONE * min(1, left_over + 1 / elements) / elements
        np.testing.assert_allclose(candidate, -product / (square + ridge * (square + magnitude)), rtol=1e-6)


def test_exact_moments_give_the_coefficients_of_least_variance():
    f, df = network(3)
    q, estimator = dcv.Bernoulli(logits=np.array([-1.0, 0.3, 1.0])), dcv.QuadraticDoubleCV(samples=2)
    outcomes = enumerate_outcomes(f, q, estimator, df)
    g0, h = estimator.parts(outcomes.q, outcomes.evaluation).vectors()
    parts = [g0, *(h[name] for name in estimator.needs.coefficients)]
    matrix = np.array([[np.sum(outcomes.expectation(a * b)) for b in parts] for a in parts])
    best = judgement.least_variance(matrix)
    slope = matrix[1:, 0] + matrix[1:, 1:] @ best
    assert np.max(np.abs(slope)) < 1e-6 * np.max(np.abs(matrix[1:, 0]))


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_the_array_libraries_agree(library):
    f, df = network(5)
    q, estimator = dcv.Bernoulli(logits=np.zeros((4, 5), np.float32)), dcv.QuadraticDoubleCV(samples=2)
    learned = run(estimator, q, f, df, 30)[-1]
    evaluation = draw(estimator, q, f, df, np.random.default_rng(5))
    weight = np.full(4, 0.25, np.float32)
    wanted = estimator.advance(learned.averages, estimator.apply(q, evaluation, learned, weight).statistics)
    convert = pytest.importorskip("jax.numpy").asarray if library == "jax" else pytest.importorskip("torch").from_numpy
    other = Learned(*({name: convert(np.asarray(value)) for name, value in tree.items()} for tree in learned))
    there = Evaluation(convert(evaluation.x), convert(evaluation.f), convert(evaluation.df))

    def advance(q, evaluation, learned, weight):
        applied = estimator.apply(q, evaluation, learned, weight)
        return estimator.advance(learned.averages, applied.statistics)

    step = pytest.importorskip("jax").jit(advance) if library == "jax" else advance
    for name, value in step(dcv.Bernoulli(logits=convert(q.logits)), there, other, convert(weight)).items():
        np.testing.assert_allclose(np.asarray(value), wanted[name], rtol=2e-3, atol=1e-5)
