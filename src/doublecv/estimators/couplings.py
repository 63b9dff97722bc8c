"""How the K samples of an estimator depend on each other, each sample keeping the distribution q.

A coupling turns uniform noise into samples, and states the exact joint distribution of the K values of one variable
(the variables stay independent), from which `doublecv.diagnostics` enumerates all outcomes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import product
from math import comb
from typing import TYPE_CHECKING, Any, NamedTuple

from doublecv.arrays import Array, Shape, namespace
from doublecv.distributions import Bernoulli, Distribution

if TYPE_CHECKING:
    from jaxtyping import Float


class Joint(NamedTuple):
    """The joint distribution of the K values of one variable.

    Attributes:
        patterns: for every pattern the index into `q.variable_values()` of each of the K samples.
        probabilities: the probability of every pattern, for every variable.
    """

    patterns: list[tuple[int, ...]]
    probabilities: Float[Array, "patterns *batch D"]


class Coupling(ABC):
    """A joint distribution of K samples whose marginals are all q."""

    @abstractmethod
    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """The shape of the uniform noise that `draw` takes for K samples."""

    @abstractmethod
    def draw(self, q: Distribution, noise: Float[Array, "..."]) -> Float[Array, "K *logits"]:
        """K samples of q from uniform noise on [0, 1)."""

    @abstractmethod
    def joint(self, q: Distribution, samples: int) -> Joint:
        """The exact joint distribution of the K values of one variable."""


class Independent(Coupling):
    """K independent samples."""

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """One number a sample and variable."""
        return (samples, *q.noise_shape)

    def draw(self, q: Distribution, noise: Float[Array, "K *batch D"]) -> Float[Array, "K *logits"]:
        """x_k ~ q."""
        return q.sample(noise)

    def joint(self, q: Distribution, samples: int) -> Joint:
        """The product of the marginals."""
        probabilities = q.variable_probabilities()
        values = range(probabilities.shape[0])
        return _independent_groups([(value,) for value in values], probabilities, samples)


class Antithetic(Coupling):
    """K/2 independent pairs for Bernoulli; a pair shares its noise, x = [u < mu] and x' = [1 - u < mu].

    Sample k and sample k + K/2 are a pair. The smaller of the two values' probabilities is never drawn twice in a
    pair: P(x = x') = |1 - 2 mu| (Dong, Mnih and Tucker, 2020, section 3; Yin et al., 2020).
    """

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """One number a pair and variable."""
        return (samples // 2, *q.noise_shape)

    def draw(self, q: Distribution, noise: Float[Array, "K/2 *batch D"]) -> Float[Array, "K *batch D"]:
        """The samples of the noise u, then those of the mirrored noise 1 - u."""
        # [1 - u < mu] as 1 - [u < 1 - mu]: 1 - u itself is 1 where u is 0, and would draw a 0 that has no probability.
        mirrored = 1 - type(q)(logits=-q.logits).sample(noise)
        return q.xp.concat([q.sample(noise), mirrored], axis=0)

    def joint(self, q: Distribution, samples: int) -> Joint:
        """P(0,0) = max(0, 1-2mu), P(0,1) = P(1,0) = min(mu, 1-mu), P(1,1) = max(0, 2mu-1)."""
        rarer = _bernoulli(q).rarer
        certain = 1 - 2 * rarer
        high = q.logits >= 0
        nothing = q.xp.zeros_like(certain)
        pair = q.xp.stack([q.xp.where(high, nothing, certain), rarer, rarer, q.xp.where(high, certain, nothing)])
        joint = _independent_groups([(0, 0), (0, 1), (1, 0), (1, 1)], pair, samples // 2)
        first_then_mirrored = [pattern[0::2] + pattern[1::2] for pattern in joint.patterns]
        return Joint(first_then_mirrored, joint.probabilities)


class DirichletCopula(Coupling):
    """K mutually antithetic samples for Bernoulli, from d ~ Dirichlet(1, ..., 1) (Dimitriev and Zhou, 2021, section 4).

    Each d_k > a has probability (1 - a)^(K-1), and n of them together max(0, 1 - n a)^(K-1): negatively dependent.
    The events d_k > a stand for the rarer value of the variable, which gives the lower correlation of the copula's two
    orientations; K = 2 is the antithetic pair.
    """

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """One number a sample and variable."""
        return (samples, *q.noise_shape)

    def draw(self, q: Distribution, noise: Float[Array, "K *batch D"]) -> Float[Array, "K *batch D"]:
        """d_k = e_k / sum_j e_j with exponential e; x_k is the rarer value where d_k > a."""
        xp = q.xp
        exponential = -xp.log1p(-noise)
        threshold = xp.astype(self._threshold(q, noise.shape[0]), noise.dtype)
        # d_k > a without the division, which would be 0 / 0 where all the noise is 0.
        rare = exponential > threshold * xp.sum(exponential, axis=0, keepdims=True)
        return xp.astype(rare == (q.logits < 0), q.logits.dtype)

    def joint(self, q: Distribution, samples: int) -> Joint:
        """Inclusion and exclusion over P(d_1 > a, ..., d_n > a) = max(0, 1 - n a)^(K-1)."""
        xp = q.xp
        threshold = self._threshold(q, samples)

        def together(n: int) -> Array:
            return xp.clip(1 - n * threshold, 0, 1) ** (samples - 1)

        def exactly(n: int) -> Array:
            """The probability that n given samples, and no others, have the rarer value."""
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
        """1 / (1 - rho), with rho the correlation of two samples of one variable.

        With m = min(mu, 1-mu) and P = max(0, 2 m^(1/(K-1)) - 1)^(K-1), the probability that two samples both have the
        rarer value, 1 - rho = (m - P) / (m (1-m)); P / m is computed without dividing by an m that may be 0.
        """
        xp = q.xp
        rarer = _bernoulli(q).rarer
        both_given_one = xp.clip(2 - xp.exp(-self._log_rarer(q) / (samples - 1)), 0, 1) ** (samples - 1)
        return (1 - rarer) / (1 - both_given_one)

    def _log_rarer(self, q: Distribution) -> Float[Array, "*batch D"]:
        """log min(mu, 1 - mu), kept where its exponential and that of its negative are finite."""
        bernoulli = _bernoulli(q)
        floor = float(q.xp.finfo(q.logits.dtype).smallest_normal)
        return q.xp.log(q.xp.clip(bernoulli.rarer, floor, 0.5))

    def _threshold(self, q: Distribution, samples: int) -> Float[Array, "*batch D"]:
        """a with (1 - a)^(K-1) = min(mu, 1 - mu)."""
        return -q.xp.expm1(self._log_rarer(q) / (samples - 1))


def _bernoulli(q: Distribution) -> Bernoulli:
    assert isinstance(q, Bernoulli), "estimators with this coupling admit Bernoulli alone"
    return q


def _independent_groups(patterns: list[tuple[int, ...]], probabilities: Any, groups: int) -> Joint:
    """The joint distribution of `groups` independent groups of samples, one after the other."""
    combined: list[tuple[tuple[int, ...], Any]] = [((), 1.0)]
    for _ in range(groups):
        combined = [
            (left + right, probability * probabilities[index])
            for left, probability in combined
            for index, right in enumerate(patterns)
        ]
    stack = namespace(probabilities).stack
    return Joint([pattern for pattern, _ in combined], stack([probability for _, probability in combined]))
