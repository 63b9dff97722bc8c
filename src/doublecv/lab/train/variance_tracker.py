"""The variance of the gradient along a run, from exponential averages (0.999) of the gradient and of its square.

One run draws one gradient a step, so what is averaged are gradients at parameters that change slowly, on changing
batches: the number holds the noise of the batches as well as that of the samples.

- Encoder: the gradient of the loss, the mean over the batch, in the encoder's parameters; variance = average of the
  square minus square of the average, mean over the components. The average of the square is Adam's own.
- Logits: the gradient of one example's loss in its logits. Its average, and that of its square, are over the batch as
  well as over the steps, one number a latent; variance as above, mean over the latents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from doublecv.lab.train.optimizers import SECOND_DECAY, average, debias

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


class Tracker(NamedTuple):
    """The averages.

    Attributes:
        encoder: of the encoder's gradient.
        logits: of the logits' gradient.
        logits_square: of its square.
    """

    encoder: Any
    logits: Float[Array, "logits"]
    logits_square: Float[Array, "logits"]


def start(encoder: Any, logits: int) -> Tracker:
    """The averages before the first step."""
    return Tracker(jax.tree.map(jnp.zeros_like, encoder), jnp.zeros(logits), jnp.zeros(logits))


def update(tracker: Tracker, encoder_gradient: Any, logits_gradient: Float[Array, "batch logits"]) -> Tracker:
    """The averages after one more step; `logits_gradient` is that of each example's own loss."""
    of_step = Tracker(encoder_gradient, jnp.mean(logits_gradient, axis=0), jnp.mean(logits_gradient**2, axis=0))
    return Tracker(*average(SECOND_DECAY, tuple(tracker), tuple(of_step)))


def encoder_variance(tracker: Tracker, encoder_square: Any, steps: Int[Array, ""]) -> Float[Array, ""]:
    """The mean variance of the encoder's gradient; `encoder_square` is Adam's average of its square."""
    weight = debias(SECOND_DECAY, steps)
    variances = jax.tree.map(
        lambda mean, square: square / weight - (mean / weight) ** 2, tracker.encoder, encoder_square
    )
    leaves = jax.tree.leaves(variances)
    total = jnp.sum(jnp.stack([jnp.sum(leaf) for leaf in leaves]))
    components = sum(leaf.size for leaf in leaves)
    mean: Array = total / components
    return mean


def logits_variance(tracker: Tracker, steps: Int[Array, ""]) -> Float[Array, ""]:
    """The mean variance of the logits' gradient."""
    weight = debias(SECOND_DECAY, steps)
    return jnp.mean(tracker.logits_square / weight - (tracker.logits / weight) ** 2)
