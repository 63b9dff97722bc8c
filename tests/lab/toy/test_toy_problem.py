"""The toy problem's hand-made formulas against enumeration and automatic differentiation."""

import jax
import numpy as np
import pytest
from exact_variance import df, slope

import doublecv as dcv
from doublecv.exact import support
from doublecv.lab.toy.problem import ToyProblem

PROBLEM = ToyProblem(target=0.3)


@pytest.fixture
def q():
    return dcv.Bernoulli(logits=np.array([-1.3, 0.2, 2.5]))


def test_expected_f_is_the_mean_over_all_x(q):
    points, probabilities = support(q)
    np.testing.assert_allclose(PROBLEM.expected_f(q), np.sum(probabilities * PROBLEM.f(points)), rtol=1e-13)


def test_f_is_linear_on_binary_points(q):
    points, _ = support(q)
    linear = PROBLEM.expected_f(q) + slope(PROBLEM, q) * np.sum(points - q.mean, axis=-1)
    np.testing.assert_allclose(PROBLEM.f(points), linear, rtol=1e-13)


def test_df_is_the_gradient_of_f(x64):
    x = np.array([0.1, 0.9, 0.5])
    np.testing.assert_allclose(df(PROBLEM, x), jax.grad(PROBLEM.f)(x), rtol=1e-13)


def test_default_target_is_the_papers():
    np.testing.assert_allclose(ToyProblem().f(np.array([[0.0], [1.0]])), [0.499**2, 0.501**2])
