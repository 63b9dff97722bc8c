"""The workloads of the benchmark in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import log

import torch
from torch import Tensor, nn

from doublecv.distributions import Bernoulli
from doublecv.estimators import Estimator, Relax, Surrogate
from doublecv.lab.bench import problem
from doublecv.lab.bench.problem import Workloads
from doublecv.torch import Expectation


def workloads() -> Workloads:
    """The gradient of the expectation alone, and a whole training step."""
    return {"gradient": gradient, "step": step}


def gradient(estimator: Estimator) -> Callable[[], None]:
    """The gradient in the decoder's parameters, the logits and the coefficients."""
    torch.manual_seed(0)
    y = torch.as_tensor(problem.images())
    decoder, expectation = _layers(problem.GRADIENT_DECODER), Expectation(_complete(estimator, y))
    logits = torch.as_tensor(problem.logits()).requires_grad_()

    def call() -> None:
        logits.grad = None
        decoder.zero_grad()
        expectation.zero_grad()
        value: Tensor = expectation(lambda x: -_log_likelihood(decoder, x, y), Bernoulli(logits=logits))
        value.mean().backward()  # type: ignore[no-untyped-call]

    return call


def step(estimator: Estimator) -> Callable[[], None]:
    """Encoder, decoder and coefficients, one step of Adam."""
    torch.manual_seed(0)
    y = torch.as_tensor(problem.images())
    encoder, decoder = _layers(problem.STEP_ENCODER), _layers(problem.STEP_DECODER)
    expectation = Expectation(_complete(estimator, y))
    optimiser = torch.optim.Adam(
        [*encoder.parameters(), *decoder.parameters(), *expectation.parameters()], lr=problem.LEARNING_RATE
    )

    def call() -> None:
        q = Bernoulli(logits=encoder(y))
        held = q.detach()

        def negative_elbo(x: Tensor) -> Tensor:
            value: Tensor = held.log_prob(x) + problem.LATENTS * log(2) - _log_likelihood(decoder, x, y)
            return value

        optimiser.zero_grad()
        value: Tensor = expectation(negative_elbo, q)
        value.mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return call


class _RelaxNetwork(nn.Module):
    """(y, z) -> 137 LeakyReLU(0.3) -> 1."""

    def __init__(self) -> None:
        super().__init__()
        self.from_input = nn.Linear(problem.PIXELS, problem.RELAX_HIDDEN)
        self.from_latent = nn.Linear(problem.LATENTS, problem.RELAX_HIDDEN, bias=False)
        self.to_output = nn.Linear(problem.RELAX_HIDDEN, 1)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        hidden = nn.functional.leaky_relu(self.from_input(y) + self.from_latent(z), problem.NEGATIVE_SLOPE)
        output: Tensor = self.to_output(hidden)
        return output.squeeze(-1)


def _complete(estimator: Estimator, y: Tensor) -> Estimator:
    if isinstance(estimator, Surrogate):
        context = torch.randn(problem.BATCH, problem.FEATURES)
        return replace(estimator, variables=problem.LATENTS, features=problem.FEATURES, context=context)
    if not isinstance(estimator, Relax):
        return estimator
    return replace(estimator, network=_RelaxNetwork(), apply=lambda network, z: network(y, z))


def _layers(sizes: tuple[int, ...]) -> nn.Sequential:
    dense = [nn.Linear(*shape) for shape in pairwise(sizes)]
    between = [module for layer in dense[:-1] for module in (layer, nn.LeakyReLU(problem.NEGATIVE_SLOPE))]
    return nn.Sequential(*between, dense[-1])


def _log_likelihood(decoder: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits: Tensor = decoder(x)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, y.expand_as(logits), reduction="none")
    return -losses.sum(-1)
