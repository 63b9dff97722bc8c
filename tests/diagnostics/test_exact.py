"""Exact moments: the same in every array library, and refused where they cannot be had."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from doublecv.diagnostics import exact_gradient, exact_moments, optimal_alpha, optimal_coefficients

import doublecv as dcv
from problems import make_coefficients, make_logits, make_problem


@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
@pytest.mark.parametrize("convert", [jnp.asarray, torch.as_tensor], ids=["jax", "torch"])
@pytest.mark.parametrize(
    "estimator",
    [dcv.DoubleCV(2), dcv.DoubleCV(2, "mean"), dcv.MuProp(1), dcv.QuadraticDoubleCV(2)],
    ids=lambda e: e.name,
)
def test_automatic_differentiation_finds_the_gradient_given_to_numpy(family, convert, estimator, x64):
    problem, logits = make_problem("network", family), make_logits(family)
    coefficients = make_coefficients(estimator, -0.5)
    wanted = exact_moments(estimator, problem.f, family(logits=logits), coefficients, problem.df)
    got = exact_moments(estimator, problem.f, family(logits=convert(logits)), coefficients)
    np.testing.assert_allclose(np.asarray(got.mean), wanted.mean, atol=1e-13)
    np.testing.assert_allclose(np.asarray(got.variance), wanted.variance, atol=1e-13)


def test_exact_gradient_is_the_derivative_of_the_mean(x64):
    import jax

    problem = make_problem("network", dcv.Categorical)
    logits = jnp.asarray(make_logits(dcv.Categorical))
    derivative = jax.grad(lambda logits: problem.expected_f(dcv.Categorical(logits)).sum())(logits)
    np.testing.assert_allclose(exact_gradient(problem.f, dcv.Categorical(logits)), derivative, atol=1e-13)


def test_numpy_needs_the_gradient():
    with pytest.raises(ValueError, match="df is None, but the estimator needs the gradient of f and NumPy cannot"):
        exact_moments(dcv.DoubleCV(2), lambda x: x.sum(-1), dcv.Bernoulli(np.zeros(2)), {"alpha": 0.0})


def test_too_many_outcomes():
    with pytest.raises(ValueError, match=r"2 samples of 11 variables have 4,194,304 outcomes, more than the 1,048,576"):
        exact_moments(dcv.RLOO(2), lambda x: x.sum(-1), dcv.Bernoulli(np.zeros(11)), {})
    with pytest.raises(ValueError, match=r"21 variables of 2 values each have 2,097,152 outcomes"):
        exact_gradient(lambda x: x.sum(-1), dcv.Bernoulli(np.zeros(21)))


class TestOptimalCoefficients:
    @pytest.mark.parametrize("samples", [2, 3, 4])
    @pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
    @pytest.mark.parametrize("surrogate", ["leave-one-out", "mean"])
    def test_no_other_alpha_has_less_variance(self, samples, family, surrogate):
        problem, q = make_problem("network", family), family(logits=make_logits(family))
        estimator = dcv.DoubleCV(samples, surrogate)
        best = optimal_alpha(estimator, problem.f, q, df=problem.df)

        def total(alpha):
            return exact_moments(estimator, problem.f, q, {"alpha": alpha}, problem.df).variance.sum()

        assert best < -0.1
        assert total(best) < total(0.0)
        # The variance is a parabola in alpha: its vertex is where both neighbours are equally high.
        assert total(best + 0.1) == pytest.approx(total(best - 0.1), rel=1e-9)
        assert total(best + 0.1) > total(best)

    def test_the_best_constant_baseline(self):
        problem, q = make_problem("network", dcv.Bernoulli), dcv.Bernoulli(logits=make_logits(dcv.Bernoulli, ()))
        estimator = dcv.Reinforce(2, learned_baseline=True)
        best = optimal_coefficients(estimator, problem.f, q)
        variances = [
            exact_moments(estimator, problem.f, q, {"baseline": best["baseline"] + shift}).variance.sum()
            for shift in (-0.1, 0.0, 0.1)
        ]
        assert variances[1] < variances[0] == pytest.approx(variances[2])

    def test_drawn_agrees_with_exact(self):
        import jax

        problem, q = make_problem("network", dcv.Bernoulli), dcv.Bernoulli(jnp.asarray(make_logits(dcv.Bernoulli)))
        exact = optimal_alpha(dcv.DoubleCV(3), problem.f, q)
        drawn = optimal_alpha(dcv.DoubleCV(3), problem.f, q, jax.random.key(0), 20_000)
        assert drawn == pytest.approx(exact, abs=0.03)

    def test_errors(self):
        q = dcv.Bernoulli(np.zeros(2))
        with pytest.raises(ValueError, match="estimator must have alpha as its one coefficient, got RLOO"):
            optimal_alpha(dcv.RLOO(2), lambda x: x.sum(-1), q)
        with pytest.raises(ValueError, match="draws is None, but a key was given"):
            optimal_alpha(dcv.DoubleCV(2), lambda x: x.sum(-1), q, key=0)
