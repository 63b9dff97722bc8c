r"""Couplings: how the K samples of an estimator depend on each other while each has the distribution q.

A coupling turns uniform noise into samples, estimates the gradient of any f from them without bias, and states the
exact joint distribution of the K values of one variable (the variables stay independent), from which `doublecv.exact`
enumerates all outcomes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import product
from math import comb
from typing import TYPE_CHECKING, Any, NamedTuple, final

from doublecv.arrays import Array, Shape, namespace, sum_over_samples
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators.averages import leave_one_out, leave_pair_out, score_gradient

if TYPE_CHECKING:
    from jaxtyping import Float


class Joint(NamedTuple):
    """Hold the joint distribution of the K values of one variable.

    Attributes:
        patterns: for every pattern, the index into `q.variable_values()` of each of the K samples.
        probabilities: the probability of every pattern, for every variable.
    """

    patterns: list[tuple[int, ...]]
    probabilities: Float[Array, "patterns *batch D"]


class Coupling(ABC):
    """Define a joint distribution of K samples whose marginals are all q."""

    @abstractmethod
    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """Return the shape of the uniform noise that `draw` takes for K samples."""

    @abstractmethod
    def draw(self, q: Distribution, noise: Float[Array, "..."]) -> Float[Array, "K *logits"]:
        """Draw K samples of q from uniform noise on [0, 1)."""

    @abstractmethod
    def joint(self, q: Distribution, samples: int) -> Joint:
        """Return the exact joint distribution of the K values of one variable."""

    @abstractmethod
    def estimate(
        self, q: Distribution, x: Float[Array, "K *logits"], f: Float[Array, "K *batch"]
    ) -> Float[Array, "*logits"] | Float[Array, "K *logits"]:
        """Estimate the gradient of the mean of f without bias; the estimate is linear in f.

        Where q has visited logits, the estimate is a sum of K terms, and this returns the terms.
        """

    @abstractmethod
    def mean_of_independent(self, v: Float[Array, "K ..."]) -> Float[Array, "K ..."] | None:
        """Return for every sample the mean of v over the samples independent of it; None where there are none."""


@final
@dataclass(frozen=True)
class Independent(Coupling):
    """Draw K independent samples."""

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """Return the shape of the noise: one number per sample and variable."""
        return (samples, *q.noise_shape)

    def draw(self, q: Distribution, noise: Float[Array, "K *batch D"]) -> Float[Array, "K *logits"]:
        """Draw the samples independently."""
        return q.sample(noise)

    def joint(self, q: Distribution, samples: int) -> Joint:
        """Return the product of the marginals."""
        probabilities = q.variable_probabilities()
        values = range(probabilities.shape[0])
        return independent_groups([(value,) for value in values], probabilities, samples)

    def estimate(
        self, q: Distribution, x: Float[Array, "K *logits"], f: Float[Array, "K *batch"]
    ) -> Float[Array, "*logits"] | Float[Array, "K *logits"]:
        """Estimate with RLOO."""
        return score_gradient(q, x, f - leave_one_out(f))

    def mean_of_independent(self, v: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
        """Return the leave-one-out mean."""
        return leave_one_out(v)


@final
@dataclass(frozen=True)
class Antithetic(Coupling):
    r"""Draw K/2 independent pairs for Bernoulli; a pair shares its noise, :math:`x = [u < \mu]`, :math:`x' = [1-u <
    \mu]`.

    Sample k and sample k + K/2 are a pair. The rarer value is never drawn twice in a pair:
    :math:`P(x = x') = |1 - 2 \mu|` (Dong, Mnih and Tucker, 2020, section 3; Yin et al., 2020).
    """

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """Return one number per pair and variable."""
        return (samples // 2, *q.noise_shape)

    def draw(self, q: Distribution, noise: Float[Array, "pairs *batch D"]) -> Float[Array, "2*pairs *batch D"]:
        """Draw from the noise u, then from the mirrored noise 1 - u."""
        # [1 - u < mu] as 1 - [u < 1 - mu]: 1 - u itself is 1 where u is 0, and would draw a 0 that has no probability.
        mirrored = 1 - type(q)(logits=-q.logits).sample(noise)
        return q.xp.concat([q.sample(noise), mirrored], axis=0)

    def joint(self, q: Distribution, samples: int) -> Joint:
        """Return P(0,0) = max(0, 1-2mu), P(0,1) = P(1,0) = min(mu, 1-mu), P(1,1) = max(0, 2mu-1)."""
        rarer = _bernoulli(q).min_prob
        certain = 1 - 2 * rarer
        high = q.logits >= 0
        nothing = q.xp.zeros_like(certain)
        pair = q.xp.stack([q.xp.where(high, nothing, certain), rarer, rarer, q.xp.where(high, certain, nothing)])
        joint = independent_groups([(0, 0), (0, 1), (1, 0), (1, 1)], pair, samples // 2)
        first_then_mirrored = [pattern[0::2] + pattern[1::2] for pattern in joint.patterns]
        return Joint(first_then_mirrored, joint.probabilities)

    def estimate(
        self, q: Distribution, x: Float[Array, "K *batch D"], f: Float[Array, "K *batch"]
    ) -> Float[Array, "*batch D"]:
        r"""Estimate with DisARM, the mean over pairs of :math:`\frac12 (f - f') (x - x') \,
        \mathrm{sigmoid}(|logits|)`.
        """
        samples, pairs = x.shape[0], x.shape[0] // 2
        differences = q.scale((f[:pairs] - f[pairs:]) / samples, x[:pairs] - x[pairs:])
        return sum_over_samples(differences) * (1 - _bernoulli(q).min_prob)

    def mean_of_independent(self, v: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
        """Return the mean over the other pairs."""
        return leave_pair_out(v)


@final
@dataclass(frozen=True)
class DirichletCopula(Coupling):
    r"""Draw K mutually antithetic samples for Bernoulli from :math:`d \sim \mathrm{Dirichlet}(1, \dots, 1)`.

    The event :math:`d_k > a` has probability :math:`(1 - a)^{K-1}`, and n of them occur together with probability
    :math:`\max(0, 1 - n a)^{K-1}`, so they are negatively dependent (Dimitriev and Zhou, 2021, section 4). The events
    stand for the rarer value of the variable, which gives the lower correlation of the copula's two orientations; K = 2
    is the antithetic pair.
    """

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """Return the shape of the noise: one number per sample and variable."""
        return (samples, *q.noise_shape)

    def draw(self, q: Distribution, noise: Float[Array, "K *batch D"]) -> Float[Array, "K *batch D"]:
        """Draw d_k = e_k / sum_j e_j with exponential e; x_k is the rarer value where d_k > a."""
        xp = q.xp
        exponential = -xp.log1p(-noise)
        threshold = xp.astype(self._threshold(q, noise.shape[0]), noise.dtype)
        # d_k > a without the division, which would be 0 / 0 where all the noise is 0.
        rare = exponential > threshold * xp.sum(exponential, axis=0, keepdims=True)
        return xp.astype(rare == (q.logits < 0), q.logits.dtype)

    def joint(self, q: Distribution, samples: int) -> Joint:
        """Return the joint law by inclusion and exclusion over P(d_1 > a, ..., d_n > a) = max(0, 1 - n a)^(K-1)."""
        xp = q.xp
        threshold = self._threshold(q, samples)

        def together(n: int) -> Array:
            return xp.clip(1 - n * threshold, 0, 1) ** (samples - 1)

        def exactly(n: int) -> Array:
            """Return the probability that n given samples, and no others, have the rarer value."""
            others = samples - n
            terms = [(-1) ** j * comb(others, j) * together(n + j) for j in range(others + 1)]
            return xp.sum(xp.stack(terms), axis=0)

        by_count = [exactly(n) for n in range(samples + 1)]
        patterns = list(product((0, 1), repeat=samples))
        rare_is_one = q.logits < 0
        probabilities = [
            xp.where(rare_is_one, by_count[sum(pattern)], by_count[samples - sum(pattern)]) for pattern in patterns
        ]
        return Joint(patterns, xp.stack(probabilities))

    def independence(self, q: Distribution, samples: int) -> Float[Array, "*batch D"]:
        r"""Return :math:`1 / (1 - \rho)` with the correlation :math:`\rho` of two samples of one variable.

        With :math:`m = \min(\mu, 1-\mu)` and :math:`P = \max(0, 2 m^{1/(K-1)} - 1)^{K-1}`, the probability that two
        samples both have the rarer value, :math:`1 - \rho = (m - P) / (m (1-m))`. P / m is computed without dividing by
        m, which may be 0.
        """
        xp = q.xp
        rarer = _bernoulli(q).min_prob
        both_given_one = xp.clip(2 - xp.exp(-self._log_rarer(q) / (samples - 1)), 0, 1) ** (samples - 1)
        return (1 - rarer) / (1 - both_given_one)

    def estimate(
        self, q: Distribution, x: Float[Array, "K *batch D"], f: Float[Array, "K *batch"]
    ) -> Float[Array, "*batch D"]:
        r"""Estimate with ARMS, :math:`\frac{1}{K} \sum_k (f_k - \bar f_{-k}) s_k / (1 - \rho)`."""
        return score_gradient(q, x, f - leave_one_out(f)) * self.independence(q, x.shape[0])

    def mean_of_independent(self, v: Float[Array, "K ..."]) -> None:
        """Return None: all samples depend on each other."""

    def _log_rarer(self, q: Distribution) -> Float[Array, "*batch D"]:
        """Return log min(mu, 1 - mu), clipped so that its exponential and that of its negative are finite."""
        bernoulli = _bernoulli(q)
        floor = float(q.xp.finfo(q.logits.dtype).smallest_normal)
        return q.xp.log(q.xp.clip(bernoulli.min_prob, floor, 0.5))

    def _threshold(self, q: Distribution, samples: int) -> Float[Array, "*batch D"]:
        """Return a with (1 - a)^(K-1) = min(mu, 1 - mu)."""
        return -q.xp.expm1(self._log_rarer(q) / (samples - 1))


def _bernoulli(q: Distribution) -> Bernoulli:
    assert isinstance(q, Bernoulli), "estimators with this coupling support only Bernoulli"
    return q


def independent_groups(patterns: list[tuple[int, ...]], probabilities: Any, groups: int) -> Joint:
    """Return the joint distribution of `groups` independent groups of samples, one after the other."""
    combined: list[tuple[tuple[int, ...], Any]] = [((), 1.0)]
    for _ in range(groups):
        combined = [
            (left + right, probability * probabilities[index])
            for left, probability in combined
            for index, right in enumerate(patterns)
        ]
    stack = namespace(probabilities).stack
    return Joint([pattern for pattern, _ in combined], stack([probability for _, probability in combined]))
