"""Draw the samples of an estimator, from a distribution with given logits or along paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from doublecv.distributions import Distribution
from doublecv.estimators import Estimator
from doublecv.jax.rule import Function, draw_noise
from doublecv.sequential import Sequential

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

    from doublecv.sequential import Uniform


class Drawn(NamedTuple):
    """Hold samples and where they came from.

    Attributes:
        f: f as a function of the samples' array.
        q: the distribution, with differentiable logits.
        held: the same distribution in a wide type, held constant.
        noise: the noise of the samples; None for paths, whose noise no estimator uses.
        x: the samples.
    """

    f: Function
    q: Distribution
    held: Distribution
    noise: Any
    x: Float[Array, "K *logits"]


def draw(f: Function, q: Distribution | Sequential, estimator: Estimator, key: PRNGKeyArray) -> Drawn:
    """Draw the K samples of the estimator."""
    if not isinstance(q, Sequential):
        q = q.with_logits(jnp.asarray(q.logits))
        held = q.detach().widen()
        noise = draw_noise(held, estimator, key)
        return Drawn(f, q, held, noise, estimator.draw(held, noise))
    visit = q.visit(estimator.samples, uniform(key))
    return Drawn(lambda x: f(visit.structure(x)), visit.q, visit.q.detach().widen(), None, visit.x)


def uniform(key: PRNGKeyArray) -> Uniform:
    """Return a source of noise whose successive calls are independent."""
    count = 0

    def draw_next(shape: tuple[int, ...], like: Any) -> Any:
        nonlocal count
        count += 1
        dtype = jnp.result_type(float) if like is None else jnp.promote_types(like.dtype, jnp.float32)
        return jax.random.uniform(jax.random.fold_in(key, count), shape, dtype)

    return draw_next
