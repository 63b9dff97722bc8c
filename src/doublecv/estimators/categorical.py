r"""Coupled samples of categorical variables, for functions without a gradient: CARMS and the tree of DisARM.

Two samples z and z' of q whose values of variable i are coupled, the variables being independent of each other, with
the joint law :math:`P_i(c, d)`, estimate the gradient in the logits of variable i without bias by

.. math:: \tfrac12 (f(z) - f(z')) \, r_i \, (e_{z_i} - e_{z'_i}), \qquad
          r_i = \frac{\mu_i(z_i) \mu_i(z'_i)}{P_i(z_i, z'_i)},

if :math:`P_i(c, d) > 0` wherever :math:`\mu_{ic} \mu_{id} > 0` and :math:`c \ne d`: the ratio turns the pair of values
into an independent one, and equal values contribute nothing (Dong, Mnih and Tucker, 2021; Dimitriev and Zhou,
2021b). Independent samples give RLOO with two samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import comb
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, Shape, sum_over_samples
from doublecv.distributions import Categorical, Distribution
from doublecv.estimators.averages import leave_pair_out
from doublecv.estimators.base import FixedEstimator, Needs
from doublecv.estimators.couplings import Coupling, Joint, independent_groups
from doublecv.estimators.evaluation import Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@final
@dataclass(frozen=True)
class CARMS(FixedEstimator):
    r"""Estimate with CARMS: K mutually antithetic categorical samples.

    .. math:: g = \frac{1}{K (K-1)} \sum_{k < j} (f(x_k) - f(x_j)) \, r_{kj} \, (x_k - x_j),

    with one ratio r per variable of the pair (Dimitriev and Zhou, 2021b). The samples are coupled along a stick of
    categories, see `StickBreakingCopula`. It uses no gradient of f. With two categories it is ARMS.

    >>> CARMS(samples=3).evaluations
    3

    Attributes:
        samples: K >= 2; f is evaluated at exactly K points.
    """

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: f at mutually antithetic categorical samples."""
        return Needs(families=(Categorical,), minimum_samples=2, coupling=StickBreakingCopula())

    def estimate(self, q: Distribution, evaluation: Evaluation) -> Float[Array, "*batch D C"]:
        """Return the estimate of the coupling."""
        return StickBreakingCopula().estimate(q, evaluation.x, evaluation.f)


@final
@dataclass(frozen=True)
class DisARMTree(FixedEstimator):
    r"""Estimate with DisARM at the nodes of a binary tree of categories, over K/2 antithetic pairs.

    A category is a leaf of a balanced tree, and a sample a path of binary choices (Dong, Mnih and Tucker, 2021);
    see `AntitheticTree` for the equation. It uses no gradient of f. With two categories it is DisARM.

    >>> DisARMTree(samples=4).evaluations
    4

    Attributes:
        samples: K, even; f is evaluated at exactly K points.
    """

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: f at antithetic pairs of categorical samples."""
        return Needs(families=(Categorical,), minimum_samples=2, multiple_of=2, coupling=AntitheticTree())

    def estimate(self, q: Distribution, evaluation: Evaluation) -> Float[Array, "*batch D C"]:
        """Return the estimate of the coupling."""
        return AntitheticTree().estimate(q, evaluation.x, evaluation.f)


@final
@dataclass(frozen=True)
class StickBreakingCopula(Coupling):
    r"""Couple K categorical samples by mutually antithetic choices along a stick.

    The categories of each variable are visited in ascending order of their probability. At each of them but the last,
    every sample stops with the probability :math:`q_c = \mu_c / \sum_{d \ge c} \mu_d`, and the K choices are those of a
    Dirichlet copula: with :math:`d \sim` Dirichlet(1, ..., 1), sample k stops where :math:`d_k > a_c`,
    :math:`(1 - a_c)^{K-1} = q_c`, and n given ones stop together with probability :math:`\max(0, 1 - n a_c)^{K-1}`
    (Dimitriev and Zhou, 2021b). In ascending order no :math:`q_c` exceeds 1/2, so every two different
    categories can be drawn together, and :math:`r` stays small.
    """

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """Return the shape of one number per sample, variable and choice."""
        return (samples, *q.noise_shape, q.event_shape[-1] - 1)

    def draw(self, q: Distribution, noise: Float[Array, "K *batch D nodes"]) -> Float[Array, "K *batch D nodes+1"]:
        """Return the category at which each sample stops first, one-hot."""
        xp, sticks = q.xp, _break_sticks(q, noise.shape[0])
        exponential = -xp.log1p(-noise)
        threshold = xp.astype(sticks.threshold, noise.dtype)
        # d_k > a without the division, which would be 0 / 0 where all the noise is 0.
        stops = exponential > threshold * xp.sum(exponential, axis=0, keepdims=True)
        stops = xp.astype(stops, q.logits.dtype)
        last = xp.ones((*stops.shape[:-1], 1), dtype=stops.dtype, device=device(stops))
        stops = xp.concat([stops, last], axis=-1)
        passed = xp.cumulative_sum(stops, axis=-1) - stops
        first = xp.astype((stops > 0) & (passed == 0), q.logits.dtype)
        rank = xp.broadcast_to(sticks.rank, (noise.shape[0], *sticks.rank.shape))
        return xp.take_along_axis(first, rank, axis=-1)

    def joint(self, q: Distribution, samples: int) -> Joint:
        """Multiply, over the stick, the probabilities that of those who go on exactly the given ones stop."""
        xp, sticks, categories = q.xp, _break_sticks(q, samples), q.event_shape[-1]

        def together(n: int) -> Array:
            return xp.clip(1 - n * sticks.threshold, 0, 1) ** (samples - 1) if n else xp.ones_like(sticks.threshold)

        @cache
        def exactly(stopping: int, going_on: int) -> Array:
            """Return the probability that `stopping` given samples stop and `going_on` given ones do not."""
            terms = [(-1) ** j * comb(going_on, j) * together(stopping + j) for j in range(going_on + 1)]
            return xp.sum(xp.stack(terms), axis=0)

        patterns = list(product(range(categories), repeat=samples))
        by_rank = []
        for pattern in patterns:
            probability = xp.ones_like(q.logits[..., 0])
            for c in range(categories - 1):
                stopping, going_on = sum(p == c for p in pattern), sum(p > c for p in pattern)
                if stopping + going_on:
                    probability = probability * exactly(stopping, going_on)[..., c]
            by_rank.append(probability)
        # The patterns of ranks, at the ranks that the categories of a pattern have.
        place = [categories**power for power in range(samples - 1, -1, -1)]
        ranks = [[sticks.rank[..., c] for c in pattern] for pattern in patterns]
        index = xp.stack([sum(p * r for p, r in zip(place, row, strict=True)) for row in ranks])
        return Joint(patterns, xp.take_along_axis(xp.stack(by_rank), index, axis=0))

    def estimate(
        self, q: Distribution, x: Float[Array, "K *batch D C"], f: Float[Array, "K *batch"]
    ) -> Float[Array, "*batch D C"]:
        r"""Estimate with CARMS, the mean over all pairs of samples of :math:`\tfrac12 (f_k - f_j) r_{kj} (x_k - x_j)`.

        Two samples that part at category c of the stick, where one stops and the other goes on, have

        .. math:: r = \frac{q_c (1 - q_c)}{P_c(1, 0)} \prod_{b < c} \frac{(1 - q_b)^2}{P_b(0, 0)},

        with the joint probabilities :math:`P_b` of two of the copula's K choices at b: what happens behind c is
        independent and cancels. For two categories it is ARMS.
        """
        xp, K = q.xp, x.shape[0]
        sticks = _break_sticks(q, K)
        weight = xp.take_along_axis(sticks.pair_weight, sticks.rank, axis=-1)
        rank = xp.sum(x * xp.astype(sticks.rank, x.dtype), axis=-1)
        of_sample = xp.sum(x * weight, axis=-1)
        r = xp.where(rank[:, None] < rank[None], of_sample[:, None], of_sample[None])
        differences = f[:, None] - f[None]
        W = xp.sum(differences[..., None] * r, axis=1) / (K * (K - 1))
        return sum_over_samples(W[..., None] * x)

    def mean_of_independent(self, v: Float[Array, "K ..."]) -> None:
        """Return None: all samples depend on each other."""


class _Sticks(NamedTuple):
    """The categories of each variable in ascending order of their probability.

    Attributes:
        rank: the place of each category in that order.
        threshold: a_c, for each place but the last.
        pair_weight: r for two samples that part at each place; 0 at the last.
    """

    rank: Int[Array, "*batch D C"]
    threshold: Float[Array, "*batch D C-1"]
    pair_weight: Float[Array, "*batch D C"]


def _break_sticks(q: Distribution, samples: int) -> _Sticks:
    xp, mean = q.xp, q.mean
    order = xp.argsort(mean, axis=-1, stable=True)
    ascending = xp.take_along_axis(mean, order, axis=-1)
    left = xp.flip(xp.cumulative_sum(xp.flip(ascending, axis=-1), axis=-1), axis=-1)
    stop = xp.clip((ascending / left)[..., :-1], float(xp.finfo(mean.dtype).smallest_normal), 0.5)
    power = xp.log(stop) / (samples - 1)
    both_given_one = xp.clip(2 - xp.exp(-power), 0, 1) ** (samples - 1)
    apart = (1 - stop) / (1 - both_given_one)
    go_on = 1 - 2 * stop + stop * both_given_one
    # The last choice may leave nobody behind; nothing comes after it, so its ratio is not needed.
    ratio = ((1 - stop) ** 2)[..., :-1] / go_on[..., :-1]
    ones = xp.ones_like(mean[..., :1])
    before = xp.concat([ones, xp.cumulative_prod(ratio, axis=-1)], axis=-1) if ratio.shape[-1] else ones
    weight = apart * before[..., : apart.shape[-1]]
    pair_weight = xp.concat([weight, xp.zeros_like(ones)], axis=-1)
    return _Sticks(xp.argsort(order, axis=-1), -xp.expm1(power), pair_weight)


@final
@dataclass(frozen=True)
class AntitheticTree(Coupling):
    r"""Couple pairs of categorical samples by antithetic choices at the nodes of a balanced binary tree.

    The categories are the leaves. A sample goes left at node n with the probability
    :math:`\pi_n = \mu(\text{left of } n) / \mu(n)`; the two samples of a pair share the uniform noise of each node, one
    of them mirrored (Dong, Mnih and Tucker, 2021). Sample k and sample k + K/2 are a pair.
    """

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """Return the shape of one number per pair, variable and node."""
        return (samples // 2, *q.noise_shape, q.event_shape[-1] - 1)

    def draw(
        self, q: Distribution, noise: Float[Array, "pairs *batch D nodes"]
    ) -> Float[Array, "2*pairs *batch D nodes+1"]:
        """Return the leaves that the noise leads to, then those of the mirrored noise."""
        xp, nodes = q.xp, _visit_nodes(q)
        dtype = q.logits.dtype
        of_noise = xp.astype(noise < xp.astype(nodes.left, noise.dtype), dtype)
        mirrored = 1 - xp.astype(noise < xp.astype(nodes.right, noise.dtype), dtype)
        goes_left = xp.concat([of_noise, mirrored], axis=0)
        wrong_turns = (1 - goes_left) @ nodes.is_left + goes_left @ nodes.is_right
        return xp.astype(wrong_turns == 0, dtype)

    def joint(self, q: Distribution, samples: int) -> Joint:
        """Multiply, down the tree, the probabilities of two common choices, of the parting, and of each one's own."""
        xp, nodes, categories = q.xp, _visit_nodes(q), q.event_shape[-1]
        is_left, is_right = _tree(categories)
        left, right = nodes.left, nodes.right
        both_left, both_right = xp.clip(left - right, 0, 1), xp.clip(right - left, 0, 1)
        apart = xp.where(left < right, left, right)
        pairs = list(product(range(categories), repeat=2))
        probabilities = []
        for c, d in pairs:
            probability = xp.ones_like(q.logits[..., 0])
            for n in range(categories - 1):
                turns = [(bool(is_left[n, z]), bool(is_right[n, z])) for z in (c, d)]
                match [turn for turn in turns if any(turn)]:
                    case [(first, _), (second, _)]:
                        law = apart if first != second else both_left if first else both_right
                        probability = probability * law[..., n]
                    case [(only, _)]:
                        probability = probability * (left if only else right)[..., n]
            probabilities.append(probability)
        joint = independent_groups(pairs, xp.stack(probabilities), samples // 2)
        first_then_mirrored = [pattern[0::2] + pattern[1::2] for pattern in joint.patterns]
        return Joint(first_then_mirrored, joint.probabilities)

    def estimate(
        self, q: Distribution, x: Float[Array, "K *batch D C"], f: Float[Array, "K *batch"]
    ) -> Float[Array, "*batch D C"]:
        r"""Estimate with DisARM at the nodes of the tree, pulled back to the logits of the categories.

        The logit :math:`\phi_n` of node n is that of going left. With b = 1 where a sample goes left, a pair
        contributes

        .. math:: \tfrac12 (f - f') \begin{cases}
                  (b_n - b'_n) \max(\pi_n, 1 - \pi_n) & \text{where both visit } n \\
                  b_n - \pi_n & \text{where only } x \text{ does} \\
                  \pi_n - b'_n & \text{where only } x' \text{ does}
                  \end{cases}

        The second and third lines are the conditional mean of the first over the choice of the sample that would have
        visited n on another way (Dong, Mnih and Tucker, 2021).
        """
        xp, nodes, pairs = q.xp, _visit_nodes(q), x.shape[0] // 2
        b = x @ xp.matrix_transpose(nodes.is_left)
        visits = b + x @ xp.matrix_transpose(nodes.is_right)
        difference = b[:pairs] - b[pairs:]
        both = visits[:pairs] * visits[pairs:]
        larger = xp.where(nodes.left > nodes.right, nodes.left, nodes.right)
        of_one = difference - (visits[:pairs] - visits[pairs:]) * nodes.left
        choice = both * difference * larger + (1 - both) * of_one
        weight = (f[:pairs] - f[pairs:]) / x.shape[0]
        of_nodes = sum_over_samples(weight[..., None, None] * choice)
        # d phi_n / d logit_c is the probability of c given that n is left to the left, or minus that to the right.
        mean = q.mean
        leftwards = (of_nodes * nodes.per_left) @ nodes.is_left
        rightwards = (of_nodes * nodes.per_right) @ nodes.is_right
        return mean * (leftwards - rightwards)

    def mean_of_independent(self, v: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
        """Return the mean over the other pairs."""
        return leave_pair_out(v)


class _Nodes(NamedTuple):
    """The nodes of the tree over the categories.

    Attributes:
        is_left: 1 where a category is a leaf to the left of a node.
        is_right: the same to the right.
        left: the probability of going left at each node.
        right: that of going right.
        per_left: one over the probability of all leaves to the left; 0 where they have none, up to rounding.
        per_right: the same to the right.
    """

    is_left: Float[Array, "C-1 C"]
    is_right: Float[Array, "C-1 C"]
    left: Float[Array, "*batch D C-1"]
    right: Float[Array, "*batch D C-1"]
    per_left: Float[Array, "*batch D C-1"]
    per_right: Float[Array, "*batch D C-1"]


def _visit_nodes(q: Distribution) -> _Nodes:
    xp, mean = q.xp, q.mean
    is_left, is_right = (
        xp.asarray(matrix, dtype=mean.dtype, device=device(mean)) for matrix in _tree(q.event_shape[-1])
    )
    to_left, to_right = mean @ xp.matrix_transpose(is_left), mean @ xp.matrix_transpose(is_right)
    total = to_left + to_right
    known = xp.where(total > 0, total, 1)

    # The inverse of a smaller number would be infinite.
    least = float(xp.finfo(mean.dtype).smallest_normal)

    def inverse(mass: Array) -> Array:
        return xp.where(mass >= least, 1 / xp.where(mass >= least, mass, 1), 0)

    left = xp.where(total > 0, to_left / known, 0.5)
    right = xp.where(total > 0, to_right / known, 0.5)
    return _Nodes(is_left, is_right, left, right, inverse(to_left), inverse(to_right))


@cache
def _tree(categories: int) -> tuple[Float[np.ndarray, "nodes nodes+1"], Float[np.ndarray, "nodes nodes+1"]]:
    """Return which leaves are to the left and to the right of each node of the balanced tree."""
    is_left, is_right = np.zeros((2, categories - 1, categories))
    remaining = [(0, categories)]
    node = 0
    while remaining:
        start, end = remaining.pop()
        if end - start < 2:
            continue
        middle = (start + end) // 2
        is_left[node, start:middle] = 1
        is_right[node, middle:end] = 1
        node += 1
        remaining += [(middle, end), (start, middle)]
    return is_left, is_right
