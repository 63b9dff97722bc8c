"""Define the workloads of the benchmark in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log

import torch
from torch import Tensor, nn

from doublecv.distributions import Bernoulli
from doublecv.estimators import Estimator
from doublecv.lab.bench import problem
from doublecv.torch.diagnostics import TorchProblem
from doublecv.torch.expectation import ALWAYS, EVERY, Expectation


def gradient(estimator: Estimator) -> Callable[[], object]:
    """Return a call that computes the gradients in the decoder's parameters, the logits and the learned state."""
    torch.manual_seed(0)
    y, q = torch.as_tensor(problem.images()), Bernoulli(logits=torch.as_tensor(problem.logits()))
    decoder, context = _layers(problem.GRADIENT_DECODER), torch.randn(problem.BATCH, problem.FEATURES)
    return TorchProblem.make(lambda x: -_log_likelihood(decoder, x, y), q, None, context).step(estimator)


def step(estimator: Estimator) -> Callable[[], None]:
    """Return a call that makes `EVERY` steps of Adam, of which one moves the running averages, as in a long run."""
    torch.manual_seed(0)
    y = torch.as_tensor(problem.images())
    encoder, decoder = _layers(problem.STEP_ENCODER), _layers(problem.STEP_DECODER)
    context = torch.randn(problem.BATCH, problem.FEATURES)
    expectation = Expectation(estimator).init(Bernoulli(logits=encoder(y)), context=context)
    if (state := expectation.state_dict()).get("passes") is not None:
        expectation.load_state_dict(state | {"passes": torch.tensor(ALWAYS * EVERY)})
    optimizer = torch.optim.Adam(
        [*encoder.parameters(), *decoder.parameters(), *expectation.parameters()], lr=problem.LEARNING_RATE
    )

    def make_step() -> None:
        q = Bernoulli(logits=encoder(y))
        held = q.detach()

        def negative_elbo(x: Tensor) -> Tensor:
            value: Tensor = held.log_prob(x) + problem.LATENTS * log(2) - _log_likelihood(decoder, x, y)
            return value

        optimizer.zero_grad()
        value: Tensor = expectation(negative_elbo, q, context=context)
        value.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def call() -> None:
        for _ in range(EVERY):
            make_step()

    return call


def _layers(sizes: tuple[int, ...]) -> nn.Sequential:
    dense = [nn.Linear(*shape) for shape in pairwise(sizes)]
    between = [module for layer in dense[:-1] for module in (layer, nn.LeakyReLU(problem.NEGATIVE_SLOPE))]
    return nn.Sequential(*between, dense[-1])


def _log_likelihood(decoder: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits: Tensor = decoder(x)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, y.expand_as(logits), reduction="none")
    return -losses.sum(-1)


WORKLOADS = {"gradient": problem.Workload(gradient), "step": problem.Workload(step, steps=EVERY)}
