"""Every registered estimator, set up alike for NumPy, JAX and torch."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import doublecv as dcv
import problems
from doublecv import estimators
from doublecv.arrays import namespace
from doublecv.torch import Expectation
from problems import VARIABLES

COEFFICIENTS = {"alpha": -0.6, "baseline": 0.4, "log_temperature": math.log(0.7), "scale": 0.8}
"""Coefficients away from their start, where the derivative in them is not special."""


class Network(nn.Module):
    """RELAX's r(z), a small tanh network."""

    def __init__(self, arrays, event_axes):
        super().__init__()
        self.event_axes = event_axes
        self.inner, self.outer = (nn.Parameter(torch.tensor(arrays[name])) for name in ("inner", "outer"))

    def forward(self, z):
        return torch.tanh(z.flatten(-self.event_axes) @ self.inner) @ self.outer


def network_arrays(event_shape, dtype):
    generator = np.random.default_rng(5)
    return {
        "inner": (0.4 * generator.normal(size=(math.prod(event_shape), 4))).astype(dtype),
        "outer": generator.normal(size=4).astype(dtype),
    }


def make_estimator(name, samples, problem, family, dtype="float64"):
    """The estimator for NumPy and JAX, and the one for torch, whose network is a module."""
    estimator = problems.make_estimator(name, samples, problem)
    if isinstance(estimator, dcv.Surrogate):
        return estimator, dataclasses.replace(estimator, context=torch.as_tensor(estimator.context.astype(dtype)))
    if not isinstance(estimator, dcv.Relax):
        return estimator, estimator
    arrays = network_arrays(VARIABLES[family], dtype)

    def apply(parameters, z):
        flat = z.reshape(*z.shape[: z.ndim - family.event_axes], -1)
        return namespace(z).tanh(flat @ parameters["inner"]) @ parameters["outer"]

    return (
        dataclasses.replace(estimator, network=arrays, apply=apply),
        dataclasses.replace(estimator, network=Network(arrays, family.event_axes), apply=lambda network, z: network(z)),
    )


def make_coefficients(estimator):
    if isinstance(estimator, dcv.Relax):
        return {name: COEFFICIENTS.get(name, start) for name, start in estimator.coefficients().items()}
    return problems.make_coefficients(estimator, 0.4) | {
        name: COEFFICIENTS[name] for name in estimator.coefficients() if name in COEFFICIENTS
    }


def make_expectation(estimator, dtype=torch.float64):
    """The module with its coefficients away from their start, and running averages that stay where they are."""
    expectation = Expectation(estimator).to(dtype).eval()
    away = make_coefficients(estimator)
    with torch.no_grad():
        for name, value in expectation.coefficients().items():
            if isinstance(value, nn.ParameterDict):
                for entry, parameter in value.items():
                    parameter.copy_(torch.as_tensor(away[name][entry]))
            elif not isinstance(value, nn.Module):
                value.copy_(torch.as_tensor(away[name], dtype=value.dtype))
    return expectation


def every_estimator():
    """Every registered name with every family that it is for."""
    for name in estimators.names():
        for family in estimators.make(name, samples=4).families:
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
