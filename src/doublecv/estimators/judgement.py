r"""Candidates for the coefficients of a linear estimator, and how far each is trusted.

:mod:`doublecv.estimators.moments` has the equations and explains the devices; this module computes them from running
sums.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, at_least, at_most, namespace
from doublecv.estimators.scale import TINY

if TYPE_CHECKING:
    from jaxtyping import Float

MEMORIES = (0.97, 0.999)
"""The decays of all sums per step."""

RIDGE_OF_SET, RIDGE_OF_ONE = 0.01, 3.0
r"""The factor :math:`\kappa` of the ridge in the solution for a set, and in that for a multiple of u."""

LARGEST_MULTIPLE = 1.5
"""The largest multiple of u. With the multiple -1 a linear f has no variance left; a much larger one means that the
gradient of f is small in the outcomes that were seen, and it may be large in others."""

MAGNITUDE_SHARES = (2.0, 0.05)
"""The multiple of the mean of `Parts.magnitude` that is added to the mean squares of the control variates, for the sums
of each memory: what cancels over a thousand steps is relied on more than what cancels over thirty."""


class Trust(NamedTuple):
    r"""Say how far a kind of candidate is trusted.

    Attributes:
        caution: the factor of :math:`\nu_1` and :math:`\nu` in the first weight of a candidate.
        lower: how many standard errors the confidence limit of t lies below its estimate.
        unseen: the number of elements that are assumed in the judgement to have no cancellation at all.
    """

    caution: float
    lower: float
    unseen: float


OF_MULTIPLE, OF_SET = Trust(caution=1.0, lower=1.0, unseen=2.0), Trust(caution=0.5, lower=0.6, unseen=2.0)
"""For the multiple of u, and for a set without bounded control variates."""

OF_MIXED, OF_BOUNDED = Trust(caution=0.04, lower=0.35, unseen=0.5), Trust(caution=0.01, lower=0.35, unseen=0.5)
"""For a set of bounded and other control variates, and for bounded ones only: these cannot be much larger in an outcome
that was not seen yet."""

RARE = 1.5
"""With an entropy of B bits, `lower` and `unseen` are `1 + RARE / B^2` times as large: few variables have few outcomes,
and rare ones stay unseen for long. Variables that are almost certain are few in this sense, however many they are."""

MANY_BITS = 10.0
"""With an entropy of B bits, more than these, the size before cancellation counts `MANY_BITS / B` times: the control
variates are sums over all variables; where there are many, their terms cancel in nearly every outcome or in none."""

PRIOR, HELD_NUMBERS, JUDGED_NUMBERS = 1.5, 2.0, 10.0
r"""The :math:`\lambda`, :math:`\nu_1` and :math:`\nu` in the first weight of a candidate. With many samples of few
variables, :math:`\nu` is up to twice as large."""

FEW_BITS = 4.0
"""With an entropy of B bits, `caution` of bounded control variates is `1 + (FEW_BITS / B)^4` times as large: along few
variables that are almost certain, a rare outcome is far from the others."""

LEAST_RIDGE = 1e-8
"""The smallest ridge on the unit diagonal of the system; ten rounding errors if that is more."""


class System(NamedTuple):
    """Describe the coefficients that are solved for.

    Attributes:
        number: n, the number of coefficients.
        samples: K.
        direction: coefficients u of which the best multiple is a candidate; None if there are none. A single
            coefficient is its own direction, without a limit of the multiple.
        sets: coefficients, by index, that are solved for together while the others are 0. Each set is a candidate.
        bounded: the coefficients, by index, of control variates with the direction of the gradient.
    """

    number: int
    samples: int
    direction: tuple[float, ...] | None = None
    sets: tuple[tuple[int, ...], ...] = ()
    bounded: tuple[int, ...] = ()

    @property
    def has_multiple(self) -> bool:
        """Return whether the first candidate of a memory is a multiple of a direction."""
        return self.direction is not None or not self.sets

    @property
    def candidates(self) -> int:
        """Return the number of candidates in all memories."""
        return len(MEMORIES) * (self.has_multiple + len(self.sets))

    @property
    def is_bounded(self) -> Float[np.ndarray, "1+n"]:
        """Return, for g0 and every control variate, 1 if it is bounded and 0 if it is not."""
        return _is_bounded(self)

    @property
    def members(self) -> Float[np.ndarray, "sets n"]:
        """Return 1 where a coefficient belongs to a set, and 0 elsewhere."""
        return _members(self)

    @property
    def trusts(self) -> list[Trust]:
        """Return how far the candidates of a memory are trusted."""
        bounded = set(self.bounded)
        of_sets = [
            OF_BOUNDED if bounded >= set(one) else OF_MIXED if bounded & set(one) else OF_SET for one in self.sets
        ]
        return [OF_MULTIPLE, *of_sets] if self.has_multiple else of_sets

    @property
    def lengths(self) -> list[int]:
        """Return the number of coefficients that each candidate of a memory learns."""
        of_sets = [len(one) for one in self.sets]
        return [1, *of_sets] if self.has_multiple else of_sets


# A named tuple has no cache of its own, and NumPy takes longer to make these arrays than to use them.
@cache
def _is_bounded(system: System) -> Float[np.ndarray, "1+n"]:
    return np.array([0.0, *(float(index in system.bounded) for index in range(system.number))])


@cache
def _members(system: System) -> Float[np.ndarray, "sets n"]:
    return np.array([[float(index in one) for index in range(system.number)] for one in system.sets])


class Sums(NamedTuple):
    """Hold what is summed over batch elements, and over steps with each decay.

    Attributes:
        products: the inner products of g0 and the control variates.
        magnitude: the size of each control variate before cancellation.
        judged: v . g0 and v . v of every candidate.
        own: g0 . g0 as it counts in the judgement, where batch elements with a very large one count less.
        own_square: (g0 . g0)^2.
        judged_squares: (v . g0)^2, (v . g0) (v . v) and (v . v)^2 of every candidate.
    """

    products: Float[Array, "*memories 1+n 1+n"]
    magnitude: Float[Array, "*memories n"]
    judged: Float[Array, "*memories 2 j"]
    own: Float[Array, "*memories 1"]
    own_square: Float[Array, "*memories 1"]
    judged_squares: Float[Array, "*memories 3 j"]


def shapes(system: System) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of what is summed."""
    n, candidates = system.number, system.candidates
    return ((1 + n, 1 + n), (n,), (2, candidates), (1,), (1,), (3, candidates))


def split(sums: Float[Array, "*memories s"], system: System) -> Sums:
    """Return the sums of one array, in which they lie one after the other, so that one operation moves all of them."""
    xp, end, parts = namespace(sums), 0, []
    for shape in shapes(system):
        start, end = end, end + prod(shape)
        parts.append(xp.reshape(sums[..., start:end], (*sums.shape[:-1], *shape)))
    return Sums(*parts)


def choose(
    judged: Float[Array, "j n"],
    sums: Float[Array, "m s"],
    entropy: Float[Array, ""],
    system: System,
) -> tuple[Float[Array, "n"], Float[Array, "j n"]]:
    """Return the coefficients and the new candidates, from the judgement of the former candidates.

    Args:
        judged: the former candidates, which the sums have judged.
        sums: the sums of every memory.
        entropy: the entropy of x in bits.
        system: the coefficients that are solved for.
    """
    xp, (count, n), memories = namespace(sums), judged.shape, len(MEMORIES)

    learned, caution, lower, seen_none, of_set, of_bounded = (
        xp.asarray(values, dtype=sums.dtype, device=device(sums)) for values in _constants(system)
    )
    bits = at_least(entropy, 1)

    now = split(sums, system)
    now = now._replace(magnitude=at_most(MANY_BITS / bits, 1) * now.magnitude)
    own, squares = now.own, now.judged_squares
    elements = own**2 / (now.own_square + TINY)
    with_g0, square = now.judged[:, 0], now.judged[:, 1]
    slope = at_least(-with_g0 / (square + TINY), 0)
    left_over = at_most(at_least(1 + slope * with_g0 / (own + TINY), 0), 1)
    scatter = at_least(squares[:, 0] + slope * (2 * squares[:, 1] + slope * squares[:, 2]), 0)
    # The factor fits one element exactly, so an element of the mean size is added; few elements underestimate the rest.
    scatter = scatter + (with_g0 / (elements + TINY)) ** 2
    error = xp.sqrt(scatter) / (square + TINY) * (1 + 1 / at_least(elements - 1, 1e-6))

    # An element that was not seen yet may have nothing of the cancellation that the coefficients rely on.
    sizes = xp.reshape(judged, (memories, -1, n)) ** 2 * now.magnitude[:, None, :]
    unseen = xp.reshape(xp.sum(sizes, axis=-1) / (own + TINY), (-1,))
    rare = 1 + RARE / bits**2
    # With many samples of few variables g0 is mostly its mean: for a linear f, only a share of bits / (bits + K) of
    # g0 . g0 is noise, here relative to K = 2. The products v . g0 scatter by v . E[g0], which says nothing about it.
    noise = (bits + 2) / (bits + system.samples)
    added = own / (elements + TINY) * (left_over + seen_none * rare * unseen)
    cautious = -with_g0 / (square + added + TINY)
    factor = at_most(at_least(cautious - lower * rare * error, 0), 1)
    gain = -factor * (2 * with_g0 + factor * square) / (own + TINY)

    held = xp.reshape(elements * xp.ones_like(xp.reshape(learned, (memories, -1))), (-1,))
    few = 1 + of_bounded * (FEW_BITS / bits) ** 4
    numbers = caution * few * learned**2 / (bits * noise)
    too_few_held = at_most(HELD_NUMBERS * numbers / (held + TINY), 1e3)
    judged_numbers = JUDGED_NUMBERS * at_most(1 / noise, 2) * numbers
    too_few_judged = at_most(judged_numbers / (elements + TINY), 1e3)
    penalty = PRIOR * (too_few_held**2 + of_set * (1 + too_few_judged**2))
    support = gain * elements - penalty
    highest = at_least(xp.max(support), 0)
    share = xp.where(gain > 0, xp.exp(support - highest), xp.zeros_like(gain))
    share = xp.sum(factor * share, axis=0) / (xp.sum(share) + xp.exp(-highest))

    unexplained = at_most(at_least(left_over[-1] + learned / (held + TINY), 0), 1)
    ridge = xp.reshape(unexplained / (held + TINY), (memories, -1))
    candidates = xp.reshape(_solve(now, ridge, system), (count, n))
    return xp.sum(share[:, None] * candidates, axis=0), candidates


@cache
def _constants(system: System) -> tuple[Float[np.ndarray, "j"], ...]:
    """Return, for every candidate, what `choose` needs: its length, its trust, and whether it is a set, and bounded."""
    trusts = system.trusts
    is_set = [trust is not OF_MULTIPLE for trust in trusts]
    is_bounded = [trust in (OF_MIXED, OF_BOUNDED) for trust in trusts]
    rows = (system.lengths, *zip(*trusts, strict=True), is_set, is_bounded)
    return tuple(np.tile(np.array(row, dtype=float), len(MEMORIES)) for row in rows)


def _solve(now: Sums, ridge: Float[Array, "m v"], system: System) -> Float[Array, "m v n"]:
    """Return the candidates of every memory: the multiple of the direction, then the solution for every set."""
    xp = namespace(ridge)

    def array(values: Any) -> Array:
        return xp.asarray(np.asarray(values, dtype=float), dtype=ridge.dtype, device=device(ridge))

    least = max(LEAST_RIDGE, 10 * float(xp.finfo(ridge.dtype).eps))
    solutions = []
    if system.has_multiple:
        u = array((1.0,) if system.direction is None else system.direction)
        square = xp.sum((now.products[:, 1:, 1:] @ u) * u, axis=-1)
        of_ridge = at_least(RIDGE_OF_ONE * ridge[:, 0], least) * (square + now.magnitude @ u**2)
        multiple = -(now.products[:, 1:, 0] @ u) / (at_least(square, 0) + of_ridge + TINY)
        if system.direction is not None:
            multiple = at_most(at_least(multiple, -LARGEST_MULTIPLE), LARGEST_MULTIPLE)
        solutions.append((multiple[:, None] * u)[:, None])
    if system.sets:
        members = array(system.members)
        sizes = xp.sum(members, axis=-1)
        of_ridge = at_least(RIDGE_OF_SET * sizes * ridge[:, int(system.has_multiple) :], least)
        magnitude = array(MAGNITUDE_SHARES)[:, None] * (now.magnitude @ members.T) / sizes
        solutions.append(least_variance(now.products[:, None], of_ridge, magnitude, members))
    return xp.concat(solutions, axis=1)


def least_variance(
    moments: Float[Array, "*#j parts parts"],
    ridge: Float[Array, "*j"] | None = None,
    magnitude: Float[Array, "*j"] | None = None,
    members: Float[Array, "*#j parts-1"] | None = None,
) -> Float[Array, "*j parts-1"]:
    r"""Return :math:`c = -S (S A S + ridge)^{-1} S b` with :math:`A = E[h h^T]` and :math:`b = E[h g_0]`.

    The diagonal S makes the diagonal of S A S equal to 1, or less where the magnitude is not 0, so that the ridge means
    the same for all coefficients. A control variate that was always 0 gets the coefficient 0.

    Args:
        moments: the matrix :math:`E[(g_0, h) (g_0, h)^T]`, or several of them.
        ridge: what is added to the diagonal; None for ten rounding errors.
        magnitude: what is added to the mean squares of h in S; None for 0.
        members: 1 for the coefficients that are solved for and 0 for those that stay 0; None for all.
    """
    xp = namespace(moments)
    products, with_g0 = moments[..., 1:, 1:], moments[..., 1:, 0]
    diagonal = xp.linalg.diagonal(products)
    if ridge is None:
        ridge = max(LEAST_RIDGE, 10 * float(xp.finfo(moments.dtype).eps)) * xp.ones_like(diagonal[..., 0])
    unit = diagonal if magnitude is None else diagonal + magnitude[..., None]
    seen = unit > 0
    scale = xp.where(seen, 1 / xp.sqrt(xp.where(seen, unit, xp.ones_like(unit))), xp.zeros_like(unit))
    scale = scale if members is None else members * scale
    identity = xp.eye(diagonal.shape[-1], dtype=diagonal.dtype, device=device(diagonal))
    system = scale[..., :, None] * products * scale[..., None, :] + ridge[..., None, None] * identity
    return -scale * xp.linalg.solve(system, (scale * with_g0)[..., None])[..., 0]
