"""Exact moments and best coefficients: the same in every array library, and refused where they cannot be had."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv.diagnostics import optimal_coefficients
from doublecv.estimators import fixed_coefficients, label
from doublecv.exact import exact_gradient, exact_moments
from frameworks import LOGITS, network, network_gradient

ESTIMATORS = [
    dcv.DoubleCV(2, learning="gradient"),
    dcv.DoubleCV(2, "mean", learning="gradient"),
    dcv.MuProp(1),
    dcv.QuadraticDoubleCV(2),
]


def away(estimator):
    """Coefficients away from their start."""
    return fixed_coefficients({name: 0.1 * i - 0.5 for i, name in enumerate(estimator.needs.coefficients)})


@pytest.mark.parametrize("convert", [jnp.asarray, torch.as_tensor], ids=["jax", "torch"])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=label)
def test_automatic_differentiation_finds_the_gradient_given_to_numpy(convert, estimator, x64):
    learned = away(estimator)
    wanted = exact_moments(network, dcv.Bernoulli(logits=LOGITS), estimator, learned, df=network_gradient)
    if convert is torch.as_tensor:
        numbers = {name: torch.as_tensor(value) for name, value in learned.numbers.items()}
        learned = learned._replace(numbers=numbers)

    def moments(q):
        return exact_moments(network, q, estimator, learned)

    got = (moments if convert is torch.as_tensor else jax.jit(moments))(dcv.Bernoulli(logits=convert(LOGITS)))
    np.testing.assert_allclose(np.asarray(got.mean), wanted.mean, atol=1e-13)
    np.testing.assert_allclose(np.asarray(got.variance), wanted.variance, atol=1e-13)


def test_exact_gradient_is_the_derivative_of_the_mean(x64):
    @jax.jit
    def both(logits):
        derivative = jax.grad(lambda logits: dcv.exact_mean(network, dcv.Bernoulli(logits=logits)).sum())(logits)
        return exact_gradient(network, dcv.Bernoulli(logits=logits)), derivative

    np.testing.assert_allclose(*both(jnp.asarray(LOGITS)), atol=1e-13)


def test_numpy_needs_the_gradient():
    with pytest.raises(ValueError, match="df is None, but the gradient of f is needed and NumPy cannot find it"):
        exact_moments(lambda x: x.sum(-1), dcv.Bernoulli(logits=np.zeros(2)), dcv.DoubleCV(2, learning="gradient"))


def test_too_many_outcomes():
    with pytest.raises(ValueError, match=r"2 samples of 11 variables have 4,194,304 outcomes, more than the 1,048,576"):
        exact_moments(lambda x: x.sum(-1), dcv.Bernoulli(logits=np.zeros(11)), dcv.RLOO(2))
    with pytest.raises(ValueError, match=r"21 variables of 2 values each have 2,097,152 outcomes"):
        exact_gradient(lambda x: x.sum(-1), dcv.Bernoulli(logits=np.zeros(21)))


class TestOptimalCoefficients:
    q = dcv.Bernoulli(logits=LOGITS)

    def total(self, estimator, numbers):
        moments = exact_moments(network, self.q, estimator, fixed_coefficients(numbers), df=network_gradient)
        return moments.variance.sum()

    @pytest.mark.parametrize(
        "estimator",
        [
            dcv.DoubleCV(2, learning="gradient"),
            dcv.DoubleCV(3, learning="gradient"),
            dcv.DoubleCV(2, "mean", learning="gradient"),
            dcv.HalfDoubleCV(3),
            dcv.QuadraticDoubleCV(2),
            dcv.Reinforce(2, learned_baseline=True),
        ],
        ids=label,
    )
    def test_the_variance_has_its_minimum_there(self, estimator):
        best = optimal_coefficients(network, self.q, estimator, df=network_gradient).numbers
        least = self.total(estimator, best)
        assert least < self.total(estimator, dict.fromkeys(best, 0.0))
        for name in best:
            above, below = (self.total(estimator, best | {name: best[name] + shift}) for shift in (0.1, -0.1))
            # The variance is a parabola in each: its vertex is where both neighbours are equally high.
            assert above > least
            assert above - least == pytest.approx(below - least, rel=1e-4)

    def test_nothing_to_learn(self):
        assert optimal_coefficients(network, self.q, dcv.RLOO(2)) == dcv.Learned({}, {}, {})

    def test_no_closed_form(self):
        with pytest.raises(ValueError, match=r"estimator must be linear in its coefficients .* got Rebar"):
            optimal_coefficients(network, self.q, dcv.Rebar(2))
