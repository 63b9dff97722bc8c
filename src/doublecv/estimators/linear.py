r"""Estimators that are linear in their coefficients, and the two ways to learn the coefficients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import numpy as np

from doublecv.arrays import Array, detach
from doublecv.distributions import Distribution
from doublecv.estimators import moments
from doublecv.estimators.base import Applied, Estimator, Learned
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.parts import Parts

if TYPE_CHECKING:
    from jaxtyping import Float

Learning = Literal["gradient", "moments"]


@dataclass(frozen=True)
class LinearEstimator(Estimator):
    r"""Provide the base of estimators that are linear in their coefficients.

    .. math:: g = g_0 + \sum_i c_i h_i, \qquad E[h_i] = 0,

    is unbiased for any coefficients c. A subclass names the coefficients in `needs` and defines the `parts`
    :math:`g_0` and h. All coefficients start at 0.

    Attributes:
        learning: "gradient" descends along the gradient of the squared estimate, as the paper learns alpha; "moments"
            solves for the coefficients of least variance under running averages over earlier steps, and judges them on
            later ones, so that they never hurt (see `doublecv.estimators.moments`).
    """

    learning: Learning = field(default="gradient", kw_only=True)

    @abstractmethod
    def parts(self, q: Distribution, evaluation: Evaluation) -> Parts:
        r"""Return :math:`g_0`, and h by the names of the coefficients."""

    @property
    def direction(self) -> moments.Direction | None:
        """Return coefficients of which a multiple is a good estimate by itself; None if there are none.

        It is learned from fewer steps than all coefficients are. The multiple is at most
        `moments.LARGEST_MULTIPLE`, positive or negative.
        """
        return None

    def check_options(self) -> None:
        """Raise if `learning` is unknown; a subclass with options of its own also calls this."""
        if self.learning not in get_args(Learning):
            raise ValueError(f"learning must be one of {', '.join(get_args(Learning))}; got {self.learning!r}")

    @final
    def start(self, q: Distribution | None, context: Float[Array, "*#batch features"] | None) -> Learned:
        """Return coefficients 0, or running averages of no steps."""
        names = self.needs.coefficients
        if not names:
            return Learned({}, {}, {})
        if self.learning == "gradient":
            return fixed_coefficients(dict.fromkeys(names, 0.0))
        n, direction = len(names), self.direction
        return Learned({}, moments.start(n, direction), moments.empty_statistics(n, direction))

    @final
    def coefficients(self, learned: Learned) -> dict[str, Any]:
        """Return the coefficients c, however they are learned."""
        names = self.needs.coefficients
        if not learned.averages:
            return {name: learned.numbers[name] for name in names}
        solved = moments.coefficients({name: detach(value) for name, value in learned.averages.items()})
        return {name: solved[index] for index, name in enumerate(names)}

    @final
    def formula(
        self,
        q: Distribution,
        evaluation: Evaluation,
        learned: Learned,
        weight: Float[Array, "*batch"],
        context: Float[Array, "*#batch features"] | None,
    ) -> Applied:
        r"""Compute :math:`g_0 + \sum_i c_i h_i`."""
        parts = self.parts(q, evaluation)
        estimate = parts.combine(self.coefficients(learned))
        if not learned.averages:
            return Applied(estimate, {}, parts.derivatives)
        averages = {name: detach(value) for name, value in learned.averages.items()}
        statistics = moments.statistics(averages, parts, self.needs.coefficients, weight)
        return Applied(estimate, statistics, lambda cotangent: {})

    @final
    def advance(self, averages: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """Move the running averages by the statistics of one step."""
        return moments.advance(averages, statistics, self.direction) if averages else {}


def fixed_coefficients(values: Mapping[str, Any]) -> Learned:
    """Return a learned state with the given coefficients, which every linear estimator with these names accepts."""
    return Learned({name: np.asarray(value, dtype=float) for name, value in values.items()}, {}, {})
