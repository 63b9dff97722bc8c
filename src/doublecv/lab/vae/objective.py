"""Define the bounds of the evidence as the f of an expectation, and compute them over a set of images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from doublecv.arrays import log_mean_exp
from doublecv.jax.rule import Function
from doublecv.lab.vae.likelihoods import observe
from doublecv.lab.vae.model import VAE, Posterior

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray, UInt8

POINTS = 2000
"""The number of points that are decoded at once, samples times images."""

BLOCK = 1000
"""The approximate number of images per call of the compiled program."""


def elbo(model: VAE, y: Float[Array, "*batch pixels"], q: Posterior) -> Function:
    r"""Return the f of the ELBO, :math:`\log p(y | x) + \log p(x) - \log q(x | y)` with q held constant inside f."""
    return lambda x: log_weight(model, y, q.detach(), x)


def importance_weighted_bound(
    model: VAE, y: Float[Array, "*batch pixels"], q: Posterior, samples: int, *, joint: bool
) -> Function:
    r"""Return the f of :math:`\log \frac{1}{S} \sum_s w(x_s)`, :math:`w(x) = p(y, x) / q(x | y)` (Burda et al., 2016).

    The bound has a gradient through :math:`\log q` whose mean is not 0. `MultiSampleBound(held=True)` adds it to that
    of an f in which q is held constant; for the other estimators q is not held constant.

    A `joint` f is the bound as a function of S samples that are the variables of one distribution (`VAE.posterior` with
    `copies`), which any estimator takes; otherwise f is :math:`\log w`, which an estimator of the bound takes.
    """
    if not joint:
        return elbo(model, y, q)

    def split(x: Array) -> Array:
        batch = y.ndim - 1
        parts = x.reshape(*x.shape[: 1 + batch], samples, -1, *x.shape[2 + batch :])
        return jnp.moveaxis(parts, 1 + batch, 1)

    return lambda x: log_mean_exp(log_weight(model, y, q, jax.tree.map(split, x)), axis=1)


def log_weight(model: VAE, y: Float[Array, "*#points pixels"], q: Posterior, x: Any) -> Float[Array, "*points"]:
    r"""Return :math:`\log p(y | x) + \log p(x) - \log q(x | y)`."""
    weight: Array = model.log_likelihood(y, x) - q.log_prob(x) + model.log_prior
    return weight


class Bounds(NamedTuple):
    """Hold means over a set of images, in nats per image: of the ELBO and of the bound with S samples."""

    elbo: float
    multi_sample: float


def bounds(
    model: VAE,
    images: UInt8[np.ndarray, "images pixels"],
    key: PRNGKeyArray,
    samples: int,
    between_blocks: Callable[[], None] = lambda: None,
) -> Bounds:
    """Estimate both bounds over a set of images, with `samples` independent samples per image.

    Binarised data are drawn once per image. `between_blocks` of images may raise an exception to stop early.
    """
    group = max(1, POINTS // samples)
    block = group * max(1, BLOCK // group)
    sums = np.zeros(2)
    for number, start in enumerate(range(0, len(images), block)):
        part = images[start : start + block]
        padded = np.concatenate([part, np.zeros((block - len(part), part.shape[1]), part.dtype)])
        values = _block(samples, group, model, padded, jax.random.fold_in(key, number))
        between_blocks()
        sums += np.asarray(values, dtype=float)[:, : len(part)].sum(axis=1)
    return Bounds(*(sums / len(images)).tolist())


@partial(jax.jit, static_argnums=(0, 1))
def _block(
    samples: int, group: int, model: VAE, images: UInt8[Array, "block pixels"], key: Any
) -> Float[Array, "2 block"]:
    def of_group(part: Any) -> Any:
        pixels, key = part
        observe_key, draw_key = jax.random.split(key)
        y = observe(observe_key, pixels, model.likelihood)
        q = model.posterior(model.encoder(y))
        x = model.draw(q, draw_key, samples)
        log_weights = log_weight(model, y, q, x)
        elbo = jnp.mean(log_weights, axis=0)
        return jnp.stack([elbo, jax.nn.logsumexp(log_weights, axis=0) - jnp.log(samples)])

    groups = images.shape[0] // group
    values = jax.lax.map(of_group, (images.reshape(groups, group, -1), jax.random.split(key, groups)))
    return jnp.moveaxis(values, 1, 0).reshape(2, -1)
