"""The diagnostics of both frameworks behind one set of calls, and a small problem for them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

import doublecv as dcv
import doublecv.jax
import doublecv.torch
from doublecv.arrays import namespace

LOGITS = np.array([[1.0, -0.5, 0.3], [0.2, 1.5, -2.0]])
INNER = np.random.default_rng(3).normal(size=(3, 4))
OUTER = np.random.default_rng(4).normal(size=4)


def network(x):
    """A small tanh network, `[..., 3]` to `[...]`."""
    xp = namespace(x)
    inner, outer = (xp.asarray(weights, dtype=x.dtype) for weights in (INNER, OUTER))
    return xp.tanh(x @ inner) @ outer - 1.5


def network_gradient(x):
    slope = 1 - np.tanh(x @ INNER) ** 2
    return (slope * OUTER) @ INNER.T


class Jax:
    """`doublecv.jax` with a fixed key."""

    name = "jax"
    library = doublecv.jax

    def __init__(self, seed=5):
        self.random = {"key": jax.random.key(seed)}

    def array(self, array):
        return jnp.asarray(array, jnp.float32)

    def bernoulli(self, logits=LOGITS):
        return dcv.Bernoulli(logits=self.array(logits))


class Torch(Jax):
    """`doublecv.torch` with a fixed generator."""

    name = "torch"
    library = doublecv.torch

    def __init__(self, seed=5):
        self.seed = seed

    @property
    def random(self):
        return {"generator": torch.Generator().manual_seed(self.seed)}

    def array(self, array):
        return torch.as_tensor(np.asarray(array), dtype=torch.float32)


FRAMEWORKS = [Jax(), Torch()]
