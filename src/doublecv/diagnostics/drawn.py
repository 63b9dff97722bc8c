"""Moments of an estimator over independent draws, in chunks so that the draws need not all be held in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from doublecv.arrays import Array
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator

if TYPE_CHECKING:
    from jaxtyping import Float, PRNGKeyArray

CHUNK = 100
"""How many draws are computed at once."""


class Variance(NamedTuple):
    """The variance of an estimator, averaged over batch and coordinates, and its standard error."""

    variance: float
    standard_error: float


def variance(
    f: Callable[[Array], Array],
    q: Distribution,
    estimator: Estimator,
    coefficients: Mapping[str, Any],
    key: PRNGKeyArray,
    draws: int,
) -> Variance:
    """The variance of the estimator over `draws` independent estimates, with its standard error.

    f is a function from `[K, *batch, *event]` to `[K, *batch]` on JAX arrays.
    """
    import jax
    import jax.numpy as jnp

    from doublecv.jax import estimate

    def gradient(key: Any) -> Any:
        return estimate(f, q, estimator, coefficients, key).gradient

    mean = mean_over_draws(gradient, key, draws)

    @jax.jit
    def squared_distances(keys: Any) -> Any:
        return jax.lax.map(lambda key: jnp.mean((gradient(key) - mean) ** 2), keys, batch_size=min(CHUNK, draws))

    distances = np.asarray(squared_distances(jax.random.split(key, draws)), dtype=float) * draws / (draws - 1)
    return Variance(float(distances.mean()), float(distances.std(ddof=1) / np.sqrt(draws)))


def mean_over_draws(statistic: Callable[[Any], Any], key: PRNGKeyArray, draws: int) -> Float[Array, "..."]:
    """The mean of `statistic(key)` over independent keys."""
    import jax
    import jax.numpy as jnp

    if draws < 2:
        raise ValueError(f"draws must be at least 2, got {draws}")

    @jax.jit
    def mean(keys: Any) -> Any:
        chunk = min(CHUNK, draws)
        whole = draws // chunk * chunk

        def add(total: Any, keys: Any) -> tuple[Any, None]:
            return total + jnp.sum(jax.vmap(statistic)(keys), axis=0), None

        start = jnp.zeros_like(jax.eval_shape(statistic, keys[0]))
        total, _ = jax.lax.scan(add, start, keys[:whole].reshape(-1, chunk, *keys.shape[1:]))
        if whole < draws:
            total, _ = add(total, keys[whole:])
        return total / draws

    return mean(jax.random.split(key, draws))
