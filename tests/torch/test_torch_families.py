"""torch's own distributions in the place of doublecv's."""

import pytest
import torch
from torch import distributions

import doublecv as dcv
from doublecv.torch import Expectation, detach
from problems import VARIABLES, make_logits, make_problem

NOISE = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CASES = {
    "Bernoulli": (dcv.Bernoulli, distributions.Bernoulli, 0),
    "Independent Bernoulli": (dcv.Bernoulli, distributions.Bernoulli, 1),
    "OneHotCategorical": (dcv.Categorical, distributions.OneHotCategorical, 0),
    "Independent OneHotCategorical": (dcv.Categorical, distributions.OneHotCategorical, 1),
}


def make(cls, independent_axes, **parameters):
    base = cls(**parameters)
    return distributions.Independent(base, independent_axes) if independent_axes else base


@pytest.mark.parametrize("parameterization", ["logits", "probs"])
@pytest.mark.parametrize("case", CASES)
def test_torch_distributions(case, parameterization):
    family, cls, independent_axes = CASES[case]
    problem = make_problem("network", family)
    logits = torch.tensor(make_logits(family, batch=(4,)), requires_grad=True)
    noise = NOISE[..., : VARIABLES[family][0]]
    expectation = Expectation(dcv.DoubleCV(2, learning="gradient")).double()
    expectation(problem.f, family(logits=logits), noise=noise).sum().backward()
    wanted = logits.grad.clone(), expectation.alpha.grad.clone()

    logits.grad, expectation.alpha.grad = None, None
    parameters = {"logits": logits} if parameterization == "logits" else {"probs": family(logits=logits).mean}
    q = make(cls, independent_axes, **parameters)
    expectation(problem.f, q, noise=noise).sum().backward()
    torch.testing.assert_close((logits.grad, expectation.alpha.grad), wanted, rtol=1e-10, atol=1e-12)
    explicit = expectation.estimate(problem.f, q, noise=noise)
    torch.testing.assert_close(explicit.gradient, wanted[0], rtol=1e-10, atol=1e-12)


def test_probabilities_that_are_parameters_get_a_gradient():
    """E x = p for a sum of independent variables, so that the gradient in p has mean 1."""
    probabilities = torch.full((20_000, 2), 0.3, dtype=torch.float64, requires_grad=True)
    q = distributions.Bernoulli(probs=probabilities)
    generator = torch.Generator().manual_seed(1)
    Expectation(dcv.RLOO(2))(lambda x: x.sum(-1), q, generator=generator).sum().backward()
    gradient = probabilities.grad
    error = gradient.std() / gradient.numel() ** 0.5
    assert abs(gradient.mean() - 1) < 4 * error
    assert error < 0.02


@pytest.mark.parametrize("case", CASES)
def test_detach_holds_the_logits_of_either_kind_constant(case):
    """An ELBO with log q in f has the same gradient for both."""
    family, cls, independent_axes = CASES[case]
    problem = make_problem("network", family)
    noise = NOISE[..., : VARIABLES[family][0]]
    expectation, gradients = Expectation(dcv.DoubleCV(2, learning="gradient")).double(), []
    for make_one in (lambda logits: family(logits=logits), lambda logits: make(cls, independent_axes, logits=logits)):
        logits = torch.tensor(make_logits(family, batch=(4,)), requires_grad=True)
        q = make_one(logits)
        expectation(lambda x, q=q: problem.f(x) - detach(q).log_prob(x), q, noise=noise).sum().backward()
        assert not detach(q).logits.requires_grad
        gradients.append(logits.grad)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    attached = torch.tensor(make_logits(family, batch=(4,)), requires_grad=True)
    q = family(logits=attached)
    expectation(lambda x: problem.f(x) - q.log_prob(x), q, noise=noise).sum().backward()
    assert (attached.grad - gradients[0]).abs().max() > 1e-2, "the test can fail"


def test_detach_of_something_else():
    with pytest.raises(
        TypeError, match="q must be a distribution of doublecv, or Bernoulli or OneHotCategorical of torch, got Normal"
    ):
        detach(distributions.Normal(0.0, 1.0))
