r"""The parts :math:`g_0, h_1, \dots, h_n` of an estimator that is linear in its coefficients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self, final

import numpy as np

from doublecv.arrays import Array, is_jax_array, matrix_product
from doublecv.distributions import Distribution, event_size
from doublecv.estimators.averages import correction_magnitude, score_magnitude, weighted_mean
from doublecv.estimators.couplings import Coupling

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Parts(ABC):
    r"""Hold :math:`g_0` and, by the names of the coefficients, :math:`h_1, \dots, h_n`.

    Attributes:
        q: the distribution.
        norm: the norms of the gradients at the samples, where some parts have only their direction; None elsewhere.
    """

    q: Distribution
    norm: Float[Array, "K *batch"] | None = field(default=None, kw_only=True)

    @abstractmethod
    def vectors(self) -> tuple[Float[Array, "*logits"], dict[str, Float[Array, "*logits"]]]:
        r"""Return :math:`g_0` and h as arrays."""

    @abstractmethod
    def combine(self, coefficients: Mapping[str, Any]) -> Float[Array, "*logits"]:
        r"""Return :math:`g_0 + \sum_i c_i h_i` for the coefficients c."""

    @abstractmethod
    def derivatives(self, cotangent: Float[Array, "*logits"]) -> dict[str, Float[Array, ""]]:
        r"""Return the inner product of the cotangent with every :math:`h_i`."""

    @abstractmethod
    def magnitude(self, names: Iterable[str]) -> Float[Array, "n *batch"]:
        r"""Return, for every named :math:`h_i`, the square of the size that its terms have before they cancel.

        Where h is a sum of terms of opposite sign it can be small, or a rounding error, in all batch elements that were
        seen and as large as its terms in the next. A solution for the coefficients that knows the size of the terms
        does not rely on a small h.
        """

    @abstractmethod
    def subsample(self, step: int) -> Self:
        """Return the parts of every `step`-th batch element."""

    def _some_norms(self, step: int) -> Float[Array, "K some"] | None:
        return None if self.norm is None else self.q.subsample_array(step, self.norm)

    @final
    def stack(self, names: Iterable[str]) -> Float[Array, "parts *logits"]:
        r"""Return :math:`g_0` followed by h in the order of the names."""
        g0, h = self.vectors()
        return self.q.xp.stack([g0, *(h[name] for name in names)])


@final
@dataclass(frozen=True)
class Vectors(Parts):
    r"""Hold parts that are arrays.

    Attributes:
        g0: the part without a coefficient.
        h: the other parts.
        size: a function that returns the magnitude of each h; None for 0, where the terms do not cancel.
    """

    g0: Float[Array, "*logits"]
    h: dict[str, Float[Array, "*logits"]]
    size: Callable[[], Float[Array, "*batch"]] | None = None

    def vectors(self) -> tuple[Float[Array, "*logits"], dict[str, Float[Array, "*logits"]]]:
        r"""Return :math:`g_0` and h."""
        return self.g0, self.h

    def combine(self, coefficients: Mapping[str, Any]) -> Float[Array, "*logits"]:
        r"""Return :math:`g_0 + \sum_i c_i h_i`."""
        return sum((coefficients[name] * part for name, part in self.h.items()), start=self.g0)

    def derivatives(self, cotangent: Float[Array, "*logits"]) -> dict[str, Float[Array, ""]]:
        r"""Return the inner product of the cotangent with every :math:`h_i`."""
        return {name: self.q.xp.sum(cotangent * part) for name, part in self.h.items()}

    def magnitude(self, names: Iterable[str]) -> Float[Array, "n *batch"]:
        """Return the square of the size that the terms of h have before they cancel, the same for all names."""
        if self.size is None:
            squares = self.q.dot(self.g0, self.g0)
            size = self.q.xp.zeros_like(squares[0] if self.q.visited else squares)
        else:
            size = self.size()
        return self.q.xp.stack([size for _ in names])

    def subsample(self, step: int) -> Self:
        """Return the parts of every `step`-th batch element."""
        q, event_shape = self.q, self.q.event_shape
        h = {name: q.subsample_array(step, part, event_shape) for name, part in self.h.items()}
        g0 = q.subsample_array(step, self.g0, event_shape)
        size = None if self.size is None else partial(_subsampled, q, step, self.size)
        return replace(self, q=q.subsample(step), g0=g0, h=h, size=size, norm=self._some_norms(step))


@final
@dataclass(frozen=True)
class Controlled(Parts):
    r"""Hold the parts :math:`g_0 = E(f)` and :math:`h = E(b) - c` of one control variate.

    E, the estimate of a coupling, is linear, so the estimate with the coefficient :math:`\alpha` is
    :math:`E(f + \alpha b) - \alpha c`, with one weighted sum of scores.

    Attributes:
        coupling: how the samples depend on each other.
        x: the samples.
        f: f at the samples.
        name: the name of the coefficient.
        b: the control variate at the samples.
        c: the mean of E(b).
    """

    coupling: Coupling
    x: Float[Array, "K *logits"]
    f: Float[Array, "K *batch"]
    name: str
    b: Float[Array, "K *batch"]
    c: Float[Array, "*logits"] | Float[Array, "K *logits"]

    def vectors(self) -> tuple[Float[Array, "*logits"], dict[str, Float[Array, "*logits"]]]:
        r"""Return :math:`E(f)` and :math:`E(b) - c`."""
        return self._estimate(self.f), {self.name: self._control}

    def combine(self, coefficients: Mapping[str, Any]) -> Float[Array, "*logits"]:
        r"""Return :math:`E(f + \alpha b) - \alpha c`."""
        alpha = coefficients[self.name]
        return self._estimate(self.f + alpha * self.b) - alpha * self.c

    def derivatives(self, cotangent: Float[Array, "*logits"]) -> dict[str, Float[Array, ""]]:
        r"""Return the inner product of the cotangent with h."""
        return {self.name: self.q.xp.sum(cotangent * self._control)}

    def magnitude(self, names: Iterable[str]) -> Float[Array, "n *batch"]:
        """Return the square of the size that the terms of h have before they cancel."""
        return score_magnitude(self.q, self.q.score(self.x), self.b, self.c)[None]

    def subsample(self, step: int) -> Self:
        """Return the parts of every `step`-th batch element."""
        q, event_shape = self.q, self.q.event_shape
        x, c = (q.subsample_array(step, v, event_shape) for v in (self.x, self.c))
        f, b = (q.subsample_array(step, v) for v in (self.f, self.b))
        return replace(self, q=q.subsample(step).remember(), x=x, f=f, b=b, c=c)

    @property
    def _control(self) -> Float[Array, "*logits"]:
        return self._estimate(self.b) - self.c

    def _estimate(self, v: Float[Array, "K *batch"]) -> Float[Array, "*logits"]:
        return self.coupling.estimate(self.q, self.x, v)


def _subsampled(q: Distribution, step: int, size: Callable[[], Float[Array, "*batch"]]) -> Float[Array, "some"]:
    return q.subsample_array(step, size())


class Average(NamedTuple):
    r"""Hold the correction :math:`\frac{1}{K} \sum_k w_k t_k` as its weights and terms.

    Those of several corrections with the same terms are added up before the terms are multiplied, which is one pass
    over the terms for all of them.

    Attributes:
        weight: the weights :math:`w_k`.
        terms: the terms :math:`t_k`.
    """

    weight: Float[Array, "K *batch"]
    terms: Float[Array, "K *logits"]


Correction = Array | Average
"""A correction, as an array or as an average over the samples."""


def _value(q: Distribution, correction: Correction) -> Float[Array, "*logits"]:
    """Return a correction as an array."""
    return weighted_mean(q, *correction) if isinstance(correction, Average) else correction


def _some(q: Distribution, step: int, correction: Correction) -> Correction:
    """Return the correction of every `step`-th batch element."""
    if isinstance(correction, Average):
        weight = q.subsample_array(step, correction.weight)
        return Average(weight, q.subsample_array(step, correction.terms, q.event_shape))
    return q.subsample_array(step, correction, q.event_shape)


def _corrected(
    q: Distribution,
    average: Float[Array, "*logits"],
    coefficients: Mapping[str, Any],
    corrections: Mapping[str, Correction],
) -> Float[Array, "*logits"]:
    r"""Return the average less :math:`\sum_i c_i r_i`."""
    weights: dict[int, Array] = {}
    terms = {id(r.terms): r.terms for r in corrections.values() if isinstance(r, Average)}
    for name, r in corrections.items():
        if isinstance(r, Average):
            weight = coefficients[name] * r.weight
            weights[id(r.terms)] = weights[id(r.terms)] + weight if id(r.terms) in weights else weight
        else:
            average = average - coefficients[name] * r
    return sum((-weighted_mean(q, weight, terms[key]) for key, weight in weights.items()), start=average)


@final
@dataclass(frozen=True)
class WeightedScores(Parts):
    r"""Hold parts of the form :math:`\frac{1}{K} \sum_k w_k s(x_k) - r`.

    A weight is one number per sample and batch element, so it is cheapest to combine the weights first and to multiply
    the scores once.

    Attributes:
        score: the scores :math:`s(x_k)`.
        weight_of_g0: the weights of :math:`g_0`, which has no correction r.
        weights: the weights of the other parts.
        corrections: the corrections r of the parts that have one.
    """

    score: Float[Array, "K *logits"]
    weight_of_g0: Float[Array, "K *batch"]
    weights: dict[str, Float[Array, "K *batch"]]
    corrections: dict[str, Correction]

    @cached_property
    def _matrix(self) -> Float[Array, "parts K *batch"]:
        """Return all weights in one array, those of g0 first: NumPy and PyTorch start one operation for all of them."""
        return self.q.xp.stack([self.weight_of_g0, *self.weights.values()])

    @property
    def _is_fused(self) -> bool:
        """Return whether a compiler fuses the operations, so that writing them out one by one is faster."""
        return is_jax_array(self.score)

    def vectors(self) -> tuple[Float[Array, "*logits"], dict[str, Float[Array, "*logits"]]]:
        r"""Return :math:`\frac{1}{K} \sum_k w_k s(x_k) - r` for every part."""
        if self._is_fused or self.q.visited:
            g0, averages = self._average(self.weight_of_g0), map(self._average, self.weights.values())
        else:
            g0, *averages = self._averages()
        h = dict(zip(self.weights, averages, strict=True))
        return g0, h | {name: h[name] - _value(self.q, r) for name, r in self.corrections.items()}

    def combine(self, coefficients: Mapping[str, Any]) -> Float[Array, "*logits"]:
        r"""Return the estimate with all control variates.

        .. math:: \frac{1}{K} \sum_k \big(w_{0k} + \sum_i c_i w_{ik}\big) s(x_k) - \sum_i c_i r_i
        """
        if self._is_fused:
            terms = (coefficients[name] * weight for name, weight in self.weights.items())
            weight = sum(terms, start=self.weight_of_g0)
        else:
            xp, matrix = self.q.xp, self._matrix
            along = xp.astype(xp.stack([coefficients[name] for name in self.weights]), matrix.dtype)
            of_coefficients = along @ xp.reshape(matrix[1:], (along.shape[0], prod(self.weight_of_g0.shape)))
            weight = self.weight_of_g0 + xp.reshape(of_coefficients, tuple(self.weight_of_g0.shape))
        return _corrected(self.q, self._average(weight), coefficients, self.corrections)

    def derivatives(self, cotangent: Float[Array, "*logits"]) -> dict[str, Float[Array, ""]]:
        r"""Return :math:`\sum \frac{1}{K} \sum_k w_{ik} \langle t, s(x_k) \rangle - \langle t, r_i \rangle` for t."""
        xp = self.q.xp
        along_scores = self.q.dot(cotangent, self.score) / self.score.shape[0]
        derivatives = {name: xp.sum(weight * along_scores) for name, weight in self.weights.items()}
        corrections = {name: xp.sum(cotangent * _value(self.q, r)) for name, r in self.corrections.items()}
        return derivatives | {name: derivatives[name] - r for name, r in corrections.items()}

    def magnitude(self, names: Iterable[str]) -> Float[Array, "n *batch"]:
        r"""Return :math:`\frac{1}{K^2} \sum_k w_{ik}^2 \, s(x_k)^T s(x_k) + r_i^T r_i` for every name i."""
        q, names = self.q, tuple(names)
        size = score_magnitude(q, self.score, q.xp.stack([self.weights[name] for name in names]))
        none = q.xp.zeros_like(size[0])
        of_corrections = {name: correction_magnitude(q, _value(q, r)) for name, r in self.corrections.items()}
        return size + q.xp.stack([of_corrections.get(name, none) for name in names])

    def subsample(self, step: int) -> Self:
        """Return the parts of every `step`-th batch element."""
        q, event_shape = self.q, self.q.event_shape
        return replace(
            self,
            q=q.subsample(step),
            score=q.subsample_array(step, self.score, event_shape),
            weight_of_g0=q.subsample_array(step, self.weight_of_g0),
            weights={name: q.subsample_array(step, weight) for name, weight in self.weights.items()},
            corrections={name: _some(q, step, r) for name, r in self.corrections.items()},
            norm=self._some_norms(step),
        )

    def _average(self, weight: Float[Array, "K *batch"]) -> Float[Array, "*logits"]:
        return weighted_mean(self.q, weight, self.score)

    def _averages(self) -> Float[Array, "parts *logits"]:
        r"""Return :math:`\frac{1}{K} \sum_k w_k s(x_k)` for all parts, as one product per batch element."""
        xp, matrix, K = self.q.xp, self._matrix, self.score.shape[0]
        elements, size = prod(self.q.batch_shape), event_size(self.q)
        weights = xp.permute_dims(xp.reshape(matrix, (matrix.shape[0], K, elements)), (2, 0, 1))
        scores = xp.permute_dims(xp.reshape(self.score, (K, elements, size)), (1, 0, 2))
        averages = xp.permute_dims((weights / K) @ scores, (1, 0, 2))
        return xp.reshape(averages, (matrix.shape[0], *self.q.logits.shape))


@final
@dataclass(frozen=True)
class TabledScores(Parts):
    r"""Hold parts of the form of `WeightedScores` whose weights are linear in some entries, in NumPy arrays.

    .. math:: w_{ik} = \sum_m t_{ikm} e_m

    NumPy takes longer to start the operations that make the weights than to compute them. The estimate needs only
    :math:`\sum_i c_i w_{ik} = \sum_m (\sum_i c_i t_{ikm}) e_m`, which is two products.

    Attributes:
        score: the scores :math:`s(x_k)`.
        weight_of_g0: the weights of :math:`g_0`, which has no correction r.
        table: the table t.
        entries: the entries e.
        names: the names of the other parts, in the order of the table.
        corrections: the corrections r of the parts that have one.
    """

    score: Float[Array, "K *logits"]
    weight_of_g0: Float[Array, "K *batch"]
    table: Float[Array, "n K entries"]
    entries: Float[Array, "entries *batch"]
    names: tuple[str, ...]
    corrections: dict[str, Correction]

    @cached_property
    def weighted(self) -> WeightedScores:
        """Return the parts with all weights."""
        n, K, size = self.table.shape
        weights = self._weigh(self.table.reshape(n * K, size)).reshape(n, *self.weight_of_g0.shape)
        named = dict(zip(self.names, weights, strict=True))
        return WeightedScores(self.q, self.score, self.weight_of_g0, named, self.corrections, norm=self.norm)

    def _weigh(self, table: Float[Array, "rows entries"]) -> Float[Array, "rows elements"]:
        entries = self.entries.reshape(self.entries.shape[0], prod(self.q.batch_shape))
        return matrix_product(table.astype(entries.dtype, copy=False), entries)

    def vectors(self) -> tuple[Float[Array, "*logits"], dict[str, Float[Array, "*logits"]]]:
        r"""Return :math:`\frac{1}{K} \sum_k w_k s(x_k) - r` for every part."""
        return self.weighted.vectors()

    def combine(self, coefficients: Mapping[str, Any]) -> Float[Array, "*logits"]:
        r"""Return the estimate with all control variates."""
        n, K, size = self.table.shape
        along = np.array([coefficients[name] for name in self.names], dtype=self.entries.dtype)
        weight = self._weigh((along @ self.table.reshape(n, K * size)).reshape(K, size))
        average = weighted_mean(self.q, self.weight_of_g0 + weight.reshape(self.weight_of_g0.shape), self.score)
        return _corrected(self.q, average, coefficients, self.corrections)

    def derivatives(self, cotangent: Float[Array, "*logits"]) -> dict[str, Float[Array, ""]]:
        r"""Return the inner product of the cotangent with every :math:`h_i`."""
        return self.weighted.derivatives(cotangent)

    def magnitude(self, names: Iterable[str]) -> Float[Array, "n *batch"]:
        r"""Return the square of the size that the terms of every named :math:`h_i` have before they cancel."""
        return self.weighted.magnitude(names)

    def subsample(self, step: int) -> Self:
        """Return the parts of every `step`-th batch element."""
        q, event_shape = self.q, self.q.event_shape
        return replace(
            self,
            q=q.subsample(step),
            score=q.subsample_array(step, self.score, event_shape),
            weight_of_g0=q.subsample_array(step, self.weight_of_g0),
            entries=q.subsample_array(step, self.entries),
            corrections={name: _some(q, step, r) for name, r in self.corrections.items()},
            norm=self._some_norms(step),
        )
