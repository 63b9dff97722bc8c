"""The common battery: every registered estimator is unbiased, exactly. A new estimator joins by being registered."""

import dataclasses

import numpy as np
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.estimators import DirichletCopula, Vectors, fixed_coefficients, label, make
from doublecv.exact import enumerate_outcomes, exact_gradient
from problems import BINARY, PROBLEMS, make_context, make_estimator, make_learned, make_logits, make_problem

VALUES = (-1.0, 0.7)


def learned_states(estimator, q, context):
    """The start, and states far from it: random numbers, learned averages, and large fixed coefficients."""
    yield estimator.init(q, context)
    names = estimator.needs.coefficients
    for value in VALUES:
        learned = make_learned(estimator, q, context, value)
        if learned.numbers or learned.averages:
            yield learned
        if learned.averages and names:
            yield fixed_coefficients({name: value * (1 + index) for index, name in enumerate(names)})


def largest_bias(estimator, problem, q, context=None):
    """Return the largest difference between the exact mean and the exact gradient, over all learned states."""
    exact = exact_gradient(problem.f, q)
    outcomes = enumerate_outcomes(problem.f, q, estimator, problem.df)
    means = [
        outcomes.expectation(outcomes.estimates(learned, context)) for learned in learned_states(estimator, q, context)
    ]
    return max(np.max(np.abs(mean - exact)) for mean in means)


def cases():
    """All registered estimators but those with continuous noise, over which tests of their own integrate."""
    for name in estimators.names():
        needs = make(name, samples=4).needs
        if needs.relaxed_points:
            continue
        for family in needs.families:
            for samples in (2, 3, 4):
                if samples >= needs.minimum_samples and samples % needs.multiple_of == 0:
                    yield pytest.param(name, family, samples, id=f"{name}-{family.__name__}-{samples}")


@pytest.mark.parametrize("problem_name", PROBLEMS)
@pytest.mark.parametrize(("name", "family", "samples"), list(cases()))
def test_unbiased_by_enumeration(name, family, samples, problem_name):
    q = family(logits=make_logits(family))
    context = make_context() if make(name, samples=4).needs.context else None
    assert largest_bias(make_estimator(name, samples), make_problem(problem_name, family), q, context) < 1e-10


def test_the_battery_runs_every_name_and_family():
    ran = {(case.values[0], case.values[1]) for case in cases()}
    assert set(estimators.names()) - {name for name, _ in ran} == {"rebar", "relax", "double-cv-concrete"}
    assert {name for name, family in ran if family is dcv.Categorical} >= {"reinforce", "rloo", "double-cv", "muprop"}
    binary = {"disarm", "arms", "double-cv-antithetic", "double-cv-mean-antithetic", "double-cv-mean-dirichlet"}
    assert {name for name, family in ran if family is dcv.Categorical}.isdisjoint(binary)


@pytest.mark.parametrize("name", [n for n in BINARY if make(n, samples=4).init(dcv.Bernoulli(np.zeros(3))).averages])
def test_the_learned_averages_of_the_battery_are_not_those_of_another_estimator(name):
    """Averages that solve to coefficients of 0 would only test RLOO."""
    estimator, q = make_estimator(name, 3), dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    if isinstance(estimator, dcv.LearnedSurrogate):
        estimator = estimator.base
    coefficients = estimator.coefficients(make_learned(estimator, q))
    assert max(abs(float(value)) for value in coefficients.values()) > 1e-2


# The classes are final for users; the mutants here show that the battery can fail.


@dataclasses.dataclass(frozen=True)
class CorrectionDropped(dcv.DoubleCV):
    """Double CV that forgets -alpha M d."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        return Vectors(q, g0, {"alpha": h["alpha"] + q.covariance_product(q.xp.mean(evaluation.df, axis=0))})


@dataclasses.dataclass(frozen=True)
class SignFlipped(dcv.DoubleCV):
    """Double CV that adds alpha M d."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        return Vectors(q, g0, {"alpha": h["alpha"] + 2 * q.covariance_product(q.xp.mean(evaluation.df, axis=0))})


@dataclasses.dataclass(frozen=True)
class OwnGradient(dcv.DoubleCV):
    """Double CV whose control variate uses the gradients of all samples, also that of the current one."""

    def parts(self, q, evaluation):
        mean = q.xp.broadcast_to(q.xp.mean(evaluation.df, axis=0), evaluation.df.shape)
        return super().parts(q, dataclasses.replace(evaluation, df=mean))


@dataclasses.dataclass(frozen=True)
class HalfUncorrected(dcv.HalfDoubleCV):
    """The current half without its correction."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        return Vectors(q, g0, {"alpha": h["alpha"] + q.covariance_product(q.xp.mean(evaluation.df, axis=0))})


@dataclasses.dataclass(frozen=True)
class SquareNotCorrected(dcv.QuadraticDoubleCV):
    """The quadratic form without its second correction."""

    def parts(self, q, evaluation):
        parts = super().parts(q, evaluation)
        g0, h = parts.vectors()
        n = q.dot(evaluation.df, q.covariance_product(evaluation.df))
        dropped = q.xp.mean(q.scale(1 / n, q.score_square_moment(evaluation.df)), axis=0)
        return Vectors(q, g0, h | {"current_square": h["current_square"] + dropped}, norm=parts.norm)


@dataclasses.dataclass(frozen=True)
class SquareNotCentered(dcv.QuadraticDoubleCV):
    """The quadratic form whose crossed square has a mean."""

    def parts(self, q, evaluation):
        parts = super().parts(q, evaluation).weighted
        shifted = parts.weights["crossed_square"] + evaluation.f
        return dataclasses.replace(parts, weights=parts.weights | {"crossed_square": shifted})


@dataclasses.dataclass(frozen=True)
class NotDebiased(dcv.ARMS):
    """RLOO on coupled samples, without the division by 1 - rho."""

    def estimate(self, q, evaluation):
        return super().estimate(q, evaluation) / DirichletCopula().independence(q, self.samples)


@dataclasses.dataclass(frozen=True)
class MeanUncorrected(dcv.MuProp):
    """MuProp without the gradient of its baseline."""

    def estimate(self, q, evaluation):
        return super().estimate(q, evaluation) - q.covariance_product(evaluation.df_mean)


@pytest.mark.parametrize(
    "broken",
    [
        *[CorrectionDropped, SignFlipped, OwnGradient, HalfUncorrected, SquareNotCorrected, SquareNotCentered],
        *[NotDebiased, MeanUncorrected],
    ],
)
@pytest.mark.parametrize("samples", [2, 3, 4])
def test_the_battery_catches_a_broken_estimator(broken, samples):
    q = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    assert largest_bias(broken(samples), make_problem("network", dcv.Bernoulli), q) > 1e-3


@dataclasses.dataclass(frozen=True)
class SurrogateNotAdded(dcv.LearnedSurrogate):
    """The learned surrogate without its own gradient."""

    def formula(self, q, evaluation, learned, weight, context):
        applied = super().formula(q, evaluation, learned, weight, context)
        readout = context @ learned.numbers["surrogate_readout"] + learned.numbers["surrogate_readout_bias"]
        slope = readout[..., : q.event_shape[0]]
        return applied._replace(gradient=applied.gradient - q.covariance_product(slope))


def test_the_battery_catches_a_broken_surrogate():
    q = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    problem = make_problem("network", dcv.Bernoulli)
    assert largest_bias(SurrogateNotAdded(dcv.RLOO(2)), problem, q, make_context()) > 1e-3


@pytest.mark.parametrize("name", sorted({case.values[0] for case in cases()}))
def test_evaluations_are_the_samples_and_the_mean(name):
    estimator = make(name, samples=4)
    at_the_mean = name == "muprop" or name.startswith("double-cv-mean")
    assert estimator.evaluations == 4 + at_the_mean
    assert estimator.needs.mean is at_the_mean


@pytest.mark.parametrize("name", estimators.names())
def test_the_registry_makes_the_estimator_of_that_name(name):
    assert label(make(name, samples=4)) == name
    assert make(name, samples=4).samples == 4


@pytest.mark.parametrize("name", estimators.names())
def test_every_estimator_is_a_value(name):
    """Equal and hashable, so that it can be a static argument of jit."""
    one, other = make(name, samples=4), make(name, samples=4)
    assert one == other
    assert hash(one) == hash(other)
    assert one != make(name, samples=6)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.samples = 6
