"""Estimators that state linear parts: the parts are the formula, unless a subclass states another formula."""

import dataclasses

import numpy as np
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.estimators import Evaluation
from problems import make_logits, make_problem

WITH_PARTS = [name for name in estimators.names() if estimators.make(name, samples=4).has_linear_parts]


def test_all_forms_of_double_cv_state_them():
    assert WITH_PARTS == ["double-cv", "double-cv-mean", "double-cv-current", "double-cv-others"]


@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
@pytest.mark.parametrize("name", WITH_PARTS)
def test_the_parts_have_the_coefficients_names_and_sum_up(name, family):
    problem, estimator = make_problem("network", family), estimators.make(name, samples=4)
    q = family(logits=make_logits(family))
    x = estimator.draw(q, np.random.default_rng(0).random(estimator.noise_shape(q)))
    evaluation = Evaluation(x, problem.f(x), problem.df(x), problem.f(q.mean), problem.df(q.mean))
    g0, h = estimator.linear_parts(q, evaluation)
    assert h.keys() == estimator.coefficients().keys()
    np.testing.assert_allclose(estimator.gradient(q, evaluation, {"alpha": 0.3}), g0 + 0.3 * h["alpha"], rtol=1e-12)


@dataclasses.dataclass(frozen=True)
class Doubled(dcv.DoubleCV):
    """Double CV with another formula, whose inherited parts no longer tell the truth."""

    def formula(self, q, evaluation, coefficients):
        return 2 * super().formula(q, evaluation, coefficients)


def test_another_formula_is_not_passed_over_in_torch():
    torch = pytest.importorskip("torch")
    from doublecv.torch import Expectation

    def gradients(estimator):
        logits = torch.linspace(-1, 1, 4, dtype=torch.float64, requires_grad=True)
        generator = torch.Generator().manual_seed(0)
        Expectation(estimator).double()(lambda x: x.sum(-1) ** 2, dcv.Bernoulli(logits), generator=generator).backward()
        return logits.grad

    assert not Doubled(2).has_linear_parts
    torch.testing.assert_close(gradients(Doubled(2)), 2 * gradients(dcv.DoubleCV(2)))


@dataclasses.dataclass(frozen=True)
class Nothing(dcv.Estimator):
    """An estimator that states no equation."""

    @property
    def name(self):
        return "nothing"


def test_an_estimator_without_an_equation_says_so():
    q = dcv.Bernoulli(np.zeros(2))
    with pytest.raises(NotImplementedError, match="Nothing must state its formula or its linear parts"):
        Nothing(1).gradient(q, Evaluation(np.zeros((1, 2)), np.zeros(1)), {})
