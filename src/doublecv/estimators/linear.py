"""Estimators that are linear in their coefficients, and the two ways to learn these."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, detach, matrix_product, namespace
from doublecv.distributions import Distribution, event_size
from doublecv.estimators.base import Estimator
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.parts import Parts, every

if TYPE_CHECKING:
    from jaxtyping import Float

Learning = Literal["gradient", "moments"]

AVERAGE_RATE = 0.01
"""The rate of plain descent for coefficients that are running averages: how far they move to a step's value."""

ENOUGH_ELEMENTS, ENOUGH_NUMBERS = 8, 1600
"""A step's moments are taken from about so many elements of a larger batch, evenly spread; from more of them where they
have fewer numbers together.

The averages are over hundreds of steps, so that the coefficients have little to gain from more; from all of 100
elements with 200 variables the moments would take as long as the rest of the formula.
"""

LEAST_RIDGE = 1e-8
"""The least that is added to the diagonal, which is 1, of the system that is solved; ten roundings if that is more.

It is small because control variates that are nearly the same can be worth their difference: on a quadratic f at logits
0 all of the gain is in directions with less than 1e-5 of the variance.
"""


@dataclass(frozen=True)
class LinearEstimator(Estimator):
    """An estimator of the form

        g = g0 + sum_i c_i h_i,    E[h_i] = 0,

    unbiased whatever the coefficients c. Its variance is a parabola in them, with the minimum at

        c = -E[h h^T]^-1 E[h g0].

    A subclass states g0 and h, its `parts`, and where the coefficients start.

    Attributes:
        learning: "gradient": the coefficients are learned by descent along the gradient of the squared estimate, as
            the paper learns alpha. "moments": they are the solution of the equation above, with running averages of
            E[h h^T] and E[h g0] over earlier steps; those averages are then what an optimiser is handed in their place,
            as one matrix "moments", whose gradient is the matrix minus this step's. So plain gradient descent with
            rate 0.01 IS the exponential average with decay 0.99, and no other optimiser will do. The moments of a large
            batch are taken from some of its elements.
    """

    learning: Learning = field(default="gradient", kw_only=True)

    @abstractmethod
    def starts(self) -> dict[str, float]:
        """The names of the coefficients, and where they start when they are learned by descent."""

    @abstractmethod
    def parts(self, q: Distribution, evaluation: Evaluation) -> Parts:
        """g0, and h by the names of the coefficients."""

    def check_options(self) -> None:
        """Raise where `learning` is unknown; a subclass with options of its own calls this too."""
        if self.learning not in get_args(Learning):
            raise ValueError(f"learning must be one of {', '.join(get_args(Learning))}; got {self.learning!r}")

    @property
    @final
    def averaged(self) -> tuple[str, ...]:
        """The matrix of the running averages, where there is one."""
        return ("moments",) if self.learning == "moments" and self.starts() else ()

    @final
    def coefficients(self) -> dict[str, Any]:
        """The numbers c, or the matrix of the running averages of (g0, h) (g0, h)^T, which starts at 0."""
        if not self.averaged:
            return dict(self.starts())
        size = 1 + len(self.starts())
        return {"moments": np.zeros((size, size))}

    @final
    def numbers(self, coefficients: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers c themselves, however they are learned."""
        if not self.averaged:
            return dict(coefficients)
        best = least_variance(detach(coefficients["moments"]))
        return {name: best[place] for place, name in enumerate(self.starts())}

    @final
    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*logits"]:
        """g0 + sum_i c_i h_i."""
        return self.parts(q, evaluation).combined(self.numbers(coefficients))

    @final
    def formula_and_loss(
        self,
        q: Distribution,
        evaluation: Evaluation,
        coefficients: Mapping[str, Any],
        weight: Float[Array, "*batch"],
    ) -> tuple[Float[Array, "*logits"], Float[Array, ""] | None]:
        """The estimate, and half the squared distance between the running averages and this step's moments.

        An example counts with the weight that it has in the loss, all of them together with at most 1: the sum of a
        mean's parts, as vmap has it, then moves the averages as much as the whole, and a loss of any size moves them
        alike.
        """
        parts = self.parts(q, evaluation)
        estimate = parts.combined(self.numbers(coefficients))
        if not self.averaged:
            return estimate, None
        moments, xp = coefficients["moments"], q.xp
        distance = moments - detach(_moments(parts, list(self.starts()), xp.abs(weight), moments))
        counted = xp.clip(xp.sum(xp.abs(weight)), 0, 1)
        return estimate, xp.astype(counted, distance.dtype) * xp.sum(distance**2) / 2


def least_variance(moments: Float[Array, "1+n 1+n"]) -> Float[Array, "n"]:
    """c = -S (S A S + ridge)^-1 S b, with A = E[h h^T] and b = E[h g0] read off the moments of (g0, h).

    The diagonal S makes that of S A S equal to 1, so that the ridge means the same for all coefficients; a control
    variate that was 0 throughout gets the coefficient 0.
    """
    xp = namespace(moments)
    products, with_g0 = moments[1:, 1:], moments[1:, 0]
    diagonal = xp.linalg.diagonal(products)
    seen = diagonal > 0
    scale = xp.where(seen, 1 / xp.sqrt(xp.where(seen, diagonal, xp.ones_like(diagonal))), xp.zeros_like(diagonal))
    identity = xp.eye(diagonal.shape[0], dtype=diagonal.dtype, device=device(diagonal))
    # A control variate that was never seen has a row of zeros, which 1 on the diagonal makes solvable.
    ridge = max(LEAST_RIDGE, 10 * float(xp.finfo(diagonal.dtype).eps))
    added = xp.where(seen, ridge * xp.ones_like(diagonal), xp.ones_like(diagonal))
    system = scale[:, None] * products * scale[None, :] + added * identity
    return -scale * xp.linalg.solve(system, (scale * with_g0)[:, None])[:, 0]


def _moments(
    parts: Parts, names: list[str], weight: Float[Array, "*batch"], before: Float[Array, "1+n 1+n"]
) -> Float[Array, "1+n 1+n"]:
    """The mean over batch and coordinates of (g0, h) (g0, h)^T, with h as the names are, weighted as the loss is.

    Where all weights are 0, or something is not finite, it is what the averages were before: a batch that says nothing
    must not change them, and one that overflowed would stay in them for ever.
    """
    q = parts.q
    xp, step = q.xp, _step(q)
    if step > 1:
        parts, weight = parts.every(step), every(q, step, weight)
    total = xp.sum(weight)
    any_counts = total > 0
    share = weight / (xp.where(any_counts, total, xp.ones_like(total)) * max(1, event_size(q)))
    rooted = q.weigh(xp.sqrt(share), xp.astype(parts.stacked(names), before.dtype))
    flat = xp.reshape(rooted, (rooted.shape[0], -1))
    new = matrix_product(flat, flat.T)
    return xp.where(any_counts & xp.all(xp.isfinite(new)), new, before)


def _step(q: Distribution) -> int:
    """From one element that the moments are taken from to the next."""
    enough = max(ENOUGH_ELEMENTS, ceil(ENOUGH_NUMBERS / max(1, event_size(q))))
    return max(1, ceil(prod(q.batch_shape) / enough))
