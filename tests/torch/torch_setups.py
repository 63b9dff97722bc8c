"""Estimators, learned states and a model, set up for the tests of the PyTorch front-end."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from doublecv import estimators
from doublecv.torch import Expectation
from problems import VARIABLES, make_context, make_estimator, make_learned, make_logits


def make_q(family, batch=(4,), dtype=torch.float64):
    """Return a distribution whose logits are a leaf."""
    return family(logits=torch.tensor(make_logits(family, batch=batch), dtype=dtype).requires_grad_())


def make_noise(estimator, q, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(estimator.noise_shape(q), dtype=q.widen().logits.dtype, generator=generator)


def context_for(estimator, batch=(4,), dtype=torch.float64):
    """Return a context where the estimator uses one."""
    return torch.tensor(make_context(batch), dtype=dtype) if estimator.needs.context else None


def make_expectation(estimator, q, dtype=torch.float64, context=None):
    """Return the module with a learned state away from the start, and running averages that stay where they are."""
    numpy_context = None if context is None else context.detach().double().numpy()
    numpy_q = type(q)(logits=q.logits.detach().double().numpy())
    learned = make_learned(estimator, numpy_q, numpy_context, -0.6)
    expectation = Expectation(estimator).init(q, context=context).to(dtype).eval()
    arrays = {name: torch.tensor(np.array(value)) for name, value in (learned.numbers | learned.averages).items()}
    expectation.load_state_dict(arrays)
    return expectation


def make_all(name, family, samples=2, batch=(4,), dtype=torch.float64):
    """Return the module, q and the context."""
    estimator, q = make_estimator(name, samples), make_q(family, batch, dtype)
    context = context_for(estimator, batch, dtype)
    return make_expectation(estimator, q, dtype, context), q, context


def every_estimator():
    """Every registered name with every family that it supports."""
    for name in estimators.names():
        for family in estimators.make(name, samples=4).needs.families:
            yield pytest.param(name, family, id=f"{name}-{family.__name__}")


class Decoder(nn.Module):
    """A model for f with parameters of its own: minus a log likelihood of y, `[*batch, pixels]`."""

    def __init__(self, event_shape, pixels=6, dtype=torch.float64, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.event_axes = len(event_shape)
            self.layers = nn.Sequential(
                nn.Linear(math.prod(event_shape), 5, dtype=dtype), nn.Tanh(), nn.Linear(5, pixels, dtype=dtype)
            )

    def loss(self, x, y):
        activations = self.layers(x.flatten(-self.event_axes))
        return nn.functional.binary_cross_entropy_with_logits(
            activations, y.expand(activations.shape).to(activations.dtype), reduction="none"
        ).sum(-1)


def make_decoder(family, dtype=torch.float64):
    return Decoder(VARIABLES[family], dtype=dtype)


def make_y(batch=(4,), pixels=6, seed=0):
    return torch.rand(*batch, pixels, generator=torch.Generator().manual_seed(seed)).round().double()
