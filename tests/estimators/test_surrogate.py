"""The learned surrogate: unbiased on any base, exact where f is a quadratic of its form, and fitted to f."""

import dataclasses

import numpy as np
import pytest
from doublecv.diagnostics import exact_gradient, exact_moments
from doublecv.diagnostics.exact import enumerate_outcomes

import doublecv as dcv
from doublecv.estimators import Evaluation
from problems import FEATURES, make_coefficients, make_logits, make_problem

BASES = [
    dcv.Reinforce(1),
    dcv.RLOO(2),
    dcv.DoubleCV(3),
    dcv.DoubleCV(2, surrogate="mean"),
    dcv.QuadraticDoubleCV(2),
    dcv.MuProp(2),
    dcv.DisARM(2),
    dcv.ARMS(3),
]


def make_q():
    return dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))


def make_surrogate(base, **options):
    context = np.random.default_rng(5).normal(size=(2, FEATURES))
    return dcv.Surrogate(
        base, **({"variables": 3, "features": FEATURES, "directions": 2, "context": context} | options)
    )


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_unbiased_on_any_base(base):
    problem, q, estimator = make_problem("network", dcv.Bernoulli), make_q(), make_surrogate(base)
    assert (estimator.samples, estimator.evaluations) == (base.samples, base.evaluations)
    for value in (0.3, -0.8):
        coefficients = make_coefficients(estimator, value)
        moments = exact_moments(estimator, problem.f, q, coefficients, problem.df)
        assert np.max(np.abs(moments.mean - exact_gradient(problem.f, q))) < 1e-10


@pytest.mark.parametrize("base", BASES[1:], ids=lambda base: base.name)
def test_at_the_start_it_is_the_base(base):
    problem, q, estimator = make_problem("network", dcv.Bernoulli), make_q(), make_surrogate(base)
    of_base = make_coefficients(base, 0.4)
    got = exact_moments(estimator, problem.f, q, estimator.coefficients() | of_base, problem.df)
    wanted = exact_moments(base, problem.f, q, of_base, problem.df)
    np.testing.assert_allclose(got.variance, wanted.variance, rtol=1e-10)


def quadratic_of_its_form(estimator, coefficients, q):
    """f = r, with its gradient, from the surrogate's own formulas written out."""
    parameters = coefficients["surrogate"]
    slope = estimator.context @ parameters["slope"] + parameters["slope_bias"]
    weight = estimator.context @ parameters["weight"] + parameters["weight_bias"]
    form = np.einsum("br,ri,rj->bij", weight, parameters["directions"], parameters["directions"])
    form *= 1 - np.eye(3)

    def f(x):
        s = x - q.mean
        return np.einsum("bi,...bi->...b", slope, s) + 0.5 * np.einsum("...bi,bij,...bj->...b", s, form, s)

    def df(x):
        return slope + np.einsum("bij,...bj->...bi", form, x - q.mean)

    return f, df


def test_no_variance_is_left_where_f_is_the_surrogate():
    q, estimator = make_q(), make_surrogate(dcv.RLOO(2))
    coefficients = make_coefficients(estimator, 0.5)
    f, df = quadratic_of_its_form(estimator, coefficients, q)
    moments = exact_moments(estimator, f, q, coefficients, df)
    np.testing.assert_allclose(moments.mean, exact_gradient(f, q), atol=1e-12)
    assert np.max(moments.variance) < 1e-24
    outcomes = enumerate_outcomes(estimator, f, q, df)
    _, loss = estimator.gradient_and_loss(outcomes.q, outcomes.evaluation, coefficients, outcomes.probabilities)
    assert loss < 1e-20


def test_the_loss_is_the_sample_variance_and_the_weighted_misfit_of_the_gradient():
    q, estimator = make_q(), make_surrogate(dcv.RLOO(3))
    coefficients, problem = make_coefficients(estimator, 0.5), make_problem("network", dcv.Bernoulli)
    x = estimator.draw(q, np.random.default_rng(0).random((3, 2, 3)))
    r, dr = quadratic_of_its_form(estimator, coefficients, q)
    weight = np.array([0.5, -2.0])
    left, slopes = problem.f(x) - r(x), problem.df(x) - dr(x)
    wanted = np.var(left, axis=0, ddof=1) + np.mean(np.sum(q.mean * (1 - q.mean) * slopes**2, axis=-1), axis=0)
    evaluation = Evaluation(x, problem.f(x), problem.df(x))
    _, loss = estimator.gradient_and_loss(q, evaluation, coefficients, weight)
    np.testing.assert_allclose(loss, np.abs(weight) @ wanted, rtol=1e-12)


def test_the_directions_start_orthogonal():
    directions = dcv.Surrogate(dcv.RLOO(2), variables=7, features=1, directions=6).coefficients()["surrogate"]
    np.testing.assert_allclose(directions["directions"] @ directions["directions"].T, np.eye(6), atol=1e-12)


class TestErrors:
    def test_what_cannot_be_a_base(self):
        with pytest.raises(ValueError, match="base must be an estimator of f at samples alone, got Rebar"):
            dcv.Surrogate(dcv.Rebar(1))
        with pytest.raises(ValueError, match="got Surrogate"):
            dcv.Surrogate(dcv.Surrogate(dcv.RLOO(2)))
        with pytest.raises(TypeError, match="base must be a doublecv estimator, got int"):
            dcv.Surrogate(2)

    def test_sizes(self):
        with pytest.raises(ValueError, match="directions must be at most variables, 3, got 4"):
            dcv.Surrogate(dcv.RLOO(2), variables=3, features=1, directions=4)
        with pytest.raises(ValueError, match="features must be a positive integer, got 0"):
            dcv.Surrogate(dcv.RLOO(2), variables=3, features=0)
        with pytest.raises(ValueError, match="variables of Surrogate is None; give it"):
            dcv.Surrogate(dcv.RLOO(2)).coefficients()

    def test_context(self):
        problem, q = make_problem("network", dcv.Bernoulli), make_q()
        x = np.zeros((2, 2, 3))
        evaluation = Evaluation(x, problem.f(x), problem.df(x))
        for context, message in (
            (None, "context of Surrogate is None"),
            (np.zeros((3, FEATURES)), r"context must have shape \(2, 4\), the features of every batch element, got"),
        ):
            estimator = dataclasses.replace(make_surrogate(dcv.RLOO(2)), context=context)
            with pytest.raises(ValueError, match=message):
                estimator.gradient(q, evaluation, estimator.coefficients())

    def test_categorical(self):
        with pytest.raises(TypeError, match=r"q must be a doublecv\.Bernoulli for Surrogate, got Categorical"):
            make_surrogate(dcv.RLOO(2)).check_family(dcv.Categorical(logits=np.zeros((2, 3))))
