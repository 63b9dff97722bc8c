"""The paper's propositions and limits, exactly, by enumeration in float64."""

import numpy as np
import pytest
from doublecv.diagnostics import exact_moments, optimal_alpha
from doublecv.diagnostics.exact import enumerate_outcomes
from doublecv.estimators.leave_one_out import leave_one_out
from doublecv.estimators.reinforce import score_gradient

import doublecv as dcv
from problems import PROBLEMS, linear, make_estimator, make_logits, make_problem, toy

FAMILIES = [dcv.Bernoulli, dcv.Categorical]


def variance(estimator, problem, q, alpha=None):
    coefficients = {} if alpha is None else {"alpha": alpha}
    return exact_moments(estimator, problem.f, q, coefficients, problem.df).variance


def best_variance(estimator, problem, q):
    return variance(estimator, problem, q, optimal_alpha(estimator, problem.f, q, df=problem.df))


@pytest.fixture(params=[(family, name) for family in FAMILIES for name in PROBLEMS], ids=str)
def setting(request):
    family, name = request.param
    return make_problem(name, family), family(logits=make_logits(family))


@pytest.mark.parametrize("samples", [2, 3])
def test_proposition_1_variance_of_rloo_is_that_of_r_star_plus_that_of_the_baseline(setting, samples):
    problem, q = setting
    rloo = variance(dcv.RLOO(samples), problem, q)
    r_star = variance(dcv.RStar(samples, expected_f=problem.expected_f), problem, q)
    outcomes = enumerate_outcomes(dcv.RLOO(samples), problem.f, q)
    residual = problem.expected_f(q) - leave_one_out(outcomes.evaluation.f)
    e = score_gradient(outcomes.q, outcomes.evaluation.x, residual)
    np.testing.assert_allclose(outcomes.expectation(e), 0, atol=1e-12)
    np.testing.assert_allclose(rloo, r_star + outcomes.expectation(e**2), rtol=1e-10)
    assert np.all(rloo >= r_star)


def test_proposition_2_a_baseline_with_constant_mean_given_the_sample_needs_no_correction(setting):
    problem, q = setting
    outcomes = enumerate_outcomes(dcv.RLOO(3), problem.f, q)
    x, df = outcomes.evaluation.x, problem.df(outcomes.evaluation.x)
    # It depends on the current sample, through its gradient, but its mean over the others is 0.
    depends_on_current = q.dot(df, np.roll(x, 1, axis=0) - q.mean)
    np.testing.assert_allclose(outcomes.expectation(score_gradient(outcomes.q, x, depends_on_current)), 0, atol=1e-12)
    # The converse, so that the statement is not empty: its own deviation has no such mean.
    own = q.dot(df, x - q.mean)
    assert np.max(np.abs(outcomes.expectation(score_gradient(outcomes.q, x, own)))) > 1e-3


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_proposition_3_the_correction_is_the_mean_of_the_surrogate_part(setting, samples):
    problem, q = setting
    outcomes = enumerate_outcomes(dcv.DoubleCV(samples), problem.f, q, problem.df)
    x, df = outcomes.evaluation.x, outcomes.evaluation.df
    b = q.dot(leave_one_out(df), x - q.mean)
    surrogate = outcomes.expectation(score_gradient(outcomes.q, x, b - leave_one_out(b)))
    correction = q.covariance(outcomes.expectation(np.mean(df, axis=0)))
    np.testing.assert_allclose(surrogate, correction, atol=1e-12)


def test_closed_form_for_two_samples(setting):
    """Equation 12 of the paper."""
    problem, q = setting
    alpha = -0.6
    outcomes = enumerate_outcomes(dcv.DoubleCV(2), problem.f, q, problem.df)
    (x1, x2), (f1, f2), (d1, d2) = outcomes.evaluation.x, outcomes.evaluation.f, outcomes.evaluation.df
    delta = f1 - f2 + alpha * (q.dot(d2, x1 - q.mean) - q.dot(d1, x2 - q.mean))
    expected = q.weigh(delta, (q.score(x1) - q.score(x2)) / 2) - alpha * q.covariance((d1 + d2) / 2)
    np.testing.assert_allclose(outcomes.estimates({"alpha": alpha}), expected, atol=1e-13)


@pytest.mark.parametrize("keep", ["both", "current", "others"])
@pytest.mark.parametrize("surrogate", ["leave-one-out", "mean"])
@pytest.mark.parametrize("samples", [2, 3, 4])
def test_alpha_zero_is_rloo(setting, samples, surrogate, keep):
    problem, q = setting
    outcomes = enumerate_outcomes(dcv.DoubleCV(samples, surrogate, keep), problem.f, q, problem.df)
    rloo = dcv.RLOO(samples).gradient(outcomes.q, outcomes.evaluation, {})
    np.testing.assert_array_equal(outcomes.estimates({"alpha": 0.0}), rloo)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("surrogate", ["leave-one-out", "mean"])
@pytest.mark.parametrize("samples", [2, 3, 4])
def test_a_linear_f_leaves_no_variance_at_alpha_minus_one(family, surrogate, samples):
    logits = make_logits(family)
    q, problem = family(logits=logits), linear(int(np.prod(logits.shape[1:])), family.event_axes)
    estimator = dcv.DoubleCV(samples, surrogate)
    assert np.max(variance(estimator, problem, q, -1.0)) < 1e-28
    assert np.max(variance(dcv.RLOO(samples), problem, q)) > 1e-3
    assert optimal_alpha(estimator, problem.f, q, df=problem.df) == pytest.approx(-1, abs=1e-10)


@pytest.mark.parametrize("samples", [2, 3, 4])
@pytest.mark.parametrize("alpha", [-2.0, -1.0, -0.5, 0.3])
def test_the_others_half_of_the_mean_field_form_never_beats_r_star(setting, samples, alpha):
    problem, q = setting
    others = variance(dcv.DoubleCV(samples, "mean", "others"), problem, q, alpha)
    r_star = variance(dcv.RStar(samples, expected_f=problem.expected_f), problem, q)
    assert np.all(others >= r_star - 1e-12)


@pytest.mark.parametrize("logit", [0.0, 1.0, -2.0])
@pytest.mark.parametrize("alpha", [-2.0, -1.0, -0.5, 0.3])
def test_on_the_toy_problem_the_others_half_never_beats_r_star(logit, alpha):
    problem, q = toy(4), dcv.Bernoulli(logits=np.full(4, logit))
    others = variance(dcv.DoubleCV(2, keep="others"), problem, q, alpha)
    assert np.all(others >= variance(dcv.RStar(2, expected_f=problem.expected_f), problem, q) - 1e-15)


@pytest.mark.parametrize("name", ["rloo", "double-cv", "double-cv-mean", "disarm", "arms"])
def test_shifting_f_by_a_constant_changes_nothing(name):
    problem = make_problem("network", dcv.Bernoulli)
    q = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    estimator = make_estimator(name, 4, problem)
    coefficients = dict.fromkeys(estimator.coefficients(), -0.8)
    plain = enumerate_outcomes(estimator, problem.f, q, problem.df).estimates(coefficients)
    shifted = enumerate_outcomes(estimator, lambda x: problem.f(x) + 100.0, q, problem.df).estimates(coefficients)
    np.testing.assert_allclose(plain, shifted, atol=1e-11)


def test_shifting_f_changes_reinforce():
    problem = make_problem("network", dcv.Bernoulli)
    q = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    plain = exact_moments(dcv.Reinforce(2), problem.f, q, {}).variance
    shifted = exact_moments(dcv.Reinforce(2), lambda x: problem.f(x) + 100.0, q, {}).variance
    assert np.all(shifted > 100 * plain)


def test_arms_with_two_samples_is_disarm():
    problem = make_problem("network", dcv.Bernoulli)
    q = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    arms = exact_moments(dcv.ARMS(2), problem.f, q, {})
    disarm = exact_moments(dcv.DisARM(2), problem.f, q, {})
    np.testing.assert_allclose(arms.variance, disarm.variance, rtol=1e-12)


class TestToyVariances:
    """The toy problem with D = 10 and K = 2, every one of its 2^20 outcomes."""

    problem = toy(10)

    def variances(self, logit):
        q = dcv.Bernoulli(logits=np.full(10, logit))
        return {
            "rloo": np.mean(variance(dcv.RLOO(2), self.problem, q)),
            "r-star": np.mean(variance(dcv.RStar(2, expected_f=self.problem.expected_f), self.problem, q)),
            "double-cv": np.mean(best_variance(dcv.DoubleCV(2), self.problem, q)),
            "double-cv-mean": np.mean(best_variance(dcv.DoubleCV(2, "mean"), self.problem, q)),
        }

    def test_at_logits_one(self):
        measured = self.variances(1.0)
        assert measured["double-cv"] < 0.3 * measured["r-star"]
        assert measured["r-star"] < 0.6 * measured["rloo"]
        assert measured["double-cv-mean"] < 1e-3 * measured["rloo"]

    def test_at_logits_zero_double_cv_gains_nothing(self):
        """There the gradient of the relaxed f is uncorrelated with f on the corners."""
        measured = self.variances(0.0)
        assert measured["double-cv"] == pytest.approx(measured["rloo"], rel=1e-3)
        assert measured["double-cv-mean"] < 1e-3 * measured["rloo"]
