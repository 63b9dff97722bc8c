"""The recommendation: right where the answer is clear, whatever the machine does meanwhile."""

import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv.diagnostics import comparison, recommendation
from doublecv.diagnostics.comparison import Row
from doublecv.diagnostics.meter import add, empty
from doublecv.diagnostics.problem import Prepared, Problem
from doublecv.estimators import make
from doublecv.estimators.base import NOTHING
from frameworks import FRAMEWORKS, network


class Simulated(Problem):
    """A problem with known variance and time: f takes `evaluation` seconds a sample, a formula `formula` seconds."""

    q = dcv.Bernoulli(logits=np.zeros(3))

    def __init__(self, evaluation, gain):
        self.evaluation, self.gain = evaluation, gain

    def prepare(self, estimator, draws, steps):
        return Prepared(NOTHING, "-")

    def measure(self, estimator, learned):
        share = self.gain if estimator.needs.gradient else 1.0
        deviation = np.sqrt(share / (estimator.samples - 1))
        draws = deviation * np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
        return lambda number, stream: add(empty(np.zeros(3)), draws)

    def seconds(self, estimator):
        formula = 2e-4 if estimator.needs.gradient else 1e-4
        return formula + self.evaluation * estimator.samples * (1.2 if estimator.needs.gradient else 1.0)

    def step(self, estimator):
        return lambda: self.seconds(estimator)

    def optimal_coefficients(self, estimator, draws):
        raise NotImplementedError

    train = exact_gradient = optimal_coefficients


@pytest.fixture
def simulated_time(monkeypatch):
    monkeypatch.setattr(comparison, "median_times", lambda calls, rounds, limit: [call() for call in calls])


@pytest.mark.usefixtures("simulated_time")
def test_more_samples_where_f_is_cheap():
    found = recommendation.recommend(Simulated(1e-7, gain=0.5), True, budget=60)
    assert isinstance(found.estimator, dcv.RLOO | dcv.ARMS)
    assert found.estimator.samples >= 32
    assert found.sentence.startswith("Take rloo with K = ")


@pytest.mark.usefixtures("simulated_time")
def test_the_quadratic_form_where_f_is_a_decoder():
    found = recommendation.recommend(Simulated(5e-3, gain=0.2), True, budget=60)
    assert isinstance(found.estimator, dcv.QuadraticDoubleCV)
    assert str(found).endswith(found.sentence)
    assert "times its time for the same accuracy" in found.sentence


@pytest.mark.usefixtures("simulated_time")
def test_without_a_gradient_only_estimators_that_need_none():
    found = recommendation.recommend(Simulated(5e-3, gain=0.2), False, budget=60)
    assert {row.name for row in found.comparison.rows} == {"rloo", "arms"}


@pytest.mark.usefixtures("simulated_time")
def test_the_budget():
    found = recommendation.recommend(Simulated(1e-7, gain=0.5), True, budget=1e-9)
    assert len(found.comparison.rows) == 3
    assert "not measured within 1e-09 seconds: rloo with K = 16" in str(found)
    with pytest.raises(ValueError, match="budget must be a positive number of seconds, got 0"):
        recommendation.recommend(Simulated(1e-7, gain=0.5), True, budget=0)


def test_candidates_of_a_categorical_q():
    problem = Simulated(1e-7, gain=0.5)
    problem.q = dcv.Categorical(logits=np.zeros((1, 3)))
    names = {entrant.name for entrant in recommendation.candidates(problem, True, ("rloo", "disarm"), (2, 3))}
    assert names == {"rloo"}
    with pytest.raises(ValueError, match="must be unbiased for a recommendation, got 'reinmax'"):
        recommendation.candidates(problem, True, ("reinmax",), (2,))
    with pytest.raises(ValueError, match="unknown name 'rlo'"):
        recommendation.candidates(problem, True, ("rlo",), (2,))
    with pytest.raises(ValueError, match="none of the estimators supports this f and q"):
        recommendation.candidates(problem, True, ("disarm",), (2,))


def row(name, samples, variance, seconds):
    estimator = make(name, samples=samples)
    return Row(name, samples, estimator, NOTHING, "-", variance, 0.0, samples, seconds)


class TestChoice:
    def test_the_least_variance_per_second(self):
        rows = [row("rloo", 4, 1.0, 1.0), row("quadratic-double-cv", 4, 0.2, 1.5), row("rloo", 2, 3.0, 0.6)]
        found = recommendation.choose(rows)
        assert found.estimator == dcv.QuadraticDoubleCV(4)
        assert [entry.name for entry in found.comparison.rows] == ["quadratic-double-cv", "rloo", "rloo"]
        assert "rloo with K = 4, needs 3.33 times its time for the same accuracy" in found.sentence

    def test_among_equals_the_simplest(self):
        rows = [row("quadratic-double-cv", 4, 1.0, 1.0), row("rloo", 16, 1.05, 1.0), row("rloo", 8, 1.08, 1.0)]
        found = recommendation.choose(rows)
        assert found.estimator == dcv.RLOO(8)
        assert "within 10% of the least variance per second" in found.sentence


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_a_real_run(framework):
    """Whatever the times are, the result can be used as it is."""
    q = framework.bernoulli()
    found = framework.library.recommend(network, q, budget=0.1, samples=(4, 8), **framework.random)
    best = found.comparison.rows[0]
    assert best.variance_times_seconds == min(entry.variance_times_seconds for entry in found.comparison.rows)
    assert f"Take {found.comparison.rows[0].name}" in found.sentence or "within 10%" in found.sentence
    assert framework.library.Expectation(found.estimator)


def test_a_simulator_without_gradient():
    q = dcv.Bernoulli(logits=torch.zeros(2, 6))
    found = dcv.torch.recommend(lambda x: (x.sum(-1) > 2.5).float(), q, budget=0.1, samples=(4,))
    assert {entry.name for entry in found.comparison.rows} <= {"rloo", "arms"}
