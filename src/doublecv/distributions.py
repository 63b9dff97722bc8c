"""Factorised discrete distributions: `Bernoulli` and `Categorical` (one-hot).

With mu = E[x], the score is s(x) = d/dlogits log q(x) = x - mu for both, and M = E[s(x) (x - mu)^T] is block diagonal:
`covariance` is the product M v. Infinite logits are allowed: the variable is then certain, and nothing becomes NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from array_api_compat import device

from doublecv.arrays import (
    MOST_WRITTEN_OUT,
    Array,
    Shape,
    detach,
    matrix_product,
    namespace,
    register_where_jax_is_in_use,
    require_floating,
    sigmoid,
)

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Distribution(ABC):
    """D independent discrete variables for every batch element; the base of `Bernoulli` and `Categorical`."""

    logits: Float[Array, "*logits"]

    event_axes: ClassVar[int]
    layout: ClassVar[str]

    def __post_init__(self) -> None:
        require_floating("logits", self.logits)
        if self.logits.ndim < self.event_axes:
            raise ValueError(
                f"logits of {type(self).__name__} must have shape {self.layout}, got shape {tuple(self.logits.shape)}"
            )
        register_where_jax_is_in_use(self, "logits")

    @property
    def batch_shape(self) -> Shape:
        """The axes of independent problems, each with its own logits."""
        return tuple(self.logits.shape[: self.logits.ndim - self.event_axes])

    @property
    def event_shape(self) -> Shape:
        """The axes of one sample: (D,) for Bernoulli, (D, C) for Categorical."""
        return tuple(self.logits.shape[self.logits.ndim - self.event_axes :])

    @property
    def noise_shape(self) -> Shape:
        """The shape of the uniform noise that one sample takes: one number a variable."""
        return (*self.batch_shape, self.event_shape[0])

    @property
    def xp(self) -> Any:
        """The array API namespace of the logits."""
        return namespace(self.logits)

    def detach(self) -> Self:
        """The same distribution with its logits held constant under differentiation."""
        return type(self)(logits=detach(self.logits))

    def broadcast_to(self, batch_shape: Shape) -> Self:
        """The same distribution repeated along new leading batch axes."""
        return type(self)(logits=self.xp.broadcast_to(self.logits, (*batch_shape, *self.event_shape)))

    def score(self, x: Float[Array, "*points"]) -> Float[Array, "*points"]:
        """s(x) = d/dlogits log q(x) = x - mu."""
        return x - self.mean

    def dot(self, a: Float[Array, "*points"], b: Float[Array, "*points"]) -> Float[Array, "*shape"]:
        """The inner product over the event axes."""
        return self.xp.sum(a * b, axis=tuple(range(-self.event_axes, 0)))

    def dots(self, a: Float[Array, "A *points"], b: Float[Array, "B *points"]) -> Float[Array, "A B *shape"]:
        """The inner product over the event axes of every entry of a with every entry of b."""
        if a.shape[0] > MOST_WRITTEN_OUT:
            return self.dot(a[:, None], b[None])
        leading = tuple(b.shape)[: b.ndim - self.event_axes]
        size = prod(self.event_shape)
        ones = self.xp.ones(size, dtype=b.dtype, device=device(b))
        # Products with ones because XLA on a CPU adds up a broadcast product several times more slowly.
        return self.xp.stack(
            [matrix_product(self.xp.reshape(a[k] * b, (*leading, size)), ones) for k in range(a.shape[0])]
        )

    def weigh(self, weight: Float[Array, "*shape"], v: Float[Array, "*points"]) -> Float[Array, "*points"]:
        """Multiply each event-shaped entry of v by its own number."""
        return weight[(..., *(None,) * self.event_axes)] * v

    @property
    def largest(self) -> float:
        """What infinite logits are replaced with, so that differences of them are not NaN."""
        return float(self.xp.finfo(self.logits.dtype).max) / 4

    def check_samples(self, x: Array) -> None:
        """Raise unless x has the shape of samples, `[*samples, *batch, *event]`."""
        self._check_trailing("x", x, (*self.batch_shape, *self.event_shape))

    def _check_trailing(self, argument: str, array: Array, wanted: Shape) -> None:
        shape = tuple(array.shape)
        if shape[max(0, len(shape) - len(wanted)) :] != wanted:
            raise ValueError(f"{argument} must have a shape that ends in {wanted}, got shape {shape}")

    def _check_same_family(self, other: Distribution) -> None:
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {type(other).__name__}")
        if other.event_shape != self.event_shape:
            raise ValueError(f"other must have event shape {self.event_shape}, got {other.event_shape}")

    @property
    @abstractmethod
    def mean(self) -> Float[Array, "*logits"]:
        """mu = E[x]."""

    @abstractmethod
    def covariance(self, v: Float[Array, "*points"]) -> Float[Array, "*points"]:
        """The product M v with M = E[s(x) (x - mu)^T]."""

    @abstractmethod
    def third_moment(self, v: Float[Array, "*points"]) -> Float[Array, "*points"]:
        """E[s(x) ((x - mu)^T v)^2], to which only the variable that s belongs to contributes."""

    @abstractmethod
    def log_prob(self, x: Float[Array, "*points"]) -> Float[Array, "*leading"]:
        """log q(x), summed over the event; linear in x between the corners."""

    @abstractmethod
    def entropy(self) -> Float[Array, "*batch"]:
        """-E[log q(x)], summed over the event."""

    @abstractmethod
    def kl(self, other: Distribution) -> Float[Array, "*batch"]:
        """E[log q(x) - log other(x)], summed over the event."""

    @abstractmethod
    def sample(self, noise: Float[Array, "*leading D"]) -> Float[Array, "*points"]:
        """Samples from noise that is uniform on [0, 1), one number a variable."""

    @abstractmethod
    def variable_values(self) -> Float[Array, "V *variable"]:
        """The values that one variable can take."""

    @abstractmethod
    def variable_probabilities(self) -> Float[Array, "V *batch D"]:
        """The probability of each of `variable_values`, for every variable."""


@dataclass(frozen=True, eq=False)
class Bernoulli(Distribution):
    """D independent binary variables: q(x) = prod_i mu_i^x_i (1 - mu_i)^(1 - x_i), mu = sigmoid(logits).

    (Titsias and Shi, 2022, equation 9.)
    """

    event_axes: ClassVar[int] = 1
    layout: ClassVar[str] = "[*batch, D]"

    @property
    def decay(self) -> Float[Array, "*batch D"]:
        """exp(-|logits|), from which every function of the logits is computed without overflow.

        Written with `where` because the derivative of an absolute value at 0 is 0 in the array libraries, which would
        silently make a derivative at logits 0 vanish.
        """
        return self.xp.exp(self.xp.where(self.logits >= 0, -self.logits, self.logits))

    @property
    def mean(self) -> Float[Array, "*batch D"]:
        """mu = sigmoid(logits)."""
        return sigmoid(self.logits)

    @property
    def complement(self) -> Float[Array, "*batch D"]:
        """1 - mu = sigmoid(-logits), without the cancellation where mu is close to 1."""
        return sigmoid(-self.logits)

    @property
    def rarer(self) -> Float[Array, "*batch D"]:
        """min(mu, 1 - mu) = sigmoid(-|logits|), the probability of a variable's rarer value."""
        decay = self.decay
        return decay / (1 + decay)

    def covariance(self, v: Float[Array, "*leading D"]) -> Float[Array, "*leading D"]:
        """M v = mu (1 - mu) v."""
        return self.mean * self.complement * v

    def third_moment(self, v: Float[Array, "*leading D"]) -> Float[Array, "*leading D"]:
        """mu (1 - mu) (1 - 2 mu) v^2."""
        # M v first: a certain variable makes it 0, however large v is, of which the square may overflow.
        return self.covariance(v) * v * (self.complement - self.mean)

    def log_prob(self, x: Float[Array, "*leading D"]) -> Float[Array, "*leading"]:
        """sum_i x_i logits_i - log(1 + exp(logits_i))."""
        self.check_samples(x)
        logits = self._finite_logits
        positive_part = self.xp.where(logits >= 0, logits, self.xp.zeros_like(logits))
        # log(1 + exp(l)) - x l, with max(l, 0) - x l first: exact where the two large numbers cancel.
        surprise = (positive_part - x * logits) + self.xp.log1p(self.decay)
        return -self.xp.sum(surprise, axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        """sum_i log(1 + exp(logits_i)) - mu_i logits_i."""
        logits = self._finite_logits
        distance = self.xp.where(logits >= 0, logits, -logits)
        return self.xp.sum(self.xp.log1p(self.decay) + distance * self.rarer, axis=-1)

    def kl(self, other: Distribution) -> Float[Array, "*batch"]:
        """sum_i mu_i log(mu_i / mu'_i) + (1 - mu_i) log((1 - mu_i) / (1 - mu'_i))."""
        self._check_same_family(other)
        assert isinstance(other, Bernoulli)
        of_one, of_zero = self._surprises
        other_of_one, other_of_zero = other._surprises
        divergence = self.mean * (other_of_one - of_one) + self.complement * (other_of_zero - of_zero)
        return self.xp.sum(divergence, axis=-1)

    def sample(self, noise: Float[Array, "*leading D"]) -> Float[Array, "*leading D"]:
        """x = 1 where noise < mu. For noise uniform on [0, 1) this has probability mu exactly."""
        self._check_trailing("noise", noise, self.noise_shape)
        return self.xp.astype(noise < self.xp.astype(self.mean, noise.dtype), self.logits.dtype)

    def variable_values(self) -> Float[Array, "2"]:
        """0 and 1."""
        return self.xp.arange(2, dtype=self.logits.dtype)

    def variable_probabilities(self) -> Float[Array, "2 *batch D"]:
        """1 - mu and mu."""
        return self.xp.stack([self.complement, self.mean])

    @property
    def _finite_logits(self) -> Float[Array, "*batch D"]:
        return self.xp.clip(self.logits, -self.largest, self.largest)

    @property
    def _surprises(self) -> tuple[Float[Array, "*batch D"], Float[Array, "*batch D"]]:
        """-log mu and -log(1 - mu), with the branches of `decay`, so that their derivatives at 0 are right."""
        logits, nothing = self._finite_logits, self.xp.zeros_like(self.logits)
        rest = self.xp.log1p(self.decay)
        of_one = self.xp.where(self.logits >= 0, nothing, -logits) + rest
        of_zero = self.xp.where(self.logits >= 0, logits, nothing) + rest
        return of_one, of_zero


@dataclass(frozen=True, eq=False)
class Categorical(Distribution):
    """D independent one-hot variables with C categories each: mu = softmax(logits) over the last axis."""

    event_axes: ClassVar[int] = 2
    layout: ClassVar[str] = "[*batch, D, C]"

    @property
    def mean(self) -> Float[Array, "*batch D C"]:
        """mu = softmax(logits)."""
        weights = self.xp.exp(self._shifted_logits)
        return weights / self.xp.sum(weights, axis=-1, keepdims=True)

    def covariance(self, v: Float[Array, "*leading D C"]) -> Float[Array, "*leading D C"]:
        """M v = mu (v - <mu, v>) for each variable."""
        mean = self.mean
        return mean * (v - self.xp.sum(mean * v, axis=-1, keepdims=True))

    def third_moment(self, v: Float[Array, "*leading D C"]) -> Float[Array, "*leading D C"]:
        """mu ((v - <mu, v>)^2 - <mu, (v - <mu, v>)^2>) for each variable."""
        mean = self.mean
        centred = v - self.xp.sum(mean * v, axis=-1, keepdims=True)
        squares = mean * centred * centred
        return squares - mean * self.xp.sum(squares, axis=-1, keepdims=True)

    def log_prob(self, x: Float[Array, "*leading D C"]) -> Float[Array, "*leading"]:
        """sum_ic x_ic log mu_ic."""
        self.check_samples(x)
        return self.dot(x, self.log_mean)

    def entropy(self) -> Float[Array, "*batch"]:
        """-sum_ic mu_ic log mu_ic."""
        return -self.dot(self.mean, self.log_mean)

    def kl(self, other: Distribution) -> Float[Array, "*batch"]:
        """sum_ic mu_ic log(mu_ic / mu'_ic)."""
        self._check_same_family(other)
        assert isinstance(other, Categorical)
        return self.dot(self.mean, self.log_mean - other.log_mean)

    def sample(self, noise: Float[Array, "*leading D"]) -> Float[Array, "*leading D C"]:
        """The category in whose interval of the cumulative probabilities the noise falls, one-hot."""
        self._check_trailing("noise", noise, self.noise_shape)
        cumulative = self.xp.cumulative_sum(self.xp.astype(self.mean, noise.dtype), axis=-1)
        # Rounding may leave the last sum short of 1: without the division a category of probability 0 could be drawn.
        upper = cumulative / cumulative[..., -1:]
        lower = self.xp.concat([self.xp.zeros_like(upper[..., :1]), upper[..., :-1]], axis=-1)
        inside = (noise[..., None] >= lower) & (noise[..., None] < upper)
        return self.xp.astype(inside, self.logits.dtype)

    def variable_values(self) -> Float[Array, "C C"]:
        """The C one-hot vectors."""
        categories = self.xp.arange(self.event_shape[-1])
        return self.xp.astype(categories[:, None] == categories[None, :], self.logits.dtype)

    def variable_probabilities(self) -> Float[Array, "C *batch D"]:
        """mu, with the categories in front."""
        return self.xp.moveaxis(self.mean, -1, 0)

    @property
    def log_mean(self) -> Float[Array, "*batch D C"]:
        """log mu; a category of probability 0 gets a huge negative number, so that 0 log 0 is 0."""
        shifted = self._shifted_logits
        log_mean = shifted - self.xp.log(self.xp.sum(self.xp.exp(shifted), axis=-1, keepdims=True))
        return self.xp.clip(log_mean, -self.largest, self.largest)

    @property
    def _shifted_logits(self) -> Float[Array, "*batch D C"]:
        finite = self.xp.clip(self.logits, -self.largest, self.largest)
        # softmax does not change with the shift, so neither does its derivative: no derivative of the maximum.
        return finite - detach(self.xp.max(finite, axis=-1, keepdims=True))


def event_size(q: Distribution) -> int:
    """The number of coordinates of one gradient."""
    return prod(q.event_shape)
