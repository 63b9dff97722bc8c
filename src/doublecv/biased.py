r"""Biased estimators that are in common use, to be compared with the unbiased ones.

All of them backpropagate through a sample as if it were a smooth function of the logits. They need the gradient of f at
K samples, as `DoubleCV` does, and their bias does not become smaller with K. `doublecv.jax.compare` and
`doublecv.torch.compare` accept them, also by name, and measure their squared bias.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, final

from doublecv.arrays import Array, Shape, sum_over_samples
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators.concrete import hard_sample, relax, relaxed_sample

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class BiasedEstimator(ABC):
    r"""Provide the base of estimators that replace :math:`\nabla_{logits} E_q f` by something of lower variance.

    Attributes:
        samples: K, the number of samples at which f is differentiated.
    """

    samples: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or self.samples < 1:
            raise ValueError(f"samples must be a positive integer, got {self.samples!r}")

    @property
    @final
    def evaluations(self) -> int:
        """Return the number of points at which one estimate evaluates f."""
        return self.samples

    def noise_shape(self, q: Distribution) -> Shape:
        """Return the shape of the uniform noise on [0, 1) that `draw` takes."""
        return (self.samples, *q.noise_shape)

    def draw(self, q: Distribution, noise: Float[Array, "K ..."]) -> Float[Array, "K *logits"]:
        """Draw K independent samples of q."""
        return q.sample(noise)

    @final
    def estimate(
        self, q: Distribution, noise: Float[Array, "K ..."], x: Float[Array, "K *logits"], df: Float[Array, "K *logits"]
    ) -> Float[Array, "*logits"]:
        """Return the estimate from the gradient of f in x at the samples.

        Args:
            q: the distribution.
            noise: the noise that the samples were drawn with.
            x: the samples.
            df: the gradient of f in x at the samples.
        """
        return sum_over_samples(self.backpropagate(q, noise, x, df)) / self.samples

    @abstractmethod
    def backpropagate(
        self, q: Distribution, noise: Float[Array, "K ..."], x: Float[Array, "K *logits"], df: Float[Array, "K *logits"]
    ) -> Float[Array, "K *logits"]:
        """Return the gradient in the logits that each sample contributes."""


@final
@dataclass(frozen=True)
class StraightThrough(BiasedEstimator):
    r"""Estimate with the straight-through estimator.

    .. math:: g = \frac{1}{K} \sum_k M \nabla f(x_k),

    which treats the sample as if it were the mean: :math:`M = \partial \mu / \partial logits` (Bengio, Leonard and
    Courville, 2013). It is exact for a linear f.

    >>> StraightThrough(samples=2).evaluations
    2
    """

    def backpropagate(
        self, q: Distribution, noise: Float[Array, "K ..."], x: Float[Array, "K *logits"], df: Float[Array, "K *logits"]
    ) -> Float[Array, "K *logits"]:
        r"""Return :math:`M \nabla f(x_k)`."""
        return q.covariance_product(df)


@final
@dataclass(frozen=True)
class GumbelSoftmaxStraightThrough(BiasedEstimator):
    r"""Estimate with the straight-through Gumbel-softmax.

    .. math::
        g = \frac{1}{K} \sum_k \frac{1}{\tau} M(y_k) \nabla f(x_k), \qquad
        y_k = \mathrm{softmax}((logits + gumbel_k) / \tau),

    where :math:`x_k` is the one-hot vector of the largest entry of :math:`y_k` and M(y) is the matrix M at the mean y
    (Jang, Gu and Poole, 2017; Maddison, Mnih and Teh, 2017). For Bernoulli the noise is logistic and softmax is the
    sigmoid.

    >>> GumbelSoftmaxStraightThrough(samples=2, temperature=0.5).temperature
    0.5

    Attributes:
        temperature: :math:`\tau`. A low one has less bias and more variance.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ValueError(f"temperature must be a positive number, got {self.temperature!r}")

    def noise_shape(self, q: Distribution) -> Shape:
        """Return one number per sample, variable and category."""
        return (self.samples, *q.batch_shape, *q.event_shape)

    def draw(self, q: Distribution, noise: Float[Array, "K *logits"]) -> Float[Array, "K *logits"]:
        """Draw the hard samples."""
        return hard_sample(q, noise)

    def backpropagate(
        self, q: Distribution, noise: Float[Array, "K ..."], x: Float[Array, "K *logits"], df: Float[Array, "K *logits"]
    ) -> Float[Array, "K *logits"]:
        r"""Return :math:`\frac{1}{\tau} M(y_k) \nabla f(x_k)`."""
        relaxed = relax(q, relaxed_sample(q, noise), log(self.temperature))
        return _covariance_product(q, relaxed, df) / self.temperature


@final
@dataclass(frozen=True)
class ReinMax(BiasedEstimator):
    r"""Estimate with ReinMax.

    .. math:: g = \frac{1}{K} \sum_k \Big(2 M(\tfrac{\mu + x_k}{2}) - \tfrac12 M(\mu)\Big) \nabla f(x_k),

    where M(m) is the matrix M at the mean m (Liu et al., 2023, algorithm 2, at temperature 1). It follows from Heun's
    method for the difference of f between two values of a variable, so that with one variable it is exact for a
    quadratic f.

    >>> ReinMax(samples=2).evaluations
    2
    """

    def backpropagate(
        self, q: Distribution, noise: Float[Array, "K ..."], x: Float[Array, "K *logits"], df: Float[Array, "K *logits"]
    ) -> Float[Array, "K *logits"]:
        r"""Return the estimate of each sample.

        .. math:: \Big(2 M\big(\tfrac{\mu + x_k}{2}\big) - \tfrac12 M(\mu)\Big) \nabla f(x_k)
        """
        return 2 * _covariance_product(q, (q.mean + x) / 2, df) - q.covariance_product(df) / 2


BIASED: dict[str, Callable[..., BiasedEstimator]] = {
    "straight-through": StraightThrough,
    "gumbel-softmax-straight-through": GumbelSoftmaxStraightThrough,
    "reinmax": ReinMax,
}
"""The biased estimators by name."""


def _covariance_product(q: Distribution, mean: Float[Array, "*points"], v: Float[Array, "*points"]) -> Array:
    """Return the product of v with the covariance matrix that the family has at another mean."""
    if isinstance(q, Bernoulli):
        return mean * (1 - mean) * v
    return mean * (v - q.xp.sum(mean * v, axis=-1, keepdims=True))
