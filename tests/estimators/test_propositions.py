"""The paper's propositions and limits, exactly, by enumeration in float64."""

import numpy as np
import pytest

import doublecv as dcv
from doublecv.estimators import fixed_coefficients, make
from doublecv.estimators.averages import leave_one_out, score_gradient
from doublecv.exact import enumerate_outcomes, exact_gradient, exact_moments
from problems import PROBLEMS, best_coefficients, linear, make_estimator, make_logits, make_problem, toy

FAMILIES = [dcv.Bernoulli, dcv.Categorical]


def variance(estimator, problem, q, alpha=None):
    learned = fixed_coefficients({} if alpha is None else {"alpha": alpha})
    return exact_moments(problem.f, q, estimator, learned, df=problem.df).variance


def best_alpha(estimator, problem, q):
    return float(best_coefficients(estimator, problem, q).numbers["alpha"])


def best_variance(estimator, problem, q):
    return variance(estimator, problem, q, best_alpha(estimator, problem, q))


@pytest.fixture(params=[(family, name) for family in FAMILIES for name in PROBLEMS], ids=str)
def setting(request):
    family, name = request.param
    return make_problem(name, family), family(logits=make_logits(family))


@pytest.mark.parametrize("samples", [2, 3])
def test_proposition_1_variance_of_rloo_is_that_of_r_star_plus_that_of_the_baseline(setting, samples):
    problem, q = setting
    rloo = variance(dcv.RLOO(samples), problem, q)
    r_star = variance(dcv.RStar(samples, expected_f=problem.expected_f), problem, q)
    outcomes = enumerate_outcomes(problem.f, q, dcv.RLOO(samples))
    residual = problem.expected_f(q) - leave_one_out(outcomes.evaluation.f)
    e = score_gradient(outcomes.q, outcomes.evaluation.x, residual)
    np.testing.assert_allclose(outcomes.expectation(e), 0, atol=1e-12)
    np.testing.assert_allclose(rloo, r_star + outcomes.expectation(e**2), rtol=1e-10)
    assert np.all(rloo >= r_star)


def test_proposition_2_a_baseline_with_constant_mean_given_the_sample_needs_no_correction(setting):
    problem, q = setting
    outcomes = enumerate_outcomes(problem.f, q, dcv.RLOO(3))
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
    outcomes = enumerate_outcomes(problem.f, q, dcv.DoubleCV(samples, learning="gradient"), problem.df)
    x, df = outcomes.evaluation.x, outcomes.evaluation.df
    b = q.dot(leave_one_out(df), x - q.mean)
    surrogate = outcomes.expectation(score_gradient(outcomes.q, x, b - leave_one_out(b)))
    correction = q.covariance_product(outcomes.expectation(np.mean(df, axis=0)))
    np.testing.assert_allclose(surrogate, correction, atol=1e-12)


def test_closed_form_for_two_samples(setting):
    """Equation 12 of the paper."""
    problem, q = setting
    alpha = -0.6
    outcomes = enumerate_outcomes(problem.f, q, dcv.DoubleCV(2, learning="gradient"), problem.df)
    (x1, x2), (f1, f2), (d1, d2) = outcomes.evaluation.x, outcomes.evaluation.f, outcomes.evaluation.df
    delta = f1 - f2 + alpha * (q.dot(d2, x1 - q.mean) - q.dot(d1, x2 - q.mean))
    expected = q.scale(delta, (q.score(x1) - q.score(x2)) / 2) - alpha * q.covariance_product((d1 + d2) / 2)
    np.testing.assert_allclose(outcomes.estimates(fixed_coefficients({"alpha": alpha})), expected, atol=1e-13)


@pytest.mark.parametrize("name", ["double-cv", "double-cv-mean", "double-cv-current", "double-cv-others"])
@pytest.mark.parametrize("samples", [2, 3, 4])
def test_alpha_zero_is_rloo(setting, samples, name):
    problem, q = setting
    outcomes = enumerate_outcomes(problem.f, q, make(name, samples=samples), problem.df)
    rloo = dcv.RLOO(samples).apply(outcomes.q, outcomes.evaluation).gradient
    np.testing.assert_array_equal(outcomes.estimates(fixed_coefficients({"alpha": 0.0})), rloo)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("control", ["leave-one-out", "mean"])
@pytest.mark.parametrize("samples", [2, 3, 4])
def test_a_linear_f_leaves_no_variance_at_alpha_minus_one(family, control, samples):
    logits = make_logits(family)
    q, problem = family(logits=logits), linear(int(np.prod(logits.shape[1:])), family.event_axes)
    estimator = dcv.DoubleCV(samples, control=control, learning="gradient")
    assert np.max(variance(estimator, problem, q, -1.0)) < 1e-28
    assert np.max(variance(dcv.RLOO(samples), problem, q)) > 1e-3
    assert best_alpha(estimator, problem, q) == pytest.approx(-1, abs=1e-10)


@pytest.mark.parametrize("samples", [2, 3, 4])
@pytest.mark.parametrize("alpha", [-2.0, -1.0, -0.5, 0.3])
def test_the_others_half_of_the_mean_field_form_never_beats_r_star(setting, samples, alpha):
    problem, q = setting
    outcomes = enumerate_outcomes(problem.f, q, dcv.DoubleCV(samples, control="mean", learning="gradient"), problem.df)
    evaluation = outcomes.evaluation
    b = outcomes.q.dot(evaluation.df_mean, outcomes.q.score(evaluation.x))
    estimates = score_gradient(outcomes.q, evaluation.x, evaluation.f - leave_one_out(evaluation.f + alpha * b))
    mean = outcomes.expectation(estimates)
    np.testing.assert_allclose(mean, exact_gradient(problem.f, q), atol=1e-10)
    others = outcomes.expectation((estimates - mean) ** 2)
    r_star = variance(dcv.RStar(samples, expected_f=problem.expected_f), problem, q)
    assert np.all(others >= r_star - 1e-12)


@pytest.mark.parametrize("logit", [0.0, 1.0, -2.0])
@pytest.mark.parametrize("alpha", [-2.0, -1.0, -0.5, 0.3])
def test_on_the_toy_problem_the_others_half_never_beats_r_star(logit, alpha):
    problem, q = toy(4), dcv.Bernoulli(logits=np.full(4, logit))
    others = variance(dcv.HalfDoubleCV(2, keep="others"), problem, q, alpha)
    assert np.all(others >= variance(dcv.RStar(2, expected_f=problem.expected_f), problem, q) - 1e-15)


@pytest.mark.parametrize("name", ["rloo", "double-cv", "double-cv-mean", "disarm", "arms"])
def test_shifting_f_by_a_constant_changes_nothing(name):
    problem = make_problem("network", dcv.Bernoulli)
    q = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    estimator = make_estimator(name, 4)
    learned = fixed_coefficients(dict.fromkeys(estimator.needs.coefficients, -0.8))
    plain = enumerate_outcomes(problem.f, q, estimator, problem.df).estimates(learned)
    shifted = enumerate_outcomes(lambda x: problem.f(x) + 100.0, q, estimator, problem.df).estimates(learned)
    np.testing.assert_allclose(plain, shifted, atol=1e-11)


def test_shifting_f_changes_reinforce():
    problem = make_problem("network", dcv.Bernoulli)
    q = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    plain = exact_moments(problem.f, q, dcv.Reinforce(2)).variance
    shifted = exact_moments(lambda x: problem.f(x) + 100.0, q, dcv.Reinforce(2)).variance
    assert np.all(shifted > 100 * plain)


def test_arms_with_two_samples_is_disarm():
    problem = make_problem("network", dcv.Bernoulli)
    q = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    arms = exact_moments(problem.f, q, dcv.ARMS(2))
    disarm = exact_moments(problem.f, q, dcv.DisARM(2))
    np.testing.assert_allclose(arms.variance, disarm.variance, rtol=1e-12)


@pytest.mark.slow
class TestToyVariances:
    """The toy problem with D = 10 and K = 2, every one of its 2^20 outcomes."""

    problem = toy(10)

    def variances(self, logit):
        q = dcv.Bernoulli(logits=np.full(10, logit))
        return {
            "rloo": np.mean(variance(dcv.RLOO(2), self.problem, q)),
            "r-star": np.mean(variance(dcv.RStar(2, expected_f=self.problem.expected_f), self.problem, q)),
            "double-cv": np.mean(best_variance(dcv.DoubleCV(2, learning="gradient"), self.problem, q)),
            "double-cv-mean": np.mean(
                best_variance(dcv.DoubleCV(2, control="mean", learning="gradient"), self.problem, q)
            ),
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
