"""ELBO and multi-sample bounds over a whole set of images, block by block so that memory does not grow with the set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.vae.batches import observe
from doublecv.lab.vae.model import VAE
from doublecv.lab.vae.objective import log_prior

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray, UInt8

POINTS = 2000
"""How many points are decoded at once, samples times images."""

BLOCK = 1000
"""About how many images one call of the compiled program takes."""


class Bounds(NamedTuple):
    """Means over a set of images, in nats an image.

    Attributes:
        elbo: E_q[log p(y, x) - log q(x | y)], from S samples an image.
        multi_sample: E[log 1/S sum_s p(y, x_s) / q(x_s | y)] (Burda, Grosse and Salakhutdinov, 2016).
    """

    elbo: float
    multi_sample: float


def bounds(
    settings: TrainSettings,
    model: VAE,
    images: UInt8[np.ndarray, "images pixels"],
    key: PRNGKeyArray,
    samples: int,
    between_blocks: Callable[[], None] = lambda: None,
) -> Bounds:
    """Both bounds, with `samples` independent samples an image; binarised data are drawn once for each image.

    `between_blocks` may raise, to stop early.
    """
    group = max(1, POINTS // samples)
    block = group * max(1, BLOCK // group)
    sums = np.zeros(2)
    for number, start in enumerate(range(0, len(images), block)):
        part = images[start : start + block]
        padded = np.concatenate([part, np.zeros((block - len(part), part.shape[1]), part.dtype)])
        values = _block(_evaluated(settings), samples, group, model, padded, jax.random.fold_in(key, number))
        between_blocks()
        sums += np.asarray(values, dtype=float)[:, : len(part)].sum(axis=1)
    return Bounds(*(sums / len(images)).tolist())


class _Evaluated(NamedTuple):
    """The settings that an evaluation depends on: others must not make the compiler start again."""

    likelihood: str
    kl: str


def _evaluated(settings: TrainSettings) -> _Evaluated:
    return _Evaluated(settings.likelihood, settings.kl)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _block(
    evaluated: _Evaluated, samples: int, group: int, model: VAE, images: UInt8[Array, "block pixels"], key: Any
) -> Float[Array, "2 block"]:
    def of_group(part: Any) -> Any:
        pixels, key = part
        observe_key, draw_key = jax.random.split(key)
        y = observe(observe_key, pixels, evaluated.likelihood)
        q = model.posterior(model.encoder(y))
        x = q.sample(jax.random.uniform(draw_key, (samples, *q.noise_shape)))
        log_likelihood = model.log_likelihood(y, x)
        log_weights = log_likelihood - q.log_prob(x) + log_prior(q)
        if evaluated.kl == "analytic":
            elbo = jnp.mean(log_likelihood, axis=0) + q.entropy() + log_prior(q)
        else:
            elbo = jnp.mean(log_weights, axis=0)
        return jnp.stack([elbo, jax.nn.logsumexp(log_weights, axis=0) - jnp.log(samples)])

    groups = images.shape[0] // group
    values = jax.lax.map(of_group, (images.reshape(groups, group, -1), jax.random.split(key, groups)))
    return jnp.moveaxis(values, 1, 0).reshape(2, -1)
