"""Estimators that are linear in their coefficients: their parts, and the best coefficients from moments."""

import dataclasses

import numpy as np
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.estimators import Evaluation, LinearEstimator, Vectors, fixed_coefficients, judgement, moments, quadratic
from doublecv.exact import enumerate_outcomes, exact_moments
from problems import best_coefficients, make_evaluation, make_learned, make_logits, make_problem, toy

LINEAR = [
    name
    for name in estimators.names()
    if isinstance(made := estimators.make(name, samples=4), LinearEstimator) and not made.needs.relaxed_points
]
"""Those that are functions of the samples only."""


def drawn(estimator, family, seed=0):
    """A problem, q, and an evaluation at drawn samples."""
    problem, q = make_problem("network", family), family(logits=make_logits(family))
    return q, make_evaluation(estimator, problem, q, np.random.default_rng(seed))


def test_which_estimators_are_linear():
    assert {"reinforce", "double-cv", "double-cv-mean", "double-cv-moments", "quadratic-double-cv"} <= set(LINEAR)
    assert "rloo" not in LINEAR


@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
@pytest.mark.parametrize("name", LINEAR)
def test_the_parts_have_the_coefficients_names_and_sum_up(name, family):
    estimator = estimators.make(name, samples=4)
    if family not in estimator.needs.families:
        pytest.skip("supports only Bernoulli")
    q, evaluation = drawn(estimator, family)
    names = estimator.needs.coefficients
    fixed = fixed_coefficients({name: 0.3 + index for index, name in enumerate(names)})
    for learned in (make_learned(estimator, q), fixed, *_orders(fixed)):
        floored = dataclasses.replace(evaluation, floor=learned.averages.get("floor"))
        g0, h = estimator.parts(q, floored).vectors()
        coefficients = estimator.coefficients(learned)
        assert coefficients.keys() == h.keys() == set(names)
        wanted = g0 + sum(coefficients[name] * h[name] for name in h)
        np.testing.assert_allclose(estimator.apply(q, evaluation, learned).gradient, wanted, rtol=1e-11)


def _orders(learned):
    for names in (sorted(learned.numbers), sorted(learned.numbers, reverse=True)):
        yield learned._replace(numbers={name: learned.numbers[name] for name in names})


@pytest.mark.parametrize(
    "estimator", [dcv.DoubleCV(2, learning="gradient"), dcv.QuadraticDoubleCV(3), dcv.Reinforce(2, True)], ids=str
)
def test_exact_moments_give_the_coefficients_of_least_variance(estimator):
    problem, q = make_problem("network", dcv.Bernoulli), dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    outcomes = enumerate_outcomes(problem.f, q, estimator, problem.df)
    g0, h = estimator.parts(outcomes.q, outcomes.evaluation).vectors()
    parts = [g0, *h.values()]
    matrix = np.array([[np.sum(outcomes.expectation(a * b)) for b in parts] for a in parts])

    def variance(numbers):
        vector = np.array([1.0, *numbers])
        return vector @ matrix @ vector

    best = variance(best_coefficients(estimator, problem, q).numbers.values())
    # The ridge moves the solution, but hardly the variance, of which it is the minimum.
    assert variance(judgement.least_variance(matrix)) <= best * 1.01
    assert best < 0.9 * matrix[0, 0]


@dataclasses.dataclass(frozen=True)
class Reversed(dcv.QuadraticDoubleCV):
    """The quadratic form, whose parts are stated in another order than its coefficients."""

    def parts(self, q, evaluation):
        parts = super().parts(q, evaluation)
        return dataclasses.replace(parts, names=parts.names[::-1], table=parts.table[::-1])


def test_parts_belong_to_coefficients_by_name():
    stated, reversed_ = dcv.QuadraticDoubleCV(3), Reversed(3)
    q, evaluation = drawn(stated, dcv.Bernoulli)
    learned, weight = make_learned(stated, q), np.ones(2)
    one, other = (estimator.apply(q, evaluation, learned, weight) for estimator in (stated, reversed_))
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-9)
    for name, value in one.statistics.items():
        np.testing.assert_allclose(value, other.statistics[name], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("samples", [2, 3, 8])
@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
def test_a_table_of_the_weights_gives_the_same_parts_as_the_weights(samples, family, monkeypatch):
    estimator = dcv.QuadraticDoubleCV(samples)
    q, evaluation = drawn(estimator, family)
    learned, weight = make_learned(estimator, q), np.array([0.5, 2.0])
    tabled, of_table = estimator.parts(q, evaluation), estimator.apply(q, evaluation, learned, weight)
    monkeypatch.setattr(quadratic, "MAX_TABLED", 0)
    written_out, wanted = estimator.parts(q, evaluation), estimator.apply(q, evaluation, learned, weight)
    assert type(tabled) is not type(written_out)
    np.testing.assert_allclose(of_table.gradient, wanted.gradient, rtol=1e-9, atol=1e-12)
    cotangent = np.random.default_rng(2).normal(size=q.logits.shape)
    for name, value in written_out.derivatives(cotangent).items():
        np.testing.assert_allclose(tabled.derivatives(cotangent)[name], value, rtol=1e-9, atol=1e-12)
    for name, value in wanted.statistics.items():
        np.testing.assert_allclose(of_table.statistics[name], value, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("estimator", [dcv.QuadraticDoubleCV(3), dcv.DoubleCV(3)], ids=str)
def test_the_parts_of_some_elements_are_parts_too(estimator):
    q = dcv.Bernoulli(logits=np.random.default_rng(0).normal(size=(4, 6, 3)))
    evaluation = make_evaluation(estimator, make_problem("network", dcv.Bernoulli), q, np.random.default_rng(1))
    parts, names = estimator.parts(q, evaluation), estimator.needs.coefficients
    for stated in (parts, Vectors(q, *parts.vectors())):
        some = stated.subsample(2).subsample(3)
        assert some.q.batch_shape == (4,)
        np.testing.assert_array_equal(some.q.logits, q.logits.reshape(24, 3)[::6])
        np.testing.assert_allclose(some.stack(names), stated.stack(names).reshape(-1, 24, 3)[:, ::6], rtol=1e-13)
        np.testing.assert_allclose(some.magnitude(names), stated.magnitude(names).reshape(-1, 24)[:, ::6], rtol=1e-13)


@pytest.mark.parametrize(
    "estimator", [dcv.DoubleCV(3, learning="gradient"), dcv.QuadraticDoubleCV(3, learning="gradient")], ids=str
)
def test_the_derivatives_are_inner_products_with_the_parts(estimator):
    q, evaluation = drawn(estimator, dcv.Bernoulli)
    cotangent = np.random.default_rng(1).normal(size=q.logits.shape)
    learned = make_learned(estimator, q)
    found = estimator.apply(q, evaluation, learned).derivatives(cotangent)
    _, h = estimator.parts(q, evaluation).vectors()
    assert found.keys() == h.keys()
    for name, part in h.items():
        np.testing.assert_allclose(found[name], np.sum(cotangent * part), rtol=1e-9, atol=1e-13)


def test_a_control_variate_that_was_never_seen_gets_the_coefficient_zero():
    matrix = np.array([[4.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(judgement.least_variance(matrix), [-0.5, 0.0], rtol=1e-3)
    np.testing.assert_array_equal(judgement.least_variance(np.zeros((3, 3))), 0)


@pytest.mark.parametrize("batch", [(40,), (5, 8), (8,), (9,)], ids=str)
@pytest.mark.parametrize("estimator", [dcv.DoubleCV(2, learning="moments"), dcv.QuadraticDoubleCV(3)], ids=str)
def test_a_large_batchs_statistics_are_those_of_every_few_elements(estimator, batch, monkeypatch):
    monkeypatch.setattr(moments, "ENOUGH_NUMBERS", 0)
    generator = np.random.default_rng(0)
    q = dcv.Bernoulli(logits=generator.normal(size=(*batch, 3)))
    evaluation = make_evaluation(estimator, make_problem("network", dcv.Bernoulli), q, generator)
    weight, size = generator.uniform(size=batch), int(np.prod(batch))
    step = {40: 5, 8: 1, 9: 2}[size]
    parts = estimator.parts(q, evaluation).stack(estimator.needs.coefficients).reshape(-1, size, 3)[:, ::step]
    chosen = weight.reshape(size)[::step]
    assert len(chosen) <= 8
    found = estimator.apply(q, evaluation, estimator.init(), weight).statistics
    wanted = np.einsum("ibd,jbd,b->ij", parts, parts, chosen) / 3
    products = found["sums"][: wanted.size].reshape(wanted.shape)
    np.testing.assert_allclose(products / found["weight"], wanted / chosen.sum(), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("shape", "step"),
    [
        *[((200,), 1), ((0, 200), 1), ((8, 200), 1), ((9, 200), 2), ((100, 200), 13), ((10, 10, 200), 13)],
        *[((50, 32), 1), ((51, 32), 2), ((500, 2), 1), ((1600, 2), 2), ((64, 10**5), 8)],
    ],
    ids=str,
)
def test_which_elements_represent_a_batch(shape, step):
    assert moments._step(dcv.Bernoulli(logits=np.zeros(shape))) == step


def test_a_batch_elements_weight_of_zero_does_not_count_even_if_it_is_not_finite():
    estimator = dcv.QuadraticDoubleCV(3)
    q, evaluation = drawn(estimator, dcv.Bernoulli)
    learned, weight = make_learned(estimator, q), np.array([1.0, 0.0])
    wanted = estimator.apply(q, evaluation, learned, weight).statistics
    spoiled = dataclasses.replace(evaluation, f=np.where(weight > 0, evaluation.f, np.nan))
    found = estimator.apply(q, spoiled, learned, weight).statistics
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("spoiled", ["nothing counts", "not finite"])
def test_a_batch_that_says_nothing_leaves_the_averages(spoiled):
    estimator = dcv.QuadraticDoubleCV(2)
    q, evaluation = drawn(estimator, dcv.Bernoulli)
    weight = np.zeros(2) if spoiled == "nothing counts" else np.ones(2)
    if spoiled == "not finite":
        evaluation = dataclasses.replace(evaluation, f=np.full_like(evaluation.f, np.nan))
    learned = make_learned(estimator, q)
    after = estimator.advance(learned.averages, estimator.apply(q, evaluation, learned, weight).statistics)
    for name, value in learned.averages.items():
        np.testing.assert_array_equal(after[name], value)


def test_the_statistics_of_parts_of_a_batch_add_up():
    """So that vmap, several devices and several calls per step move the averages as one call does."""
    estimator = dcv.QuadraticDoubleCV(2)
    q, evaluation = drawn(estimator, dcv.Bernoulli)
    learned, weight = make_learned(estimator, q), np.array([0.3, 0.7])
    whole = estimator.apply(q, evaluation, learned, weight).statistics

    def part(index):
        rows = slice(index, index + 1)
        some = Evaluation(evaluation.x[:, rows], evaluation.f[:, rows], evaluation.df[:, rows])
        return estimator.apply(dcv.Bernoulli(q.logits[rows]), some, learned, weight[rows]).statistics

    for name, value in whole.items():
        np.testing.assert_allclose(part(0)[name] + part(1)[name], value, rtol=1e-10, atol=1e-14)


def test_an_unknown_way_of_learning_is_refused():
    with pytest.raises(ValueError, match="learning must be one of gradient, moments; got 'adam'"):
        dcv.DoubleCV(2, learning="adam")
    with pytest.raises(ValueError, match="control must be one of"):
        dcv.DoubleCV(2, control="taylor", learning="moments")


def test_the_quadratic_form_has_double_cv_as_a_case():
    for samples in (2, 3, 4):
        quadratic = dcv.QuadraticDoubleCV(samples, learning="gradient")
        q, evaluation = drawn(quadratic, dcv.Bernoulli)
        numbers = dict.fromkeys(quadratic.needs.coefficients, 0.0) | {"current": 0.7, "crossed": -0.7 / (samples - 1)}
        if samples > 2:
            numbers["others"] = -0.7 * (samples - 2) / (samples - 1)
        wanted = (
            dcv.DoubleCV(samples, learning="gradient").apply(q, evaluation, fixed_coefficients({"alpha": 0.7})).gradient
        )
        found = quadratic.apply(q, evaluation, fixed_coefficients(numbers)).gradient
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_quadratic_f_loses_most_of_its_variance_where_double_cv_gains_nothing():
    q, problem = dcv.Bernoulli(logits=np.zeros(4)), toy(4)

    def least(estimator):
        learned = best_coefficients(estimator, problem, q)
        return exact_moments(problem.f, q, estimator, learned, df=problem.df).variance.sum()

    rloo = exact_moments(problem.f, q, dcv.RLOO(2)).variance.sum()
    assert least(dcv.DoubleCV(2, learning="gradient")) > 0.4 * rloo
    assert least(dcv.QuadraticDoubleCV(2)) < 0.025 * rloo


def test_a_larger_f_changes_nothing_but_the_estimates_size():
    estimator = dcv.QuadraticDoubleCV(3)
    q, evaluation = drawn(estimator, dcv.Bernoulli)
    scaled = dataclasses.replace(evaluation, f=1e6 * evaluation.f, df=1e6 * evaluation.df)
    coefficients = dict.fromkeys(estimator.needs.coefficients, 0.4)
    plain = estimator.apply(q, evaluation, fixed_coefficients(coefficients)).gradient
    # The terms with the direction of the gradient have no unit, and their coefficients have that of f.
    in_units = coefficients | dict.fromkeys(estimator.bounded, 0.4 * 1e6)
    found = estimator.apply(q, scaled, fixed_coefficients(in_units)).gradient
    np.testing.assert_allclose(found, 1e6 * plain, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_logits_and_a_flat_f_stay_finite(dtype):
    estimator = dcv.QuadraticDoubleCV(2)
    q = dcv.Bernoulli(logits=np.array([-200.0, -90.0, 0.0, 90.0, 200.0], dtype))
    x = estimator.draw(q, np.random.default_rng(0).random((2, 5)).astype(dtype))
    for slope in (0.0, 1.0):
        evaluation = Evaluation(x, slope * x.sum(-1), np.full_like(x, slope))
        applied = estimator.apply(q, evaluation, make_learned(estimator, q), np.ones((), dtype))
        assert np.isfinite(applied.gradient).all()
        for value in applied.statistics.values():
            assert np.isfinite(value).all()
