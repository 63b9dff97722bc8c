"""Track the variance of the gradient during a run by exponential averages (0.999) of the gradient and of its square.

A run draws one gradient per step, so the averages are over gradients at slowly changing parameters and on changing
batches: the variance includes the noise of the batches and that of the samples.

- Encoder: the gradient of the loss, a mean over the batch, in the parameters of the encoder. The variance is the
  average of the square minus the square of the average, both debiased, averaged over the components. Adam already has
  the average of the square.
- Logits: the gradient of one example's loss in its logits. The averages are over the batch and over the steps, one
  number per latent; the variance is as above, averaged over the latents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from doublecv.lab.train.optimizers import SECOND_DECAY, average, debias

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


class Tracker(NamedTuple):
    """Hold the averages of the encoder's gradient, of the gradient in the logits, and of the square of the latter."""

    encoder: Any
    logits: Float[Array, "logits"]
    logits_square: Float[Array, "logits"]


def start(encoder: Any, logits: int) -> Tracker:
    """Return the averages before the first step."""
    return Tracker(jax.tree.map(jnp.zeros_like, encoder), jnp.zeros(logits), jnp.zeros(logits))


def update(tracker: Tracker, encoder_gradient: Any, logits_gradient: Float[Array, "batch logits"]) -> Tracker:
    """Return the averages after one more step; `logits_gradient` is that of each example's own loss."""
    of_step = Tracker(encoder_gradient, jnp.mean(logits_gradient, axis=0), jnp.mean(logits_gradient**2, axis=0))
    return Tracker(*average(SECOND_DECAY, tuple(tracker), tuple(of_step)))


def encoder_variance(tracker: Tracker, encoder_square: Any, steps: Int[Array, ""]) -> Float[Array, ""]:
    """Return the mean variance of the encoder's gradient; `encoder_square` is Adam's average of its square."""
    weight = debias(SECOND_DECAY, steps)
    pairs = zip(jax.tree.leaves(tracker.encoder), jax.tree.leaves(encoder_square), strict=True)
    variances = [square / weight - (mean / weight) ** 2 for mean, square in pairs]
    total = jnp.sum(jnp.stack([jnp.sum(variance) for variance in variances]))
    mean: Array = total / sum(variance.size for variance in variances)
    return mean


def logits_variance(tracker: Tracker, steps: Int[Array, ""]) -> Float[Array, ""]:
    """Return the mean variance of the gradient in the logits."""
    weight = debias(SECOND_DECAY, steps)
    return jnp.mean(tracker.logits_square / weight - (tracker.logits / weight) ** 2)
