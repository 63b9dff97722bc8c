"""Small problems on the CPU run with NumPy, and give what PyTorch gives."""

import pytest
import torch
from torch_setups import every_estimator, make_all, make_decoder, make_noise, make_y

import doublecv as dcv
from doublecv.estimators import make
from doublecv.torch import Expectation, small

WEIGHTS = {
    "the same for all": torch.full((4,), 0.25, dtype=torch.float64),
    "different, and 0 where f is infinite": torch.tensor([1.0, -2.0, 0.0, 1e-320], dtype=torch.float64),
}


def gradients(name, family, weights):
    """Return the gradients of one step on fixed noise, and the averages after it."""
    expectation, q, context = make_all(name, family)
    expectation.train()
    decoder, y = make_decoder(family), make_y()
    infinite = torch.where(weights.abs() < 1e-300, torch.inf, 0.0)
    noise = make_noise(expectation.estimator, q)
    value = expectation(lambda x: decoder.loss(x, y) + infinite, q, noise=noise, context=context)
    counts = weights != 0
    (value[counts] * weights[counts]).sum().backward()
    return [q.logits.grad, *(parameter.grad for parameter in expectation.parameters()), *expectation.buffers()]


CASES = [case for case in every_estimator() if not make(case.values[0], samples=4).needs.relaxed_points]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("name", "family"), CASES)
def test_numpy_gives_what_torch_gives(name, family, weights, monkeypatch):
    found = gradients(name, family, WEIGHTS[weights])
    monkeypatch.setattr(small, "LARGEST", 0)
    for actual, wanted in zip(found, gradients(name, family, WEIGHTS[weights]), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-8, atol=1e-10)


def test_only_small_problems_run_with_numpy(monkeypatch):
    """And only where no automatic differentiation is needed."""
    used = []
    monkeypatch.setattr(small, "LARGEST", 24)
    original = small.Learned
    monkeypatch.setattr(small, "Learned", lambda *trees: used.append(1) or original(*trees))

    def run(estimator, batch):
        q = dcv.Bernoulli(logits=torch.zeros(batch, 4, requires_grad=True))
        expectation = Expectation(estimator).init(q)
        expectation(lambda x: x.sum(-1) ** 2, q).sum().backward()
        return bool(used) and used.clear() is None

    assert run(dcv.DoubleCV(2), 3)
    assert not run(dcv.DoubleCV(2), 4)
    assert not run(dcv.Rebar(2), 3)
    assert run(dcv.LearnedSurrogate(dcv.RLOO(2)), 3)
    assert not run(dcv.LearnedSurrogate(dcv.Rodeo(2)), 3)
