"""A learned quadratic surrogate of f, which leaves only its residual to another estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from doublecv.arrays import Array, detach, sum_over_samples
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators.base import Applied, Estimator, Learned, Needs
from doublecv.estimators.evaluation import Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float

MAX_DIRECTIONS = 100
"""The largest number of directions that is chosen by itself."""

OWN = ("directions", "slope", "slope_bias", "curvature", "curvature_bias")
PREFIX = "surrogate_"


@final
@dataclass(frozen=True)
class LearnedSurrogate(Estimator):
    r"""Wrap an estimator: apply it to the residual of a learned surrogate and add the surrogate's exact gradient.

    .. math:: g = base(f - r, \nabla f - \nabla r) + M \, slope(y),

    .. math::
        r(x, y) = slope(y)^T s + \tfrac12 \sum_r w_r(y) \Big[(u_r^T s)^2 - \sum_l u_{rl}^2 s_l^2\Big], \qquad s = x -
        \mu,

    with slope and w linear in the context y, features of each batch element such as the last hidden layer of the
    encoder that made the logits; without a context they are linear in the logits. The quadratic form has no diagonal,
    and :math:`E[s_j s_l s_i] = 0` for :math:`j \ne l`, so that its gradient is 0 and the gradient of :math:`E[r]`, with
    r held as a function of x, is :math:`M \, slope(y)`. The estimate is unbiased for any parameters because the base
    estimator is (Paisley, Blei and Jordan, 2012, remove a surrogate with a known gradient in the same way).

    The parameters minimise the sample variance of f - r plus :math:`\frac{1}{K} \sum_k \sum_i v_i (\partial_i f(x_k) -
    \partial_i r(x_k))^2` with :math:`v = \mu (1 - \mu)` on the same samples, after each use. Neither the parameters of
    f nor what made the context receive a gradient from it.

    It supports only Bernoulli: the blocks that categorical variables would need to be removed from the sum of squares
    cost as much as C times as many variables.

    >>> import doublecv as dcv
    >>> estimator = LearnedSurrogate(dcv.QuadraticDoubleCV(samples=2))
    >>> learned = estimator.init(dcv.Bernoulli(logits=np.zeros((8, 3))), context=np.zeros((8, 5)))
    >>> learned.numbers["surrogate_slope"].shape
    (5, 3)

    Attributes:
        base: the estimator of the residual's gradient, any without relaxed points; K is that of the base.
        directions: the number of directions u; None for min(100, D).
    """

    # K is the base's, whose constructor has checked it.
    samples: int = field(init=False, default=1, repr=False)
    base: Estimator
    directions: int | None = None

    def check_options(self) -> None:
        """Raise if the base cannot be used or `directions` is not a size."""
        if not isinstance(self.base, Estimator):
            raise TypeError(f"base must be a doublecv estimator, got {type(self.base).__name__}")
        if self.base.needs.relaxed_points or self.base.needs.sized or self.base.needs.expected_f:
            raise ValueError(
                f"base must be an estimator that uses f only at samples, got {type(self.base).__name__}; take RLOO, "
                f"DoubleCV, QuadraticDoubleCV, DisARM or ARMS"
            )
        size = self.directions
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"directions must be a positive integer or None, got {size!r}")
        object.__setattr__(self, "samples", self.base.samples)

    @cached_property
    def needs(self) -> Needs:
        """Return the needs of the base, gradients at the samples, and features of each batch element."""
        return replace(
            self.base.needs, gradient=True, families=(Bernoulli,), context=True, sized=True, path=False, coefficients=()
        )

    def start(self, q: Distribution | None, context: Float[Array, "*batch features"] | None) -> Learned:
        """Return the base's state and the surrogate's parameters: slope and curvature 0, the directions cosines.

        r = 0 at first, so that the estimate is that of the base. The rows of the discrete cosine transform are
        orthogonal and no two variables have the same: a start as good as random rows, without random numbers.
        """
        assert q is not None
        (variables,), features = q.event_shape, q.event_shape[0] if context is None else context.shape[-1]
        directions = min(MAX_DIRECTIONS, variables) if self.directions is None else self.directions
        if directions > variables:
            raise ValueError(f"directions must be at most the number of variables, {variables}, got {directions}")
        frequencies, positions = np.arange(1, directions + 1)[:, None], np.arange(variables) + 0.5
        own = {
            "directions": np.sqrt(2 / variables) * np.cos(np.pi / variables * frequencies * positions),
            "slope": np.zeros((features, variables)),
            "slope_bias": np.zeros(variables),
            "curvature": np.zeros((features, directions)),
            "curvature_bias": np.zeros(directions),
        }
        base = self.base.init()
        numbers = base.numbers | {PREFIX + name: value for name, value in own.items()}
        return Learned(numbers, base.averages, base.statistics)

    def formula(
        self,
        q: Distribution,
        evaluation: Evaluation,
        learned: Learned,
        weight: Float[Array, "*batch"],
        context: Float[Array, "*batch features"] | None,
    ) -> Applied:
        r"""Compute :math:`base(f - r, \nabla f - \nabla r) + M \, slope` and the misfit of the surrogate."""
        xp, own = q.xp, {name: learned.numbers[PREFIX + name] for name in OWN}
        of_base = {name: value for name, value in learned.numbers.items() if not name.startswith(PREFIX)}
        fit = _fit(q, evaluation, own, q.logits if context is None else context)
        base = self.base.formula(q, _residual(evaluation, fit), learned._replace(numbers=of_base), weight, None)
        remaining_f = evaluation.f - fit.r
        centered = remaining_f - sum_over_samples(remaining_f) / self.samples
        remaining_df = evaluation.df - fit.dr
        misfit = sum_over_samples(centered**2) / max(1, self.samples - 1) + sum_over_samples(
            q.dot(remaining_df, q.covariance_product(remaining_df))
        ) / (self.samples)
        # A batch element without weight does not count, even if f is not finite there.
        loss = xp.sum(xp.where(weight > 0, weight * misfit, xp.zeros_like(misfit)))
        gradient = base.gradient + q.covariance_product(detach(fit.slope))
        return Applied(gradient, base.statistics, None, loss if base.loss is None else loss + base.loss)

    def advance(self, averages: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """Move the running averages of the base."""
        return self.base.advance(averages, statistics)


class _Fit(NamedTuple):
    """Hold the surrogate at the samples.

    Attributes:
        slope: its gradient in x at the mean; M times it is the gradient of E[r].
        r: its values.
        dr: its gradient in x.
    """

    slope: Float[Array, "*batch D"]
    r: Float[Array, "K *batch"]
    dr: Float[Array, "K *batch D"]


def _fit(q: Distribution, evaluation: Evaluation, parameters: Mapping[str, Any], context: Array) -> _Fit:
    """Compute r and its gradient in x at the samples."""
    xp, score = q.xp, q.score(evaluation.x)
    features = parameters["slope"].shape[0]
    wanted = (*q.batch_shape[max(0, len(q.batch_shape) + 1 - context.ndim) :], features)
    if tuple(context.shape) != wanted:
        raise ValueError(
            f"context must have shape {wanted}, the features of each batch element that init saw, got shape "
            f"{tuple(context.shape)}"
        )
    parameters = {name: xp.astype(value, score.dtype) for name, value in parameters.items()}
    context, directions = detach(xp.astype(context, score.dtype)), parameters["directions"]
    slope = context @ parameters["slope"] + parameters["slope_bias"]
    w = context @ parameters["curvature"] + parameters["curvature_bias"]
    diagonal = w @ directions**2
    # One axis of points: the gradient of the directions would transpose what it sums over two axes.
    count, variables = directions.shape
    along = xp.reshape(xp.reshape(score, (-1, variables)) @ directions.T, (*score.shape[:-1], count))
    weighted = w * along
    across = xp.reshape(xp.reshape(weighted, (-1, count)) @ directions, score.shape)
    r = q.dot(slope, score) + (q.dot(weighted, along) - q.dot(diagonal * score, score)) / 2
    return _Fit(slope, r, slope + across - diagonal * score)


def _residual(evaluation: Evaluation, fit: _Fit) -> Evaluation:
    """Return f - r for the base; at the mean, r is 0 and its gradient is the slope."""
    return replace(
        evaluation,
        f=evaluation.f - detach(fit.r),
        df=evaluation.df - detach(fit.dr),
        df_mean=None if evaluation.df_mean is None else evaluation.df_mean - detach(fit.slope),
    )
