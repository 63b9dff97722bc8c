"""The exact variance for any D against the enumeration of all outcomes for small D."""

from functools import partial

import numpy as np
import pytest
from exact_variance import LARGEST_TABLE, df, exact_variance, has_exact_variance

import doublecv as dcv
from doublecv.estimators import fixed_coefficients, make, names
from doublecv.exact import exact_moments
from doublecv.lab.toy.problem import ToyProblem

PROBLEM = ToyProblem()


def estimator_of(name, samples):
    options = {"expected_f": PROBLEM.expected_f} if name == "r-star" else {}
    return make(name, samples=samples, **options)


def enumerated_variance(estimator, q, coefficients):
    return exact_moments(PROBLEM.f, q, estimator, fixed_coefficients(coefficients), df=partial(df, PROBLEM)).variance


def takes(name, samples):
    try:
        return has_exact_variance(make(name, samples=samples), 1)
    except ValueError:
        return False


KNOWN = [(name, samples) for name in names() for samples in (1, 2, 3, 4) if takes(name, samples)]


def best_alpha(estimator, q):
    """The alpha of least total variance, a parabola in alpha whose minimum follows from three points."""
    below, middle, above = (exact_variance(PROBLEM, estimator, q, {"alpha": alpha}).sum() for alpha in (-1, 0, 1))
    curvature = above + below - 2 * middle
    return (below - above) / (2 * curvature) if curvature > 0 else 0.0


def q_of(dimension):
    return dcv.Bernoulli(logits=2 * np.random.default_rng(dimension).normal(size=dimension))


def test_known_are_all_estimators_of_the_paper():
    assert {name for name, _ in KNOWN} >= {"rloo", "double-cv", "disarm", "r-star", "reinforce", "muprop", "arms"}


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize(("name", "samples"), KNOWN)
def test_exact_variance_is_that_of_all_outcomes(name, samples, dimension):
    estimator, q = estimator_of(name, samples), q_of(dimension)
    coefficients = dict.fromkeys(estimator.needs.coefficients, -0.3)
    enumerated = enumerated_variance(estimator, q, coefficients)
    np.testing.assert_allclose(exact_variance(PROBLEM, estimator, q, coefficients), enumerated, rtol=1e-10)


def test_learned_baseline_of_reinforce_counts():
    estimator, q = dcv.Reinforce(samples=2, learned_baseline=True), q_of(3)
    enumerated = enumerated_variance(estimator, q, {"baseline": 0.2})
    np.testing.assert_allclose(exact_variance(PROBLEM, estimator, q, {"baseline": 0.2}), enumerated, rtol=1e-10)


@pytest.mark.parametrize("samples", [2, 4])
def test_r_star_bounds_the_half_that_corrects_the_baseline_alone(samples):
    for seed in range(5):
        q = dcv.Bernoulli(logits=np.random.default_rng(seed).normal(size=200))
        others = estimator_of("double-cv-others", samples)
        best = best_alpha(others, q)
        bound = exact_variance(PROBLEM, estimator_of("r-star", samples), q, {})
        for alpha in (best, 0.0, -0.002):
            assert np.all(exact_variance(PROBLEM, others, q, {"alpha": alpha}) >= bound * (1 - 1e-12))


def test_double_cv_gains_nothing_where_all_logits_are_0():
    q = dcv.Bernoulli(logits=np.zeros(200))
    double_cv = estimator_of("double-cv", 2)
    best = best_alpha(double_cv, q)
    rloo = exact_variance(PROBLEM, estimator_of("rloo", 2), q, {}).sum()
    gain = 1 - exact_variance(PROBLEM, double_cv, q, {"alpha": best}).sum() / rloo
    assert 0 <= gain < 0.01


def test_certain_variables_have_no_variance():
    q = dcv.Bernoulli(logits=np.array([np.inf, -np.inf]))
    double_cv = estimator_of("double-cv", 2)
    np.testing.assert_array_equal(exact_variance(PROBLEM, double_cv, q, {"alpha": -0.5}), 0)


@pytest.mark.parametrize("estimator", [make("rebar", samples=1), make("rloo", samples=30)], ids=["unknown", "too many"])
def test_what_is_not_known_is_refused(estimator):
    assert not has_exact_variance(estimator, 10)
    with pytest.raises(ValueError, match="estimator must be one with a known variance"):
        exact_variance(PROBLEM, estimator, q_of(3), {})


def test_table_stays_within_its_limit():
    largest = max(samples for samples in range(2, 30) if has_exact_variance(make("rloo", samples=samples), 200))
    assert 2**largest * largest * 200 <= LARGEST_TABLE < 2 ** (largest + 1) * (largest + 1) * 200
