"""Drawn variances agree with the exact ones within their error bars, and the comparison is a fair one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doublecv.diagnostics import compare, exact_moments, variance

import doublecv as dcv
from doublecv import estimators
from problems import make_coefficients, make_estimator, make_logits, make_problem

KEY = jax.random.key(5)
NAMES = [
    "reinforce",
    "r-star",
    "rloo",
    "double-cv",
    "double-cv-mean",
    "muprop",
    "disarm",
    "arms",
    "quadratic-double-cv",
]


@pytest.mark.parametrize("name", NAMES)
def test_variance_is_the_exact_one_within_its_error(name, x64):
    problem = make_problem("network", dcv.Bernoulli)
    q = dcv.Bernoulli(jnp.asarray(make_logits(dcv.Bernoulli)))
    estimator = make_estimator(name, 2, problem)
    coefficients = make_coefficients(estimator, -0.5)
    exact = float(exact_moments(estimator, problem.f, q, coefficients).variance.mean())
    measured = variance(problem.f, q, estimator, coefficients, KEY, 10_050)
    assert 0 < measured.standard_error < 0.05 * exact
    assert abs(measured.variance - exact) < 4 * measured.standard_error


def table(names, **options):
    q = dcv.Bernoulli(jnp.asarray(make_logits(dcv.Bernoulli), dtype=jnp.float32))
    chosen = [estimators.make(name, samples=2) for name in names]
    return compare(chosen, make_problem("network", dcv.Bernoulli).f, q, KEY, 2_000, **options)


@pytest.fixture(scope="module")
def compared():
    return table(["rloo", "double-cv", "double-cv-mean"])


class TestCompare:
    def test_rows(self, compared):
        assert [row.name for row in compared.rows] == ["rloo", "double-cv", "double-cv-mean"]
        assert [row.evaluations for row in compared.rows] == [2, 2, 3]
        assert compared["double-cv-mean"].variance_times_evaluations == 3 * compared["double-cv-mean"].variance
        assert compared["double-cv"].coefficients["alpha"] < -0.1
        assert compared["double-cv"].variance < compared["rloo"].variance
        with pytest.raises(KeyError, match="'arms' is not among"):
            compared["arms"]

    def test_printed(self, compared):
        header, first, *_ = lines = str(compared).splitlines()
        assert header.split() == [
            *("estimator", "K", "variance", "+-", "relative", "evaluations"),
            *("variance", "x", "evaluations"),
        ]
        assert first.split()[0] == "rloo"
        assert first.split()[4] == "1.000"
        assert len({len(line) for line in lines}) == 1

    def test_on_the_same_random_numbers(self):
        """Alpha 0 is RLOO: on the same samples its variance is the same number, not just a near one."""
        compared = table(["rloo", "double-cv"], coefficients={"double-cv": {"alpha": 0.0}})
        assert compared["double-cv"].variance == pytest.approx(compared["rloo"].variance, rel=1e-6)

    def test_draws(self):
        with pytest.raises(ValueError, match="draws must be at least 2, got 1"):
            compare([dcv.RLOO(2)], lambda x: x.sum(-1), dcv.Bernoulli(jnp.zeros(3)), KEY, 1)


def test_a_batch_is_averaged_over():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), jnp.float32)
    f = make_problem("network", dcv.Bernoulli).f
    both = variance(f, dcv.Bernoulli(logits), dcv.RLOO(2), {}, KEY, 5_000)
    each = [variance(f, dcv.Bernoulli(row), dcv.RLOO(2), {}, KEY, 5_000).variance for row in logits]
    assert both.variance == pytest.approx(np.mean(each), rel=0.1)
