"""The parts g0, h_1, ..., h_n of an estimator that is linear in its coefficients, and their combinations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Self, final

from doublecv.arrays import Array, sum_over_samples
from doublecv.distributions import Distribution

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Parts(ABC):
    """g0 and, by the names of the coefficients, h_1, ..., h_n.

    Attributes:
        q: the distribution.
    """

    q: Distribution

    @abstractmethod
    def vectors(self) -> tuple[Float[Array, "*logits"], dict[str, Float[Array, "*logits"]]]:
        """g0 and h as arrays."""

    @abstractmethod
    def combined(self, numbers: Mapping[str, Any]) -> Float[Array, "*logits"]:
        """g0 + sum_i c_i h_i, with the numbers c."""

    @abstractmethod
    def every(self, step: int) -> Self:
        """The parts of every `step`-th element of the batch."""

    @final
    def stacked(self, names: Iterable[str]) -> Float[Array, "1+n *logits"]:
        """g0, and h in the order of the names."""
        g0, h = self.vectors()
        return self.q.xp.stack([g0, *(h[name] for name in names)])


@dataclass(frozen=True)
class Vectors(Parts):
    """Parts that are arrays.

    Attributes:
        g0: the part without a coefficient.
        h: the others.
    """

    g0: Float[Array, "*logits"]
    h: dict[str, Float[Array, "*logits"]]

    def vectors(self) -> tuple[Float[Array, "*logits"], dict[str, Float[Array, "*logits"]]]:
        """g0 and h."""
        return self.g0, self.h

    def combined(self, numbers: Mapping[str, Any]) -> Float[Array, "*logits"]:
        """g0 + sum_i c_i h_i."""
        return sum((numbers[name] * part for name, part in self.h.items()), start=self.g0)

    def every(self, step: int) -> Self:
        """The parts of every `step`-th element of the batch."""
        q, event_shape = self.q, self.q.event_shape
        h = {name: every(q, step, part, event_shape) for name, part in self.h.items()}
        return replace(self, q=_every(q, step), g0=every(q, step, self.g0, event_shape), h=h)


@dataclass(frozen=True)
class WeightedScores(Parts):
    """Parts of the form

        1/K sum_k w_k s(x_k) - r

    A weight is one number for a sample of an example, so that it is cheapest to combine the weights, and then to weigh
    the scores once.

    Attributes:
        score: s(x_k).
        weight_of_g0: w of g0, which has no r.
        weights: w of the others.
        corrections: r of those that have one.
    """

    score: Float[Array, "K *logits"]
    weight_of_g0: Float[Array, "K *batch"]
    weights: dict[str, Float[Array, "K *batch"]]
    corrections: dict[str, Float[Array, "*logits"]]

    def vectors(self) -> tuple[Float[Array, "*logits"], dict[str, Float[Array, "*logits"]]]:
        """1/K sum_k w_k s(x_k) - r for every part."""
        h = {name: self._average(weight) for name, weight in self.weights.items()}
        return self._average(self.weight_of_g0), h | {name: h[name] - r for name, r in self.corrections.items()}

    def combined(self, numbers: Mapping[str, Any]) -> Float[Array, "*logits"]:
        """1/K sum_k (w_0k + sum_i c_i w_ik) s(x_k) - sum_i c_i r_i."""
        weight = sum((numbers[name] * weight for name, weight in self.weights.items()), start=self.weight_of_g0)
        return sum((-numbers[name] * r for name, r in self.corrections.items()), start=self._average(weight))

    def every(self, step: int) -> Self:
        """The parts of every `step`-th element of the batch."""
        q, event_shape = self.q, self.q.event_shape
        return replace(
            self,
            q=_every(q, step),
            score=every(q, step, self.score, event_shape),
            weight_of_g0=every(q, step, self.weight_of_g0),
            weights={name: every(q, step, weight) for name, weight in self.weights.items()},
            corrections={name: every(q, step, r, event_shape) for name, r in self.corrections.items()},
        )

    def _average(self, weight: Float[Array, "K *batch"]) -> Float[Array, "*logits"]:
        return sum_over_samples(self.q.weigh(weight, self.score)) / weight.shape[0]


def every(
    q: Distribution, step: int, v: Float[Array, "*leading_batch_trailing"], trailing: tuple[int, ...] = ()
) -> Float[Array, "*leading_some_trailing"]:
    """The entries of v for every `step`-th element of q's batch, whose axes become one."""
    axes_behind = len(q.batch_shape) + len(trailing)
    leading = tuple(v.shape)[: v.ndim - axes_behind]
    flat = q.xp.reshape(v, (*leading, prod(q.batch_shape), *trailing))
    return flat[(..., slice(None, None, step), *(slice(None),) * len(trailing))]


def _every(q: Distribution, step: int) -> Distribution:
    return type(q)(logits=every(q, step, q.logits, q.event_shape))
