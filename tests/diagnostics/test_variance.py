"""Drawn variances and coefficients agree with the exact ones within their errors, in both frameworks."""

import jax
import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv.diagnostics import optimal_coefficients as exactly
from doublecv.estimators import fixed_coefficients, label, make
from doublecv.exact import exact_moments
from frameworks import FRAMEWORKS, LOGITS, Jax, Torch, network, network_gradient

NUMPY_Q = dcv.Bernoulli(logits=LOGITS)


def measured(framework, estimator, learned=None, f=network, **options):
    options = {"draws": 2000 if framework.name == "jax" else 500} | framework.random | options
    return framework.library.variance(f, framework.bernoulli(), estimator, learned, **options)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
@pytest.mark.parametrize(
    "name",
    [pytest.param("r-star", marks=pytest.mark.slow), "rloo", "double-cv", "muprop", "arms", "quadratic-double-cv"],
)
def test_variance_is_the_exact_one_within_its_error(framework, name):
    estimator = make(name, samples=2)
    learned = fixed_coefficients(dict.fromkeys(estimator.needs.coefficients, -0.5))
    exact = exact_moments(network, NUMPY_Q, estimator, learned, df=network_gradient).variance.mean()
    found = measured(framework, estimator, learned)
    assert 0 < found.standard_error < 0.2 * exact
    assert abs(found.variance - exact) < 4 * found.standard_error


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
class TestBothFrameworks:
    def test_drawn_coefficients_are_the_exact_ones_within_their_error(self, framework):
        estimator = dcv.DoubleCV(3, learning="gradient")
        wanted = exactly(network, NUMPY_Q, estimator, df=network_gradient)
        optimal = framework.library.optimal_coefficients
        exact = optimal(network, framework.bernoulli(), estimator)
        assert exact.numbers["alpha"] == pytest.approx(wanted.numbers["alpha"], abs=1e-4)
        drawn = optimal(network, framework.bernoulli(), estimator, draws=1000, **framework.random)
        assert drawn.numbers["alpha"] == pytest.approx(wanted.numbers["alpha"], abs=0.1)
        assert drawn.numbers["alpha"] != exact.numbers["alpha"]

    def test_best_coefficients_are_used_in_the_next_call(self, framework):
        estimator = dcv.QuadraticDoubleCV(2)
        best = framework.library.optimal_coefficients(network, framework.bernoulli(), estimator)
        with_best, at_start = (measured(framework, estimator, learned, draws=300) for learned in (best, None))
        assert with_best.variance < 0.8 * at_start.variance

    def test_random_numbers_are_those_of_the_seed(self, framework):
        first, second = (measured(framework, dcv.RLOO(2), draws=20) for _ in range(2))
        assert first == second

    def test_auxiliary_output(self, framework):
        found = measured(framework, dcv.RLOO(2), f=lambda x: (network(x), x), has_aux=True, draws=20)
        assert found == measured(framework, dcv.RLOO(2), draws=20)

    def test_errors(self, framework):
        with pytest.raises(ValueError, match="draws must be at least 2, got 1"):
            measured(framework, dcv.RLOO(2), draws=1)
        with pytest.raises(TypeError, match="f and q are swapped"):
            framework.library.variance(framework.bernoulli(), network, dcv.RLOO(2), **framework.random)
        with pytest.raises(TypeError, match="q must be a distribution such as"):
            framework.library.variance(network, framework.array(LOGITS), dcv.RLOO(2), **framework.random)
        with pytest.raises(ValueError, match="must be linear in its coefficients or learn nothing, got Rebar"):
            framework.library.optimal_coefficients(network, framework.bernoulli(), dcv.Rebar(2))


def test_the_start_of_an_expectation_in_jax():
    """Best coefficients take the place of the running averages, and `update` descends from them."""
    expectation = dcv.jax.Expectation(dcv.QuadraticDoubleCV(2))
    q = Jax().bernoulli()
    best = dcv.jax.optimal_coefficients(network, q, expectation.estimator)
    state = expectation.init(q, learned=best)

    def loss(logits, learned):
        return expectation(network, dcv.Bernoulli(logits=logits), learned, jax.random.key(0)).mean()

    @jax.jit
    def step(logits, state):
        return expectation.update(jax.grad(loss, argnums=1)(logits, state.learned), state)

    moved = step(q.logits, state)
    for name, value in best.numbers.items():
        assert float(moved.learned.numbers[name]) == pytest.approx(float(value), abs=2e-3)
    assert loss(q.logits, best) == loss(q.logits, state.learned)


def test_the_start_of_an_expectation_in_torch():
    q = Torch().bernoulli()
    best = dcv.torch.optimal_coefficients(network, q, dcv.QuadraticDoubleCV(2))
    expectation = dcv.torch.Expectation(dcv.QuadraticDoubleCV(2)).init(q, learned=best)
    assert {name for name, _ in expectation.named_parameters()} == best.numbers.keys()
    assert not dict(expectation.named_buffers())
    expectation(network, dcv.Bernoulli(logits=q.logits.requires_grad_())).mean().backward()
    assert all(parameter.grad is not None for parameter in expectation.parameters())
    assert float(expectation.own.detach()) == pytest.approx(float(best.numbers["own"]))


def test_torch_draws_need_a_number():
    with pytest.raises(ValueError, match="draws is None, but a generator was given"):
        dcv.torch.optimal_coefficients(
            network,
            Torch().bernoulli(),
            dcv.DoubleCV(2, learning="gradient"),
            generator=torch.Generator().manual_seed(0),
        )


def test_torch_distributions():
    logits = torch.as_tensor(LOGITS, dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    found = dcv.torch.variance(
        network, torch.distributions.Bernoulli(logits=logits), dcv.RLOO(2), draws=20, generator=generator
    )
    assert found == measured(Torch(), dcv.RLOO(2), draws=20)


def test_narrow_types_are_measured_in_float32():
    q = dcv.Bernoulli(logits=torch.as_tensor(LOGITS, dtype=torch.bfloat16))
    found = dcv.torch.variance(lambda x: x.sum(-1), q, dcv.RLOO(2), draws=300)
    wanted = exact_moments(lambda x: x.sum(-1), NUMPY_Q, dcv.RLOO(2)).variance.mean()
    assert found.variance == pytest.approx(wanted, rel=0.2)


@pytest.mark.parametrize("estimator", [dcv.RLOO(2), dcv.DoubleCV(2, learning="gradient")], ids=label)
def test_both_frameworks_measure_the_same(estimator):
    in_jax, in_torch = (measured(framework, estimator) for framework in FRAMEWORKS)
    error = np.hypot(in_jax.standard_error, in_torch.standard_error)
    assert abs(in_jax.variance - in_torch.variance) < 4 * error
