r"""Factorised discrete distributions: `Bernoulli` and `Categorical` (one-hot).

With :math:`\mu = E[x]`, the score of both is :math:`s(x) = \nabla_{logits} \log q(x) = x - \mu`, and the matrix
:math:`M = E[s(x) (x - \mu)^T]` is block diagonal. Infinite logits are allowed: the variable is then certain, and no
method returns NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from array_api_compat import device

from doublecv.arrays import (
    MAX_UNROLLED,
    Array,
    Shape,
    detach,
    is_jax_array,
    is_traced,
    matrix_product,
    namespace,
    register_where_jax_is_in_use,
    require_floating,
    sigmoid,
    sum_over_samples,
    widened,
)

if TYPE_CHECKING:
    from jaxtyping import Float


MAX_AT_ONCE = 2**18
"""The largest number of products of pairs of samples that PyTorch computes in one operation."""

MIN_FOR_BLAS = 32
"""The smallest event for which NumPy calls BLAS for every inner product; a call takes as long as about 30 numbers."""


@cache
def _ones(size: int, dtype: np.dtype[Any]) -> Float[np.ndarray, "size"]:
    """Return ones, made once for every size: NumPy takes as long to make them as to use them."""
    ones = np.ones(size, dtype)
    ones.flags.writeable = False
    return ones


class Distribution(ABC):
    r"""D independent discrete variables per batch element; the base of `Bernoulli` and `Categorical`.

    Args:
        logits: the logits, an array of a floating type.
        probs: the probabilities, in place of the logits.
    """

    logits: Float[Array, "*logits"]

    event_axes: ClassVar[int]
    layout: ClassVar[str]

    _remembered: dict[str, Array] | None = None

    visited: ClassVar[bool] = False
    """Whether the logits have a leading sample axis: the logits that each sample visited on its own path."""

    def __init__(self, logits: Float[Array, "*logits"] | None = None, *, probs: Array | None = None) -> None:
        if (logits is None) == (probs is None):
            given = "neither" if logits is None else "both"
            raise TypeError(f"{type(self).__name__} takes either logits or probs, got {given}")
        if probs is not None:
            require_floating("probs", probs)
            if not is_traced(probs) and not bool(namespace(probs).all((probs >= 0) & (probs <= 1))):
                raise ValueError("probs must be probabilities from 0 to 1; got a value outside of that range, or NaN")
            logits = self._logits_of_probs(probs)
        require_floating("logits", logits)
        object.__setattr__(self, "logits", logits)
        self._check_shape()
        register_where_jax_is_in_use(self, "logits")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; make a new one to change {name}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(logits={self.logits!r})"

    @final
    def _check_shape(self) -> None:
        shape = tuple(self.logits.shape)
        if len(shape) < self.event_axes:
            hint = "; for one variable per example add an axis: logits[..., None, :]" if len(shape) == 1 else ""
            raise ValueError(f"logits of {type(self).__name__} must have shape {self.layout}, got shape {shape}{hint}")
        if 0 in self.event_shape:
            raise ValueError(
                f"logits of {type(self).__name__} must have shape {self.layout} with at least one variable"
                f"{' and one category' if self.event_axes == 2 else ''}, got shape {shape}"
            )

    @property
    def batch_shape(self) -> Shape:
        """Return the axes of independent problems, each with its own logits."""
        return tuple(self.logits.shape[: self.logits.ndim - self.event_axes])

    @property
    def event_shape(self) -> Shape:
        """Return the axes of one sample: (D,) for Bernoulli, (D, C) for Categorical."""
        return tuple(self.logits.shape[self.logits.ndim - self.event_axes :])

    @property
    def noise_shape(self) -> Shape:
        """Return the shape of the uniform noise that one sample takes: one number per variable."""
        return (*self.batch_shape, self.event_shape[0])

    @property
    def xp(self) -> Any:
        """Return the array API namespace of the logits."""
        return namespace(self.logits)

    def with_logits(self, logits: Float[Array, "*logits"]) -> Self:
        """Return a distribution of the same family with other logits."""
        return type(self)(logits=logits)

    @final
    def remember(self, mean: Float[Array, "*logits"] | None = None) -> Self:
        """Return a copy that computes its mean only once; the copy must not outlive the trace that made it.

        Args:
            mean: the mean, if it was computed before.
        """
        copy = self.with_logits(self.logits)
        object.__setattr__(copy, "_remembered", {} if mean is None else {"mean": mean})
        return copy

    @final
    def _once(self, name: str, compute: Callable[[], Array]) -> Array:
        """Return what `compute` returns, which a copy made by `remember` computes once."""
        remembered = self._remembered
        if remembered is None:
            return compute()
        if name not in remembered:
            remembered[name] = compute()
        return remembered[name]

    @final
    def detach(self) -> Self:
        """Return the same distribution with its logits held constant under differentiation."""
        return self.with_logits(detach(self.logits))

    @final
    def widen(self) -> Self:
        """Return the same distribution with logits of at least 32 bits, in which sums over variables are accurate."""
        return self.with_logits(widened(self.logits))

    def broadcast_to(self, batch_shape: Shape) -> Self:
        """Repeat the distribution along new leading batch axes."""
        return self.with_logits(self.xp.broadcast_to(self.logits, (*batch_shape, *self.event_shape)))

    def subsample(self, step: int) -> Self:
        """Return the distribution of every `step`-th batch element, with one batch axis."""
        return self.with_logits(self.subsample_array(step, self.logits, self.event_shape))

    def subsample_array(
        self, step: int, v: Float[Array, "*leading_batch_trailing"], trailing: Shape = ()
    ) -> Float[Array, "*leading_some_trailing"]:
        """Return the entries of v for every `step`-th batch element; the batch axes become one."""
        axes_behind = len(self.batch_shape) + len(trailing)
        leading = tuple(v.shape)[: v.ndim - axes_behind]
        flat = self.xp.reshape(v, (*leading, prod(self.batch_shape), *trailing))
        return flat[(..., slice(None, None, step), *(slice(None),) * len(trailing))]

    @final
    def score(self, x: Float[Array, "*points"]) -> Float[Array, "*points"]:
        r"""Return the score :math:`s(x) = x - \mu`; a copy made by `remember` keeps that of the last points."""
        remembered = self._remembered
        if remembered is None:
            return x - self.mean
        if remembered.get("points") is not x:
            remembered["points"], remembered["score"] = x, x - self.mean
        return remembered["score"]

    @final
    def dot(self, a: Float[Array, "*#points"], b: Float[Array, "*#points"]) -> Float[Array, "*shape"]:
        """Return the inner product over the event axes."""
        if isinstance(a, np.ndarray) and self.event_axes == 1 and a.shape[-1] >= MIN_FOR_BLAS:
            return np.vecdot(a, b)
        if isinstance(a, np.ndarray) or (a.ndim != b.ndim and is_jax_array(a)):
            return self._sum_over_event(a * b)
        return self.xp.sum(a * b, axis=tuple(range(-self.event_axes, 0)))

    @final
    def _sum_over_event(self, v: Float[Array, "*points"]) -> Float[Array, "*shape"]:
        """Sum over the event axes by a product with ones, for NumPy and for arrays broadcast over a leading axis.

        NumPy sums several times more slowly. So does XLA on a CPU sum a broadcast product, and with jaxlib 0.10.2 it
        reads wrong elements where such a sum meets another array that is broadcast over a leading axis (jax-ml/jax
        issue 39103).
        """
        behind = v.ndim - self.event_axes
        leading, size = tuple(v.shape)[:behind], prod(v.shape[behind:])
        if isinstance(v, np.ndarray):
            summed: Array = v.reshape(*leading, size) @ _ones(size, v.dtype)
            return summed
        ones = self.xp.ones(size, dtype=v.dtype, device=device(v))
        return matrix_product(self.xp.reshape(v, (*leading, size)), ones)

    @final
    def pairwise_dot(self, a: Float[Array, "A *points"], b: Float[Array, "B *points"]) -> Float[Array, "A B *shape"]:
        """Return the inner product over the event axes of every entry of a with every entry of b."""
        if isinstance(a, np.ndarray):
            # One product of matrices per batch element; at 200 variables it takes a sixth of the time of the others.
            products = self._by_element(a) @ self._by_element(b).transpose(0, 2, 1)
            shape = (a.shape[0], b.shape[0], *a.shape[1 : a.ndim - self.event_axes])
            return np.ascontiguousarray(products.transpose(1, 2, 0)).reshape(shape)
        if not is_jax_array(a) and a.shape[0] * prod(b.shape) <= MAX_AT_ONCE:
            return self._sum_over_event(a[:, None] * b[None])
        if a.shape[0] > MAX_UNROLLED:
            return self.dot(a[:, None], b[None])
        return self.xp.stack([self._sum_over_event(a[k] * b) for k in range(a.shape[0])])

    @final
    def scale(self, weight: Float[Array, "*shape"], v: Float[Array, "*points"]) -> Float[Array, "*points"]:
        """Multiply v by `weight`, broadcast over the event axes."""
        return weight[(..., *(None,) * self.event_axes)] * v

    @final
    def weighted_sum(self, weight: Float[Array, "K *shape"], v: Float[Array, "K *points"]) -> Float[Array, "*points"]:
        r"""Return :math:`\sum_k w_k v_k` over the leading axis."""
        if isinstance(v, np.ndarray):
            products = weight.reshape(weight.shape[0], -1).T[:, None, :] @ self._by_element(v)
            return products.reshape(v.shape[1:])
        return sum_over_samples(self.scale(weight, v))

    @final
    def _by_element(self, v: Float[np.ndarray, "K *points"]) -> Float[np.ndarray, "elements K size"]:
        """Return a view with one matrix per batch element, whose rows are the entries of the leading axis."""
        behind = v.ndim - self.event_axes
        return v.reshape(v.shape[0], prod(v.shape[1:behind]), prod(v.shape[behind:])).transpose(1, 0, 2)

    @final
    def check_samples(self, x: Array) -> None:
        """Raise unless x has the shape of samples, `[*samples, *batch, *event]`."""
        self._check_trailing("x", x, (*self.batch_shape, *self.event_shape))

    @property
    def _max_logit(self) -> float:
        """Return the finite number that stands for an infinite logit, so that differences are not NaN."""
        return float(self.xp.finfo(self.logits.dtype).max) / 4

    @final
    def _check_trailing(self, argument: str, array: Array, wanted: Shape) -> None:
        shape = tuple(array.shape)
        if shape[max(0, len(shape) - len(wanted)) :] != wanted:
            raise ValueError(f"{argument} must have a shape that ends in {wanted}, got shape {shape}")

    @final
    def _check_same_family(self, other: Distribution) -> None:
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {type(other).__name__}")
        if other.event_shape != self.event_shape:
            raise ValueError(f"other must have event shape {self.event_shape}, got {other.event_shape}")

    @final
    def kl_divergence(self, other: Distribution) -> Float[Array, "*batch"]:
        """Return the Kullback-Leibler divergence from `other`; the same as `kl`."""
        return self.kl(other)

    @staticmethod
    @abstractmethod
    def _logits_of_probs(probs: Array) -> Array:
        """Return logits that have the probabilities `probs`."""

    @property
    @abstractmethod
    def mean(self) -> Float[Array, "*logits"]:
        r"""Return :math:`\mu = E[x]`."""

    @abstractmethod
    def covariance_product(self, v: Float[Array, "*#points"]) -> Float[Array, "*points"]:
        r"""Return the product :math:`M v` with :math:`M = E[s(x) (x - \mu)^T]`."""

    @abstractmethod
    def score_square_moment(self, v: Float[Array, "*points"]) -> Float[Array, "*points"]:
        r"""Return :math:`T(v) = E[s(x) ((x - \mu)^T v)^2]`, to which only the score's own variable contributes."""

    @abstractmethod
    def log_prob(self, x: Float[Array, "*points"]) -> Float[Array, "*leading"]:
        r"""Return :math:`\log q(x)`, summed over the event; it is linear in x between the corners."""

    @abstractmethod
    def entropy(self) -> Float[Array, "*batch"]:
        r"""Return :math:`-E[\log q(x)]`, summed over the event."""

    def visited_entropy(self) -> Float[Array, "*batch"]:
        r"""Return the entropy; on a path its estimate, the mean over the samples of that at the visited logits."""
        return self.entropy()

    @abstractmethod
    def kl(self, other: Distribution) -> Float[Array, "*batch"]:
        r"""Return :math:`E[\log q(x) - \log p(x)]` with p = `other`, summed over the event."""

    @abstractmethod
    def sample(self, noise: Float[Array, "*leading D"]) -> Float[Array, "*points"]:
        """Turn noise that is uniform on [0, 1), one number per variable, into samples."""

    @abstractmethod
    def variable_values(self) -> Float[Array, "V *variable"]:
        """Return the values that one variable can take."""

    @abstractmethod
    def variable_probabilities(self) -> Float[Array, "V *batch D"]:
        """Return the probability of each of `variable_values`, for every variable."""


@final
class Bernoulli(Distribution):
    r"""Represent D independent binary variables.

    .. math:: q(x) = \prod_i \mu_i^{x_i} (1 - \mu_i)^{1 - x_i}, \qquad \mu = \mathrm{sigmoid}(logits)

    (Titsias and Shi, 2022, equation 9). The logits have shape `[*batch, D]`.

    >>> import numpy as np
    >>> Bernoulli(logits=np.zeros((5, 3))).mean.shape
    (5, 3)
    """

    event_axes: ClassVar[int] = 1
    layout: ClassVar[str] = "[*batch, D]"

    @staticmethod
    def _logits_of_probs(probs: Array) -> Array:
        xp = namespace(probs)
        return xp.log(probs) - xp.log1p(-probs)

    @property
    def mean(self) -> Float[Array, "*batch D"]:
        r"""Return :math:`\mu = \mathrm{sigmoid}(logits)`."""
        return self._once("mean", lambda: sigmoid(self.logits))

    @property
    def one_minus_mean(self) -> Float[Array, "*batch D"]:
        r"""Return :math:`1 - \mu` without the cancellation where :math:`\mu` is close to 1."""
        return self._once("one_minus_mean", lambda: sigmoid(-self.logits))

    @property
    def min_prob(self) -> Float[Array, "*batch D"]:
        r"""Return :math:`\min(\mu, 1 - \mu)`, the probability of a variable's rarer value."""
        small = self._exp_neg_abs
        return small / (1 + small)

    def covariance_product(self, v: Float[Array, "*#leading D"]) -> Float[Array, "*leading D"]:
        r"""Return :math:`M v = \mu (1 - \mu) v`."""
        return self._once("variance", lambda: self.mean * self.one_minus_mean) * v

    def score_square_moment(self, v: Float[Array, "*leading D"]) -> Float[Array, "*leading D"]:
        r"""Return :math:`T(v) = \mu (1 - \mu) (1 - 2 \mu) v^2`."""
        # M v first: a certain variable makes it 0, however large v is, whose square may overflow.
        return self.covariance_product(v) * v * (self.one_minus_mean - self.mean)

    def log_prob(self, x: Float[Array, "*leading D"]) -> Float[Array, "*leading"]:
        r"""Return :math:`\sum_i x_i l_i - \log(1 + e^{l_i})` with the logits l."""
        self.check_samples(x)
        logits = self._finite_logits
        positive_part = self.xp.where(logits >= 0, logits, self.xp.zeros_like(logits))
        # x l - log(1 + exp(l)), with x l - max(l, 0) first: exact where the two large numbers cancel. A change of sign
        # would be one more operation on all samples in PyTorch, and another one in the derivative in x.
        log_probs = (x * logits - positive_part) - self.xp.log1p(self._exp_neg_abs)
        return self.xp.sum(log_probs, axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        r"""Return :math:`\sum_i \log(1 + e^{l_i}) - \mu_i l_i` with the logits l."""
        logits = self._finite_logits
        distance = self.xp.where(logits >= 0, logits, -logits)
        return self.xp.sum(self.xp.log1p(self._exp_neg_abs) + distance * self.min_prob, axis=-1)

    def kl(self, other: Distribution) -> Float[Array, "*batch"]:
        r"""Return the Kullback-Leibler divergence.

        .. math:: \sum_i \mu_i \log\frac{\mu_i}{\mu'_i} + (1 - \mu_i) \log\frac{1 - \mu_i}{1 - \mu'_i}
        """
        self._check_same_family(other)
        assert isinstance(other, Bernoulli)
        of_one, of_zero = self._surprises
        other_of_one, other_of_zero = other._surprises
        divergence = self.mean * (other_of_one - of_one) + self.one_minus_mean * (other_of_zero - of_zero)
        return self.xp.sum(divergence, axis=-1)

    def sample(self, noise: Float[Array, "*leading D"]) -> Float[Array, "*leading D"]:
        r"""Return 1 where the noise is below :math:`\mu`, which has probability :math:`\mu` exactly."""
        self._check_trailing("noise", noise, self.noise_shape)
        return self.xp.astype(noise < self.xp.astype(self.mean, noise.dtype), self.logits.dtype)

    def variable_values(self) -> Float[Array, "2"]:
        """Return 0 and 1."""
        return self.xp.arange(2, dtype=self.logits.dtype)

    def variable_probabilities(self) -> Float[Array, "2 *batch D"]:
        r"""Return :math:`1 - \mu` and :math:`\mu`."""
        return self.xp.stack([self.one_minus_mean, self.mean])

    @property
    def _exp_neg_abs(self) -> Float[Array, "*batch D"]:
        """Return exp(-|logits|), from which every function of the logits is computed without overflow.

        It is written with `where` because the array libraries define the derivative of an absolute value at 0 as 0,
        which would make a derivative at logits 0 vanish silently.
        """
        return self.xp.exp(self.xp.where(self.logits >= 0, -self.logits, self.logits))

    @property
    def _finite_logits(self) -> Float[Array, "*batch D"]:
        return self.xp.clip(self.logits, -self._max_logit, self._max_logit)

    @property
    def _surprises(self) -> tuple[Float[Array, "*batch D"], Float[Array, "*batch D"]]:
        """Return -log mu and -log(1 - mu), with the branches of `_exp_neg_abs` so that derivatives at 0 are right."""
        logits, zeros = self._finite_logits, self.xp.zeros_like(self.logits)
        rest = self.xp.log1p(self._exp_neg_abs)
        of_one = self.xp.where(self.logits >= 0, zeros, -logits) + rest
        of_zero = self.xp.where(self.logits >= 0, logits, zeros) + rest
        return of_one, of_zero


@final
class Categorical(Distribution):
    r"""Represent D independent one-hot variables with C categories each, :math:`\mu = \mathrm{softmax}(logits)`.

    The logits have shape `[*batch, D, C]`; one variable per example is D = 1.

    >>> import numpy as np
    >>> Categorical(logits=np.zeros((5, 1, 4))).mean.shape
    (5, 1, 4)
    """

    event_axes: ClassVar[int] = 2
    layout: ClassVar[str] = "[*batch, D, C]"

    @staticmethod
    def _logits_of_probs(probs: Array) -> Array:
        return namespace(probs).log(probs)

    @property
    def mean(self) -> Float[Array, "*batch D C"]:
        r"""Return :math:`\mu = \mathrm{softmax}(logits)`."""
        return self._once("mean", self._softmax)

    def _softmax(self) -> Float[Array, "*batch D C"]:
        weights = self.xp.exp(self._shifted_logits)
        return weights / self.xp.sum(weights, axis=-1, keepdims=True)

    def covariance_product(self, v: Float[Array, "*#leading D C"]) -> Float[Array, "*leading D C"]:
        r"""Return :math:`M v = \mu (v - \langle \mu, v \rangle)` for each variable."""
        mean = self.mean
        return mean * (v - self.xp.sum(mean * v, axis=-1, keepdims=True))

    def score_square_moment(self, v: Float[Array, "*leading D C"]) -> Float[Array, "*leading D C"]:
        r"""Return :math:`\mu (u^2 - \langle \mu, u^2 \rangle)` with :math:`u = v - \langle \mu, v \rangle`."""
        mean = self.mean
        centered = v - self.xp.sum(mean * v, axis=-1, keepdims=True)
        squares = mean * centered * centered
        return squares - mean * self.xp.sum(squares, axis=-1, keepdims=True)

    def log_prob(self, x: Float[Array, "*leading D C"]) -> Float[Array, "*leading"]:
        r"""Return :math:`\sum_{ic} x_{ic} \log \mu_{ic}`."""
        self.check_samples(x)
        return self.dot(x, self.log_mean)

    def entropy(self) -> Float[Array, "*batch"]:
        r"""Return :math:`-\sum_{ic} \mu_{ic} \log \mu_{ic}`."""
        return -self.dot(self.mean, self.log_mean)

    def kl(self, other: Distribution) -> Float[Array, "*batch"]:
        r"""Return :math:`\sum_{ic} \mu_{ic} \log(\mu_{ic} / \mu'_{ic})`."""
        self._check_same_family(other)
        assert isinstance(other, Categorical)
        return self.dot(self.mean, self.log_mean - other.log_mean)

    def sample(self, noise: Float[Array, "*leading D"]) -> Float[Array, "*leading D C"]:
        """Return, one-hot, the category in whose interval of the cumulative probabilities the noise falls."""
        self._check_trailing("noise", noise, self.noise_shape)
        cumulative = self.xp.cumulative_sum(self.xp.astype(self.mean, noise.dtype), axis=-1)
        # Rounding may leave the last sum short of 1: without the division a category of probability 0 could be drawn.
        upper = cumulative / cumulative[..., -1:]
        lower = self.xp.concat([self.xp.zeros_like(upper[..., :1]), upper[..., :-1]], axis=-1)
        inside = (noise[..., None] >= lower) & (noise[..., None] < upper)
        return self.xp.astype(inside, self.logits.dtype)

    def variable_values(self) -> Float[Array, "C C"]:
        """Return the C one-hot vectors."""
        categories = self.xp.arange(self.event_shape[-1])
        return self.xp.astype(categories[:, None] == categories[None, :], self.logits.dtype)

    def variable_probabilities(self) -> Float[Array, "C *batch D"]:
        r"""Return :math:`\mu` with the categories in front."""
        return self.xp.moveaxis(self.mean, -1, 0)

    @property
    def log_mean(self) -> Float[Array, "*batch D C"]:
        r"""Return :math:`\log \mu`, a huge negative number for probability 0, so that 0 log 0 is 0."""
        shifted = self._shifted_logits
        log_mean = shifted - self.xp.log(self.xp.sum(self.xp.exp(shifted), axis=-1, keepdims=True))
        return self.xp.clip(log_mean, -self._max_logit, self._max_logit)

    @property
    def _shifted_logits(self) -> Float[Array, "*batch D C"]:
        finite = self.xp.clip(self.logits, -self._max_logit, self._max_logit)
        # softmax does not change with the shift, so the maximum needs no derivative.
        return finite - detach(self.xp.max(finite, axis=-1, keepdims=True))


def event_size(q: Distribution) -> int:
    """Return the number of coordinates of one gradient."""
    return prod(q.event_shape)
