"""Estimators that compute the parts of a linear formula apart: the parts sum up to the formula."""

import numpy as np
import pytest

from doublecv import estimators
from doublecv.estimators import Evaluation
from problems import make_estimator, make_logits, make_problem


def cases():
    for name in estimators.names():
        for family in estimators.make(name, samples=4).families:
            yield pytest.param(name, family, id=f"{name}-{family.__name__}")


@pytest.mark.parametrize(("name", "family"), list(cases()))
def test_the_parts_sum_up_to_the_formula(name, family):
    problem = make_problem("network", family)
    estimator = make_estimator(name, 4, problem)
    if estimator.relaxed_points:
        pytest.skip("its coefficients do not enter linearly")
    q = family(logits=make_logits(family))
    x = estimator.draw(q, np.random.default_rng(0).random(estimator.noise_shape(q)))
    evaluation = Evaluation(x, problem.f(x), problem.df(x), problem.f(q.mean), problem.df(q.mean))
    parts = estimator.linear_parts(q, evaluation)
    assert (parts is not None) >= name.startswith("double-cv")
    if parts is None:
        return
    g0, h = parts
    assert h.keys() == estimator.coefficients().keys()
    coefficients = {name: 0.3 * (1 + index) for index, name in enumerate(h)}
    total = g0 + sum(coefficients[name] * part for name, part in h.items())
    np.testing.assert_allclose(estimator.gradient(q, evaluation, coefficients), total, rtol=1e-12)
