r"""Estimators that are linear in their coefficients, and the two ways to learn the coefficients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import numpy as np

from doublecv.arrays import Array, detach, namespace
from doublecv.distributions import Distribution
from doublecv.estimators import moments
from doublecv.estimators.base import Applied, Estimator, Learned
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.judgement import System
from doublecv.estimators.parts import Parts

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

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
    def direction(self) -> tuple[float, ...] | None:
        """Return coefficients of which a multiple is a good estimate by itself; None if there are none.

        It is learned from fewer steps than all coefficients are. The multiple is at most
        `judgement.LARGEST_MULTIPLE`, positive or negative.
        """
        return None

    @property
    def bounded(self) -> tuple[str, ...]:
        """Return the coefficients of control variates with the direction of the gradient of f, not its length.

        They are learned in units of its running norm (see `doublecv.estimators.norm`).
        """
        return ()

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """Return the sets of coefficients that are solved for together, while the others are 0."""
        return (self.needs.coefficients,) if len(self.needs.coefficients) > 1 else ()

    def check_options(self) -> None:
        """Raise if `learning` is unknown; a subclass with options of its own also calls this."""
        if self.learning not in get_args(Learning):
            raise ValueError(f"learning must be one of {', '.join(get_args(Learning))}; got {self.learning!r}")

    @cached_property
    def _system(self) -> System:
        """Return what is solved for, with coefficients by index."""
        names = self.needs.coefficients
        sets = tuple(tuple(map(names.index, one)) for one in self.sets)
        return System(len(names), self.samples, self.direction, sets, tuple(map(names.index, self.bounded)))

    @final
    def start(self, q: Distribution | None, context: Float[Array, "*#batch features"] | None) -> Learned:
        """Return coefficients 0, or running averages of no steps."""
        names = self.needs.coefficients
        if not names:
            return Learned({}, {}, {})
        if self.learning == "gradient":
            return fixed_coefficients(dict.fromkeys(names, 0.0))
        return Learned({}, moments.start(self._system), moments.empty_statistics(self._system))

    @final
    def coefficients(self, learned: Learned) -> dict[str, Any]:
        """Return the coefficients c, however they are learned."""
        names = self.needs.coefficients
        if not learned.averages:
            return {name: learned.numbers[name] for name in names}
        solved = moments.coefficients({name: detach(value) for name, value in learned.averages.items()})
        return {name: solved[index] for index, name in enumerate(names)}

    @cached_property
    def held_names(self) -> tuple[str, ...]:
        """Return the names of the coefficients and, where some are bounded, of the floor."""
        return (*self.needs.coefficients, *(("floor",) if self.bounded else ()))

    @final
    def hold(self, averages: Mapping[str, Any]) -> Float[Array, "numbers"]:
        """Return all numbers that the estimate takes from running averages; by name they are a learned state."""
        solved = moments.coefficients(averages)
        if not self.bounded:
            return solved
        return namespace(solved).concat([solved, averages["floor"][None]])

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
        if self.bounded and "floor" in (known := learned.averages or learned.numbers):
            evaluation = replace(evaluation, floor=detach(known["floor"]))
        parts = self.parts(q, evaluation)
        estimate = parts.combine(self.coefficients(learned))
        if not learned.averages:
            return Applied(estimate, {}, parts.derivatives)
        averages = {name: detach(value) for name, value in learned.averages.items()}
        statistics = moments.statistics(averages, parts, self.needs.coefficients, weight, self._system)
        return Applied(estimate, statistics, lambda cotangent: {})

    @final
    def advance(self, averages: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """Move the running averages by the statistics of one step."""
        return moments.advance(averages, statistics, self._system) if averages else {}

    @final
    def leave_out(self, averages: Mapping[str, Any], condition: Bool[Array, ""]) -> dict[str, Any]:
        """Return averages with which the next step uses no control variate, where the condition holds.

        They stay judged and solved for. An estimator that wraps this one knows by the condition that the f of the next
        step will be unlike that of the earlier ones.
        """
        solved = averages["coefficients"]
        xp = namespace(solved)
        return {**averages, "coefficients": xp.where(condition, xp.zeros_like(solved), solved)}


def fixed_coefficients(values: Mapping[str, Any]) -> Learned:
    """Return a learned state with the given coefficients, which every linear estimator with these names accepts."""
    return Learned({name: np.asarray(value, dtype=float) for name, value in values.items()}, {}, {})
