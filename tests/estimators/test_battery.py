"""The common battery: every registered estimator is unbiased, exactly. A new estimator joins by being registered."""

import dataclasses

import numpy as np
import pytest
from doublecv.diagnostics import exact_gradient, exact_moments

import doublecv as dcv
from doublecv import estimators
from doublecv.estimators.parts import Vectors
from problems import PROBLEMS, make_coefficients, make_estimator, make_logits, make_problem

ALPHAS = (0.0, -1.0, 0.7)


def bias(estimator, problem, q, alpha):
    """The largest difference between the estimator's exact mean and the exact gradient."""
    coefficients = make_coefficients(estimator, alpha)
    moments = exact_moments(estimator, problem.f, q, coefficients, problem.df)
    return np.max(np.abs(moments.mean - exact_gradient(problem.f, q)))


def cases():
    """All registered estimators but those with continuous noise, over which tests of their own integrate."""
    for name in estimators.names():
        estimator = estimators.make(name, samples=4)
        if estimator.relaxed_points:
            continue
        for family in estimator.families:
            for samples in (2, 3, 4):
                if samples >= estimator.minimum_samples and samples % estimator.multiple_of == 0:
                    yield pytest.param(name, family, samples, id=f"{name}-{family.__name__}-{samples}")


@pytest.mark.parametrize("problem_name", PROBLEMS)
@pytest.mark.parametrize(("name", "family", "samples"), list(cases()))
def test_unbiased_by_enumeration(name, family, samples, problem_name):
    problem = make_problem(problem_name, family)
    estimator = make_estimator(name, samples, problem)
    q = family(logits=make_logits(family))
    for alpha in ALPHAS if estimator.coefficients() else ALPHAS[:1]:
        assert bias(estimator, problem, q, alpha) < 1e-10


def test_the_battery_runs_every_name_and_family():
    ran = {(case.values[0], case.values[1]) for case in cases()}
    assert set(estimators.names()) - {name for name, _ in ran} == {"rebar", "relax", "double-cv-concrete"}
    assert {name for name, family in ran if family is dcv.Categorical} >= {"reinforce", "rloo", "double-cv", "muprop"}
    binary = {"disarm", "arms", "double-cv-antithetic", "double-cv-mean-antithetic", "double-cv-mean-dirichlet"}
    assert {name for name, family in ran if family is dcv.Categorical}.isdisjoint(binary)


@dataclasses.dataclass(frozen=True)
class CorrectionDropped(dcv.DoubleCV):
    """Double CV that forgets -alpha M d."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        return Vectors(q, g0, {"alpha": h["alpha"] + q.covariance(q.xp.mean(evaluation.df, axis=0))})


@dataclasses.dataclass(frozen=True)
class SignFlipped(dcv.DoubleCV):
    """Double CV that adds alpha M d."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        return Vectors(q, g0, {"alpha": h["alpha"] + 2 * q.covariance(q.xp.mean(evaluation.df, axis=0))})


@dataclasses.dataclass(frozen=True)
class OwnGradient(dcv.DoubleCV):
    """Double CV whose surrogate uses the gradients of all samples, the current one's too."""

    def parts(self, q, evaluation):
        mean = q.xp.broadcast_to(q.xp.mean(evaluation.df, axis=0), evaluation.df.shape)
        return super().parts(q, dataclasses.replace(evaluation, df=mean))


@dataclasses.dataclass(frozen=True)
class SquareNotCorrected(dcv.QuadraticDoubleCV):
    """The quadratic form without its second correction."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        n = q.dot(evaluation.df, q.covariance(evaluation.df))
        dropped = q.xp.mean(q.weigh(1 / n, q.third_moment(evaluation.df)), axis=0)
        return Vectors(q, g0, h | {"current_square": h["current_square"] + dropped})


@dataclasses.dataclass(frozen=True)
class NotDebiased(dcv.ARMS):
    """RLOO on coupled samples, without the division by 1 - rho."""

    def formula(self, q, evaluation, coefficients):
        return super().formula(q, evaluation, coefficients) / self.sampler.independence(q, self.samples)


@pytest.mark.parametrize("broken", [CorrectionDropped, SignFlipped, OwnGradient, SquareNotCorrected, NotDebiased])
@pytest.mark.parametrize("samples", [2, 3, 4])
def test_the_battery_catches_a_broken_estimator(broken, samples):
    problem = make_problem("network", dcv.Bernoulli)
    q = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    assert max(bias(broken(samples), problem, q, alpha) for alpha in ALPHAS) > 1e-3


@pytest.mark.parametrize("name", sorted({case.values[0] for case in cases()} - {"r-star"}))
def test_evaluations_are_the_samples_and_the_mean(name):
    estimator = estimators.make(name, samples=4)
    at_the_mean = name == "muprop" or name.startswith("double-cv-mean")
    assert estimator.evaluations == 4 + at_the_mean
    assert estimator.needs_mean is at_the_mean


@pytest.mark.parametrize("name", estimators.names())
def test_registry_makes_the_estimator_of_that_name(name):
    assert estimators.make(name, samples=4).name == name
    assert estimators.make(name, samples=4).samples == 4
