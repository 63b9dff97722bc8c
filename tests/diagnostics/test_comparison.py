"""The comparison: fair, complete, and the same table in both frameworks."""

import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv.diagnostics.timing import median_times
from doublecv.estimators import fixed_coefficients
from frameworks import FRAMEWORKS, Torch, network

NAMES = ["rloo", "double-cv", "double-cv-mean", "reinmax"]


def compare(framework, estimators, **options):
    options = {"draws": 400, "rounds": 2} | framework.random | options
    return framework.library.compare(network, framework.bernoulli(), estimators, **options)


@pytest.fixture(scope="module", params=FRAMEWORKS, ids=lambda framework: framework.name)
def table(request):
    return compare(request.param, NAMES, samples=2)


def test_rows(table):
    assert [row.name for row in table.rows] == NAMES
    assert [row.evaluations for row in table.rows] == [2, 2, 3, 2]
    assert [row.state for row in table.rows] == ["-", "best", "best", "-"]
    assert table["double-cv-mean"].variance_times_evaluations == 3 * table["double-cv-mean"].variance
    assert table["double-cv"].learned.numbers["alpha"] < -0.1
    assert table["double-cv"].variance < table["rloo"].variance
    assert table["reinmax"].bias.squared_bias > 0
    assert table["rloo"].bias is None
    for row in table.rows:
        assert row.seconds > 0
        assert row.variance_times_seconds == row.variance * row.seconds
    with pytest.raises(KeyError, match="'arms' is not among"):
        table["arms"]


def test_printed(table):
    header, first, *others = str(table).splitlines()
    assert header.split() == [
        *("estimator", "K", "state", "variance", "+-", "relative", "squared", "bias", "+-", "evaluations"),
        *("variance", "x", "evaluations", "time", "(ms)", "variance", "x", "time"),
    ]
    assert first.split()[:3] == ["rloo", "2", "-"]
    assert first.split()[5] == "1.000"
    rows, below = others[:3], others[3:]
    assert len({len(line) for line in [header, first, *rows]}) == 1
    assert below == [
        "state best: with the best coefficients, from separate draws.",
        "squared bias: against the exact gradient; it does not average out.",
    ]


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_on_the_same_random_numbers(framework):
    """Alpha 0 is RLOO: on the same samples its variance is the same number, not just a near one."""
    given = {"double-cv": fixed_coefficients({"alpha": 0.0})}
    table = compare(framework, ["rloo", "double-cv"], samples=2, learned=given, rounds=0, draws=50)
    assert table["double-cv"].state == "given"
    assert table["double-cv"].variance == pytest.approx(table["rloo"].variance, rel=1e-5)
    assert np.isnan(table["rloo"].seconds)


class TestSeveralSamples:
    framework = Torch()

    def compare(self, estimators, **options):
        return compare(self.framework, estimators, **({"draws": 20, "rounds": 0} | options))

    def test_names_and_estimators(self):
        table = self.compare(["rloo", dcv.DoubleCV(2, "mean", learning="gradient")], samples=(2, 4))
        assert [(row.name, row.samples) for row in table.rows] == [
            ("rloo", 2), ("rloo", 4), ("double-cv-mean", 2), ("double-cv-mean", 4),
        ]  # fmt: skip
        assert table["rloo", 4].estimator == dcv.RLOO(4)
        with pytest.raises(KeyError, match=r"'rloo' was measured for K = 2, 4; ask for one of them: \['rloo', 2\]"):
            table["rloo"]

    def test_a_surrogate_keeps_its_options(self):
        surrogate = dcv.LearnedSurrogate(dcv.RLOO(2), directions=2)
        (row,) = self.compare([surrogate], samples=4, steps=3).rows
        assert row.estimator == dcv.LearnedSurrogate(dcv.RLOO(4), directions=2)
        assert row.state == "trained 3"

    def test_what_does_not_exist_is_named(self):
        table = self.compare(["rloo", "double-cv-antithetic"], samples=(2, 4))
        assert [(row.name, row.samples) for row in table.rows][2:] == [("double-cv-antithetic", 4)]
        assert "left out: double-cv-antithetic: samples must be at least 4" in str(table)
        with pytest.raises(ValueError, match="samples must be at least 4"):
            self.compare(["double-cv-antithetic"], samples=2)

    @pytest.mark.parametrize(
        ("estimators", "samples", "error", "message"),
        [
            (["rlo"], 2, ValueError, "unknown name 'rlo'; did you mean 'rloo'?"),
            (["rloo"], None, ValueError, "samples is None, but 'rloo' is a name; say for which K"),
            ([], 2, ValueError, "estimators is empty"),
            (["rloo"], (), ValueError, "samples is empty"),
            ([2], 2, TypeError, r"each of estimators must be a doublecv estimator such as .*, got int"),
        ],
    )
    def test_errors(self, estimators, samples, error, message):
        with pytest.raises(error, match=message.replace("?", r"\?")):
            self.compare(estimators, samples=samples)


class TestTraining:
    """Estimators without best coefficients in closed form are trained first."""

    @pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
    def test_training_reduces_the_variance(self, framework):
        surrogate = dcv.LearnedSurrogate(dcv.RLOO(2))
        trained, fresh = (
            compare(framework, [surrogate], steps=steps, draws=200, rounds=0).rows[0] for steps in (150, 1)
        )
        assert trained.state == "trained 150"
        assert trained.variance < 0.6 * fresh.variance


class TestTime:
    def test_median_in_turns(self):
        calls = []
        times = median_times([lambda: calls.append(0), lambda: calls.append(1)], rounds=3)
        assert len(times) == 2
        assert min(times) > 0
        assert {0, 1} <= set(calls)

    def test_a_step_differentiates_what_f_uses_and_leaves_no_gradient(self):
        reached = []
        weights = torch.randn(3, requires_grad=True)
        weights.register_hook(reached.append)
        q = Torch().bernoulli()

        def f(x):
            return (x * weights).sum(-1) ** 2

        for name in ("rloo", "double-cv", "straight-through"):
            reached.clear()
            dcv.torch.compare(f, q, [name], samples=2, draws=2, rounds=1)
            assert reached, name
            reached.clear()
            dcv.torch.compare(f, q, [name], samples=2, draws=2, rounds=1, differentiate_f=False)
            assert not reached, name
        assert weights.grad is None

    def test_many_rounds_do_not_warn_of_parameters_that_stay(self):
        dcv.torch.compare(network, Torch().bernoulli(), ["double-cv"], samples=2, draws=2, rounds=120)


def test_draws():
    with pytest.raises(ValueError, match="draws must be at least 2, got 1"):
        compare(Torch(), ["rloo"], samples=2, draws=1)
