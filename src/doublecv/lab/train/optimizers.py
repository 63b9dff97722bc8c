"""Adam as Keras has it: the correction of the bias is in the step size, so that it costs two numbers and no array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from doublecv.estimators.linear import AVERAGE_RATE

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

SECOND_DECAY = 0.999
"""beta_2, the decay of the average of squared gradients."""

EPSILON = 1e-7
"""What is added to the root of the average."""


class Moments(NamedTuple):
    """Exponential averages of the gradient and of its square, shaped like the parameters; they start at 0."""

    first: Any
    second: Any


class Adam(NamedTuple):
    """m = beta_1 m + (1 - beta_1) g,  v = beta_2 v + (1 - beta_2) g^2,  p = p - rate_t m / (sqrt(v) + eps)

    with rate_t = rate sqrt(1 - beta_2^t) / (1 - beta_1^t) (Kingma and Ba, 2015, end of section 2), beta_2 = 0.999.
    """

    learning_rate: float
    first_decay: float = 0.9

    def start(self, parameters: Any) -> Moments:
        """The averages before the first step."""
        return Moments(jax.tree.map(jnp.zeros_like, parameters), jax.tree.map(jnp.zeros_like, parameters))

    def update(
        self,
        parameters: Any,
        gradient: Any,
        moments: Moments,
        step: Int[Array, ""],
        scale: Float[Array, ""] | float = 1.0,
    ) -> tuple[Any, Moments]:
        """The parameters and the averages after the step of that number, counted from 0, its size times `scale`."""
        count = step + 1
        rate = scale * self.learning_rate * jnp.sqrt(debias(SECOND_DECAY, count)) / debias(self.first_decay, count)
        first = average(self.first_decay, moments.first, gradient)
        second = average(SECOND_DECAY, moments.second, jax.tree.map(jnp.square, gradient))
        moved = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + EPSILON), parameters, first, second)
        return moved, Moments(first, second)


class CoefficientOptimiser(NamedTuple):
    """Adam for an estimator's coefficients, but plain descent for those that are running averages."""

    adam: Adam
    averaged: tuple[str, ...]

    def start(self, coefficients: dict[str, Any]) -> Moments:
        """Adam's averages before the first step."""
        return self.adam.start(self._learned(coefficients))

    def update(
        self, coefficients: dict[str, Any], gradient: dict[str, Any], moments: Moments, step: Int[Array, ""]
    ) -> tuple[dict[str, Any], Moments]:
        """The coefficients and Adam's averages after the step of that number."""
        moved, moments = self.adam.update(self._learned(coefficients), self._learned(gradient), moments, step)
        averages = {name: coefficients[name] - AVERAGE_RATE * gradient[name] for name in self.averaged}
        return {**moved, **averages}, moments

    def _learned(self, tree: dict[str, Any]) -> dict[str, Any]:
        return {name: leaf for name, leaf in tree.items() if name not in self.averaged}


def average(decay: float, averages: Any, values: Any) -> Any:
    """decay * averages + (1 - decay) * values, leaf by leaf."""
    return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, averages, values)


def debias(decay: float, count: Int[Array, ""]) -> Float[Array, ""]:
    """1 - decay^count: the sum of the weights in an exponential average of `count` values that began at 0."""
    return -jnp.expm1(count * jnp.log(jnp.float32(decay)))
