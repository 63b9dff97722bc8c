"""Estimators that are linear in their coefficients: their parts, and the best coefficients from moments."""

import dataclasses

import numpy as np
import pytest
from doublecv.diagnostics import optimal_coefficients
from doublecv.diagnostics.exact import enumerate_outcomes

import doublecv as dcv
from doublecv import estimators
from doublecv.estimators import Evaluation, LinearEstimator, Vectors, linear
from doublecv.estimators.linear import least_variance
from problems import make_coefficients, make_logits, make_problem

LINEAR = [
    name
    for name in estimators.names()
    if isinstance(made := estimators.make(name, samples=4), LinearEstimator) and not made.relaxed_points
]
"""Those that are functions of the samples alone."""


def drawn(estimator, family, seed=0):
    """A problem, q, and an evaluation at drawn samples."""
    problem, q = make_problem("network", family), family(logits=make_logits(family))
    x = estimator.draw(q, np.random.default_rng(seed).random(estimator.noise_shape(q)))
    return q, Evaluation(x, problem.f(x), problem.df(x), problem.f(q.mean), problem.df(q.mean))


def test_which_estimators_are_linear():
    assert {"reinforce", "double-cv", "double-cv-mean", "double-cv-moments", "quadratic-double-cv"} <= set(LINEAR)
    assert "rloo" not in LINEAR


@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
@pytest.mark.parametrize("name", LINEAR)
def test_the_parts_have_the_coefficients_names_and_sum_up(name, family):
    estimator = estimators.make(name, samples=4)
    if family not in estimator.families:
        pytest.skip("for Bernoulli alone")
    q, evaluation = drawn(estimator, family)
    g0, h = estimator.parts(q, evaluation).vectors()
    assert h.keys() == estimator.starts().keys()
    coefficients = make_coefficients(estimator, 0.3)
    if not estimator.averaged:
        coefficients = {coefficient: 0.3 + place for place, coefficient in enumerate(coefficients)}
    numbers = estimator.numbers(coefficients)
    assert numbers.keys() == h.keys()
    wanted = g0 + sum(numbers[coefficient] * h[coefficient] for coefficient in h)
    for order in (list(coefficients), sorted(coefficients), sorted(coefficients, reverse=True)):
        ordered = {coefficient: coefficients[coefficient] for coefficient in order}
        np.testing.assert_allclose(estimator.gradient(q, evaluation, ordered), wanted, rtol=1e-11)


@pytest.mark.parametrize("estimator", [dcv.DoubleCV(2), dcv.QuadraticDoubleCV(3), dcv.Reinforce(2, True)], ids=str)
def test_exact_moments_give_the_coefficients_of_least_variance(estimator):
    problem, q = make_problem("network", dcv.Bernoulli), dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    outcomes = enumerate_outcomes(estimator, problem.f, q, problem.df)
    g0, h = estimator.parts(outcomes.q, outcomes.evaluation).vectors()
    parts = [g0, *h.values()]
    moments = np.array([[np.sum(outcomes.expectation(a * b)) for b in parts] for a in parts])
    best = optimal_coefficients(estimator, problem.f, q, df=problem.df)

    def variance(numbers):
        vector = np.array([1.0, *numbers])
        return vector @ moments @ vector

    # The ridge moves the solution, but hardly the variance, of which it is the minimum.
    assert variance(least_variance(moments)) <= variance(best.values()) * 1.01
    assert variance(best.values()) < 0.9 * moments[0, 0]


@dataclasses.dataclass(frozen=True)
class Reversed(dcv.QuadraticDoubleCV):
    """The quadratic form, whose parts are stated in another order than its coefficients."""

    def parts(self, q, evaluation):
        parts = super().parts(q, evaluation)
        return dataclasses.replace(parts, weights=dict(reversed(parts.weights.items())))


def test_parts_belong_to_coefficients_by_name():
    problem, q = make_problem("network", dcv.Bernoulli), dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    stated, reversed_ = dcv.QuadraticDoubleCV(3), Reversed(3)
    coefficients = make_coefficients(stated, 0.5)
    evaluation = drawn(stated, dcv.Bernoulli)[1]
    for one, other in zip(
        stated.gradient_and_loss(q, evaluation, coefficients, np.ones(2)),
        reversed_.gradient_and_loss(q, evaluation, coefficients, np.ones(2)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    best, other_best = (optimal_coefficients(one, problem.f, q, df=problem.df) for one in (stated, reversed_))
    np.testing.assert_allclose([other_best[name] for name in best], list(best.values()), rtol=1e-6)


def test_the_parts_of_some_elements_are_parts_too():
    estimator = dcv.QuadraticDoubleCV(3)
    q = dcv.Bernoulli(logits=np.random.default_rng(0).normal(size=(4, 6, 3)))
    problem = make_problem("network", dcv.Bernoulli)
    x = estimator.draw(q, np.random.default_rng(1).random(estimator.noise_shape(q)))
    parts = estimator.parts(q, Evaluation(x, problem.f(x), problem.df(x)))
    for stated in (parts, Vectors(q, *parts.vectors())):
        some = stated.every(2).every(3)
        assert some.q.batch_shape == (4,)
        np.testing.assert_array_equal(some.q.logits, q.logits.reshape(24, 3)[::6])
        whole, found = stated.stacked(estimator.starts()), some.stacked(estimator.starts())
        np.testing.assert_allclose(found, whole.reshape(-1, 24, 3)[:, ::6], rtol=1e-14)


def test_a_control_variate_that_was_never_seen_gets_the_coefficient_zero():
    moments = np.array([[4.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(least_variance(moments), [-0.5, 0.0], rtol=1e-3)
    np.testing.assert_array_equal(least_variance(np.zeros((3, 3))), 0)


def test_the_loss_is_half_the_squared_distance_to_this_steps_moments():
    estimator = dcv.DoubleCV(3, learning="moments")
    q, evaluation = drawn(estimator, dcv.Bernoulli)
    g0, h = estimator.parts(q, evaluation).vectors()
    weight = np.array([0.3, -0.1])
    share = np.array([0.75, 0.25])[:, None] / 3
    parts = np.stack([g0, h["alpha"]])
    new = np.einsum("ibd,jbd,bd->ij", parts, parts, np.broadcast_to(share, g0.shape))
    for moments in (np.zeros((2, 2)), np.ones((2, 2))):
        for size, counted in ((1.0, 0.4), (10.0, 1.0)):
            _, loss = estimator.gradient_and_loss(q, evaluation, {"moments": moments}, size * weight)
            np.testing.assert_allclose(loss, counted * np.sum((moments - new) ** 2) / 2, rtol=1e-12)


@pytest.mark.parametrize("batch", [(40,), (5, 8), (8,), (9,)], ids=str)
@pytest.mark.parametrize("estimator", [dcv.DoubleCV(2, learning="moments"), dcv.QuadraticDoubleCV(3)], ids=str)
def test_a_large_batchs_moments_are_those_of_every_few_elements(estimator, batch, monkeypatch):
    monkeypatch.setattr(linear, "ENOUGH_NUMBERS", 0)
    generator = np.random.default_rng(0)
    q = dcv.Bernoulli(logits=generator.normal(size=(*batch, 3)))
    x = estimator.draw(q, generator.random(estimator.noise_shape(q)))
    problem = make_problem("network", dcv.Bernoulli)
    evaluation = Evaluation(x, problem.f(x), problem.df(x))
    weight = generator.normal(size=batch)
    size, moments = int(np.prod(batch)), make_coefficients(estimator, 0.5)
    step = {40: 5, 8: 1, 9: 2}[size]
    some = Evaluation(
        x.reshape(-1, size, 3)[:, ::step],
        evaluation.f.reshape(-1, size)[:, ::step],
        evaluation.df.reshape(-1, size, 3)[:, ::step],
    )
    some_q, some_weight = dcv.Bernoulli(logits=q.logits.reshape(size, 3)[::step]), weight.reshape(size)[::step]
    assert len(some_weight) <= 8
    some_weight = some_weight / np.abs(some_weight).sum() * min(1, np.abs(weight).sum())
    _, wanted = estimator.gradient_and_loss(some_q, some, moments, some_weight)
    estimate, loss = estimator.gradient_and_loss(q, evaluation, moments, weight)
    np.testing.assert_allclose(loss, wanted, rtol=1e-12)
    np.testing.assert_array_equal(estimate, estimator.gradient(q, evaluation, moments))


@pytest.mark.parametrize(
    ("shape", "step"),
    [
        *[((200,), 1), ((0, 200), 1), ((8, 200), 1), ((9, 200), 2), ((100, 200), 13), ((10, 10, 200), 13)],
        *[((50, 32), 1), ((51, 32), 2), ((500, 2), 1), ((1600, 2), 2), ((64, 10**5), 8), ((5, 0), 1)],
    ],
    ids=str,
)
def test_which_elements_represent_a_batch(shape, step):
    assert linear._step(dcv.Bernoulli(logits=np.zeros(shape))) == step


@pytest.mark.parametrize("spoiled", ["nothing counts", "not finite"])
def test_a_batch_that_says_nothing_leaves_the_moments(spoiled):
    estimator = dcv.QuadraticDoubleCV(2)
    q, evaluation = drawn(estimator, dcv.Bernoulli)
    weight = np.zeros(2) if spoiled == "nothing counts" else np.ones(2)
    if spoiled == "not finite":
        evaluation = dataclasses.replace(evaluation, f=np.full_like(evaluation.f, np.nan))
    _, loss = estimator.gradient_and_loss(q, evaluation, make_coefficients(estimator, 0.5), weight)
    assert loss == 0


def test_an_unknown_way_of_learning_is_refused():
    with pytest.raises(ValueError, match="learning must be one of gradient, moments; got 'adam'"):
        dcv.DoubleCV(2, learning="adam")
    with pytest.raises(ValueError, match="surrogate must be one of"):
        dcv.DoubleCV(2, surrogate="taylor", learning="moments")


def test_the_quadratic_form_has_double_cv_as_a_case():
    for samples in (2, 3, 4):
        quadratic = dcv.QuadraticDoubleCV(samples, learning="gradient")
        q, evaluation = drawn(quadratic, dcv.Bernoulli)
        numbers = dict(quadratic.starts(), current=0.7, crossed=-0.7 / (samples - 1))
        if samples > 2:
            numbers["others"] = -0.7 * (samples - 2) / (samples - 1)
        wanted = dcv.DoubleCV(samples).gradient(q, evaluation, {"alpha": 0.7})
        np.testing.assert_allclose(quadratic.gradient(q, evaluation, numbers), wanted, rtol=1e-12)


def test_a_quadratic_f_loses_most_of_its_variance_where_double_cv_gains_nothing():
    q = dcv.Bernoulli(logits=np.zeros(4))

    def f(x):
        return np.mean((x - 0.499) ** 2, axis=-1)

    def df(x):
        return 2 * (x - 0.499) / 4

    best = {
        name: optimal_coefficients(estimators.make(name, samples=2), f, q, df=df)
        for name in ("double-cv", "quadratic-double-cv")
    }

    def total(estimator, numbers):
        return dcv.diagnostics.exact_moments(estimator, f, q, numbers, df).variance.sum()

    rloo = total(dcv.RLOO(2), {})
    assert total(dcv.DoubleCV(2), best["double-cv"]) > 0.4 * rloo
    quadratic = dcv.QuadraticDoubleCV(2, learning="gradient")
    assert total(quadratic, best["quadratic-double-cv"]) < 0.02 * rloo


def test_a_larger_f_changes_nothing_but_the_estimates_size():
    estimator = dcv.QuadraticDoubleCV(3, learning="gradient")
    q, evaluation = drawn(estimator, dcv.Bernoulli)
    scaled = dataclasses.replace(evaluation, f=1e6 * evaluation.f, df=1e6 * evaluation.df)
    linear = {"current", "crossed", "own", "others"}
    numbers = dict.fromkeys(estimator.starts(), 0.4)
    larger = {name: number if name in linear else 1e6 * number for name, number in numbers.items()}
    np.testing.assert_allclose(
        estimator.gradient(q, scaled, larger), 1e6 * estimator.gradient(q, evaluation, numbers), rtol=1e-9
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_logits_and_a_flat_f_stay_finite(dtype):
    estimator = dcv.QuadraticDoubleCV(2)
    q = dcv.Bernoulli(logits=np.array([-200.0, -90.0, 0.0, 90.0, 200.0], dtype))
    x = estimator.draw(q, np.random.default_rng(0).random((2, 5)).astype(dtype))
    for slope in (0.0, 1.0):
        evaluation = Evaluation(x, slope * x.sum(-1), np.full_like(x, slope))
        _, loss = estimator.gradient_and_loss(q, evaluation, make_coefficients(estimator, 0.5), np.ones((), dtype))
        assert np.isfinite(loss)
        assert np.isfinite(estimator.gradient(q, evaluation, make_coefficients(estimator, 0.5))).all()
