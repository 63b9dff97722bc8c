"""The same unchanged loop trains every registered estimator, in PyTorch."""

import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv import estimators
from doublecv.torch import Expectation
from problems import BINARY, samples_for

STEPS, RATE = 150, 0.1
TARGET = torch.tensor(np.random.default_rng(0).integers(0, 2, size=(4, 3)), dtype=torch.float32)
"""The bits that the encoder should learn to give, for each of four inputs."""


def train(name, steps=STEPS, seed=0):
    """Return the exact loss after training; nothing here depends on the estimator but its name."""
    y = torch.eye(4)
    encoder, decoder = torch.zeros(4, 3, requires_grad=True), torch.zeros(3, requires_grad=True)

    def f(x):
        shifted = x + 0.1 * torch.tanh(decoder)
        return ((shifted - TARGET) ** 2).sum(-1) + (shifted[..., 0] - shifted[..., 1]) ** 2

    expectation = Expectation(estimators.make(name, samples=samples_for(name)))
    expectation.init(dcv.Bernoulli(logits=y @ encoder), context=y)
    optimizer = torch.optim.Adam([encoder, decoder, *expectation.parameters()], lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        value = expectation(f, dcv.Bernoulli(logits=y @ encoder), context=y, generator=generator)
        value.mean().backward()
        optimizer.step()
    assert all(tensor.isfinite().all() for tensor in (*expectation.parameters(), *expectation.buffers()))
    with torch.no_grad():
        return float(dcv.exact_mean(f, dcv.Bernoulli(logits=y @ encoder)).mean())


@pytest.fixture(scope="module")
def rloo():
    return train("rloo")


FAST = ["double-cv", "quadratic-double-cv", "muprop", "rebar", "rodeo", "surrogate-quadratic-double-cv"]


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in BINARY if n != "rloo"]
)
def test_the_loop_trains_every_estimator(name, rloo):
    """The loss ends close to RLOO's, which falls from above 1 towards 0.

    REINFORCE, REBAR and RELAX end above it: they have no leave-one-out baseline, or learn their control variate only
    during these steps.
    """
    assert rloo < 0.15
    assert train(name) < rloo + 0.1
