"""The recommendation: right where the answer is clear, whatever the machine does meanwhile."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv.diagnostics import recommendation, timing
from doublecv.diagnostics.comparison import Row
from doublecv.diagnostics.meter import add, empty
from doublecv.diagnostics.problem import Prepared, Problem
from doublecv.estimators import make
from doublecv.estimators.base import NOTHING
from frameworks import FRAMEWORKS, network


class Clock:
    """A clock that only the simulated work moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Simulated(Problem):
    """A problem with known variance and time, which is `evaluation` per sample and, in formulas, `pair` per pair."""

    q = dcv.Bernoulli(logits=np.zeros(3))

    def __init__(self, clock, evaluation, gain, compilation=0.0, pair=0.0):
        self.clock, self.evaluation, self.gain, self.compilation = clock, evaluation, gain, compilation
        self.pair = pair
        self.longest_call = 0.0

    def spend(self, seconds):
        self.clock.now += seconds
        self.longest_call = max(self.longest_call, seconds)

    def seconds(self, estimator):
        formula = 2e-4 + self.pair * estimator.samples**2 if estimator.needs.gradient else 1e-4
        return formula + self.evaluation * estimator.samples * (1.2 if estimator.needs.gradient else 1.0)

    def prepare(self, estimator, draws, steps):
        self.spend(self.compilation + draws * self.seconds(estimator) * bool(estimator.needs.coefficients))
        return Prepared(NOTHING, "-")

    def measure(self, estimator, learned):
        share = self.gain if estimator.needs.gradient else 1.0
        deviation = np.sqrt(share / (estimator.samples - 1))
        draws = deviation * np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])

        def run(number, stream):
            self.spend(self.compilation * (stream == 0) + number * self.seconds(estimator))
            return add(empty(np.zeros(3)), draws)

        return run

    def step(self, estimator):
        self.spend(self.compilation)
        return lambda: self.spend(self.seconds(estimator))

    def optimal_coefficients(self, estimator, draws):
        raise NotImplementedError

    train = exact_gradient = optimal_coefficients


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (timing, recommendation):
        monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def recommended(problem, has_gradient=True, budget=1e6):
    return recommendation.recommend(problem, lambda: has_gradient, budget=budget)


def test_more_samples_where_f_is_cheap(clock):
    found = recommended(Simulated(clock, 1e-7, gain=0.5))
    assert isinstance(found.estimator, dcv.RLOO | dcv.ARMS)
    assert found.estimator.samples >= 32
    assert found.sentence.startswith("Take rloo with K = ")
    assert len(found.comparison.rows) == 24


def test_the_quadratic_form_where_f_is_a_decoder(clock):
    problem = Simulated(clock, 5e-3, gain=0.5)
    gain_of_the_quadratic = {"QuadraticDoubleCV": 0.2}
    measure = problem.measure

    def better(estimator, learned):
        problem.gain = gain_of_the_quadratic.get(type(estimator).__name__, 0.5)
        return measure(estimator, learned)

    problem.measure = better
    found = recommended(problem)
    assert isinstance(found.estimator, dcv.QuadraticDoubleCV)
    assert str(found).endswith(found.sentence)
    assert "times its time for the same accuracy" in found.sentence


def test_without_a_gradient_only_estimators_that_need_none(clock):
    found = recommended(Simulated(clock, 5e-3, gain=0.2), has_gradient=False)
    assert {row.name for row in found.comparison.rows} == {"rloo", "arms"}


@pytest.mark.parametrize("evaluation", [1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("compilation", [0.0, 2.0])
@pytest.mark.parametrize("budget", [1e-9, 1.0, 20.0, 60.0, 300.0])
def test_the_budget(clock, evaluation, compilation, budget):
    """The pilot run ends within the budget and one call, unless the first candidate alone takes longer."""
    problem = Simulated(clock, evaluation, gain=0.5, compilation=compilation)
    found = recommended(problem, budget=budget)
    first = 3 * compilation + 22 * problem.seconds(dcv.RLOO(4))
    assert clock.now <= max(budget, first) + problem.longest_call
    if len(found.comparison.rows) < 24:
        assert f"not measured within {budget:g} seconds: " in str(found)
        # The budget was used.
        assert clock.now > 0.3 * budget
    assert ("a larger budget may find a better one" in found.sentence) == (len(found.comparison.rows) <= 12)


def test_compilation_is_not_expected_to_take_longer_for_more_samples(clock):
    """A candidate compiles three programs: 6 seconds, whatever K is."""
    found = recommended(Simulated(clock, 1e-7, gain=0.5, compilation=2.0), budget=42.0)
    assert [row.samples for row in found.comparison.rows if row.name == "rloo"] == [16, 4]


def test_an_estimator_that_compiles_slowly_does_not_keep_others_out(clock):
    problem = Simulated(clock, 1e-7, gain=0.5, compilation=1.0)
    seconds = {"QuadraticDoubleCV": 8.0}
    step = problem.step

    def slow_step(estimator):
        problem.compilation = seconds.get(type(estimator).__name__, 1.0)
        return step(estimator)

    problem.step = slow_step
    found = recommended(problem, budget=42.0)
    assert ("rloo", 16) in {(row.name, row.samples) for row in found.comparison.rows}
    assert clock.now <= 42.0


@pytest.mark.parametrize("budget", [60.0, 90.0, 300.0])
def test_the_budget_with_a_formula_whose_time_grows_faster_than_its_evaluations(clock, budget):
    problem = Simulated(clock, 1e-4, gain=0.5, pair=1e-3)
    found = recommended(problem, budget=budget)
    largest = problem.seconds(dcv.QuadraticDoubleCV(64))
    assert 0.3 * budget < clock.now <= budget + 2 * largest
    assert "quadratic-double-cv with K = 64" in str(found)


def test_a_budget_that_is_no_time(clock):
    with pytest.raises(ValueError, match="budget must be a positive number of seconds, got 0"):
        recommended(Simulated(clock, 1e-7, gain=0.5), budget=0)


def test_a_budget_in_words(clock):
    with pytest.raises(ValueError, match="budget must be a positive number of seconds, got '10'"):
        recommended(Simulated(clock, 1e-7, gain=0.5), budget="10")


def test_one_name_and_one_number_of_samples():
    entrants = recommendation.candidates(Simulated(Clock(), 1e-7, gain=0.5), True, "rloo", 4)
    assert [entrant.estimator for entrant in entrants] == [dcv.RLOO(4)]


def test_candidates_of_a_categorical_q():
    problem = Simulated(Clock(), 1e-7, gain=0.5)
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

    def test_among_equals_the_fewest_evaluations(self):
        rows = [row("rloo", 16, 1.0, 1.0), row("quadratic-double-cv", 4, 2.2, 0.5), row("double-cv", 4, 2.6, 0.5)]
        found = recommendation.choose(rows)
        assert found.estimator == dcv.QuadraticDoubleCV(4)
        assert "with 4 evaluations of f per step it is within 25% of the least variance per second" in found.sentence
        assert "rloo with K = 16, needs 0.91 times its time" in found.sentence

    def test_among_equals_the_least_variance(self):
        rows = [row("double-cv", 16, 0.32, 4.38), row("quadratic-double-cv", 16, 0.295, 4.74)]
        assert recommendation.choose(rows).estimator == dcv.QuadraticDoubleCV(16)

    def test_among_equals_without_the_gradient_of_f(self):
        rows = [row("double-cv", 64, 0.62, 0.6), row("arms", 64, 0.63, 0.55), row("rloo", 64, 0.66, 0.51)]
        assert recommendation.choose(rows).estimator == dcv.ARMS(64)

    def test_among_equal_variances_the_simplest(self):
        rows = [row("arms", 8, 0.99, 1.0), row("rloo", 8, 1.0, 1.1)]
        rows = [replace(each, standard_error=0.01) for each in rows]
        assert recommendation.choose(rows).estimator == dcv.RLOO(8)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_a_real_run(framework):
    """Whatever the times are, the result can be used as it is."""
    q = framework.bernoulli()
    found = framework.library.recommend(network, q, budget=0.1, samples=(4, 8), **framework.random)
    best = found.comparison.rows[0]
    assert best.variance_times_seconds == min(entry.variance_times_seconds for entry in found.comparison.rows)
    assert f"Take {found.comparison.rows[0].name}" in found.sentence or "within 25%" in found.sentence
    assert framework.library.Expectation(found.estimator)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_a_function_that_makes_q(framework):
    """The time includes what makes q."""
    q, calls = framework.bernoulli(), []

    def make_q():
        calls.append(1)
        return q

    table = framework.library.compare(network, make_q, ["rloo"], samples=2, draws=4, rounds=2, **framework.random)
    assert len(calls) >= 2
    expected = framework.library.compare(network, q, ["rloo"], samples=2, draws=4, rounds=0, **framework.random)
    assert table["rloo"].variance == pytest.approx(expected["rloo"].variance, rel=1e-5)


def test_a_simulator_without_gradient():
    q = dcv.Bernoulli(logits=torch.zeros(2, 6))
    found = dcv.torch.recommend(lambda x: (x.sum(-1) > 2.5).float(), q, budget=0.1, samples=(4,))
    assert {entry.name for entry in found.comparison.rows} <= {"rloo", "arms"}
