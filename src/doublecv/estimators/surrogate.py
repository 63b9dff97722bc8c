"""A learned quadratic surrogate of f, which leaves only its residual to another estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from doublecv.arrays import Array, detach, subtract_from_samples, sum_over_samples
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators import moments, norm
from doublecv.estimators.averages import leave_one_out
from doublecv.estimators.base import Applied, Estimator, Learned, Needs, not_an_estimator
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.judgement import System
from doublecv.estimators.linear import LinearEstimator
from doublecv.estimators.parts import WeightedScores
from doublecv.estimators.scale import JUMP, has_fallen

if TYPE_CHECKING:
    from jaxtyping import Float

MAX_DIRECTIONS = 32
"""The largest number of directions that is chosen by itself: with more a step takes longer, and in a run of 50,000
steps the variance is as low after 10,000 steps and higher at the end."""

FIT_POINTS, FIT_ELEMENTS = 32, 8
"""The surrogate is fitted per step on about so many samples, those of batch elements evenly spread over the batch, and
on at least so many elements."""

LARGEST_MISFIT = 1e4
"""The largest misfit of a batch element, in units of the squared spread, that the fit follows in proportion."""

FLOOR_SHARE = 1 / 3
r"""The :math:`\beta` in the share of the surrogate that is used. The floor itself is close to the usual norm where the
norm hardly varies."""

OWN = ("directions", "readout", "readout_bias")
"""The parameters; the first D columns of the readout are those of the slope, the others those of w."""
PREFIX = "surrogate_"


@final
@dataclass(frozen=True)
class LearnedSurrogate(Estimator):
    r"""Wrap an estimator: apply it to the residual of a learned surrogate and add the surrogate's exact gradient.

    .. math:: g = base(f - t r, \nabla f - t \nabla r) + t M \, slope(y),

    .. math::
        r(x, y) = slope(y)^T s + \tfrac12 \sum_r w_r(y) \Big[(u_r^T s)^2 - \sum_l u_{rl}^2 s_l^2\Big], \qquad s = x -
        \mu,

    with slope and w linear in the context y, features of each batch element such as the last hidden layer of the
    encoder that made the logits; without a context they are linear in the logits. The F features are divided by
    :math:`\sqrt F`, so that one learning rate serves contexts of any width. The quadratic form has no diagonal, and
    :math:`E[s_j s_l s_i] = 0` for :math:`j \ne l`, so that its gradient is 0 and the gradient of :math:`E[r]`, with r
    held as a function of x, is :math:`M \, slope(y)`. The estimate is unbiased for any parameters because the base
    estimator is (Paisley, Blei and Jordan, 2012, remove a surrogate with a known gradient in the same way).

    The factor t in [0, 1] is 0 at first and is judged on later steps than those that the surrogate was fitted on, as
    the coefficients of `doublecv.estimators.moments` are: it minimises the variance of
    :math:`\mathrm{RLOO}(f) + t \, (M \, slope - \mathrm{RLOO}(r))`. So a surrogate that does not fit is not used.
    r is learned in units of the running spread of f, so that one learning rate serves an f of any scale.

    r does not become smaller by itself in the step in which f falls. A base with terms with the direction of the
    gradient keeps a floor :math:`\ell`, below most norms :math:`\sqrt{n_k}` of the gradient with :math:`n_k = G_k^T M
    G_k`. Over such a base, only the share :math:`\phi_k = \min(1, n_k / (\beta \ell)^2)` of the residual's gradient at
    sample k is used, with :math:`\beta = 1/3`. The scores in RLOO have the weights

    .. math:: f_k - \bar f_{-k} - t \bar\phi_{-k} (r_k - \bar r_{-k}),

    and :math:`\frac{1}{K} \sum_k \phi_k \, t M \, slope` is added. It is unbiased because the leave-one-out mean
    :math:`\bar\phi_{-k}` does not depend on sample k. If all norms are far below the floor, the estimate is RLOO.

    The parameters minimise the sample variance of f - r plus :math:`\frac{1}{K} \sum_k \sum_i v_i (\partial_i f(x_k) -
    \partial_i r(x_k))^2` with :math:`v = \mu (1 - \mu)` on the same samples of some batch elements, after each use.
    Neither the parameters of f nor what made the context receive a gradient from it.

    It supports only Bernoulli: the blocks that categorical variables would need to be removed from the sum of squares
    cost as much as C times as many variables.

    >>> import doublecv as dcv
    >>> estimator = LearnedSurrogate(dcv.QuadraticDoubleCV(samples=2))
    >>> learned = estimator.init(dcv.Bernoulli(logits=np.zeros((8, 3))), context=np.zeros((8, 5)))
    >>> learned.numbers["surrogate_readout"].shape
    (5, 6)

    Attributes:
        base: the estimator of the residual's gradient, any without relaxed points; K is that of the base.
        directions: the number of directions u; None for min(32, D).
    """

    # K is the base's, whose constructor has checked it.
    samples: int = field(init=False, default=1, repr=False)
    base: Estimator
    directions: int | None = None

    def check_options(self) -> None:
        """Raise if the base cannot be used or `directions` is not a size."""
        if not isinstance(self.base, Estimator):
            raise not_an_estimator("base", self.base)
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
        base = self.base.needs
        return replace(
            base,
            gradient=True,
            families=(Bernoulli,),
            context=True,
            sized=True,
            path=False,
            coefficients=(),
            derivatives=bool(base.coefficients or base.derivatives or not self.base.init().numbers),
        )

    @cached_property
    def _factor(self) -> System:
        """Return the system of the one coefficient that is judged, the factor of the surrogate."""
        return System(1, self.samples)

    def start(self, q: Distribution | None, context: Float[Array, "*#batch features"] | None) -> Learned:
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
            "readout": np.zeros((features, variables + directions)),
            "readout_bias": np.zeros(variables + directions),
        }
        base = self.base.init()
        numbers = base.numbers | {PREFIX + name: value for name, value in own.items()}
        averages = base.averages | _prefixed(moments.start(self._factor))
        return Learned(numbers, averages, base.statistics | _prefixed(moments.empty_statistics(self._factor)))

    def formula(
        self,
        q: Distribution,
        evaluation: Evaluation,
        learned: Learned,
        weight: Float[Array, "*batch"],
        context: Float[Array, "*#batch features"] | None,
    ) -> Applied:
        r"""Compute :math:`base(f - t r, \nabla f - t \nabla r) + t M \, slope` and the gradient of the misfit."""
        xp, own = q.xp, {name: detach(learned.numbers[PREFIX + name]) for name in OWN}
        of_base, judged = (
            Learned({}, {name: detach(value) for name, value in averages.items()}, {})
            for averages in _split(learned.averages)
        )
        of_base = of_base._replace(numbers=_split(learned.numbers)[0])
        context = _features(q, evaluation, q.logits if context is None else context, own["readout"].shape[0])
        unit = xp.astype(xp.exp(judged.averages["log_scale"] / 2), evaluation.f.dtype)
        own_units = _fit(q, evaluation, own, context)
        fit = own_units.scale(unit)
        factor = xp.astype(xp.clip(judged.averages["coefficients"][0], 0, 1), unit.dtype)
        factor = xp.where(has_fallen(judged.averages), xp.zeros_like(factor), factor)
        used = fit.scale(factor)
        share = _share(q, evaluation.df, of_base.averages["floor"]) if "floor" in of_base.averages else None
        base = self.base.formula(q, _residual(evaluation, used, share), of_base, weight, None)
        exact = q.covariance_product(used.slope)
        if share is not None:
            exact = q.scale(sum_over_samples(share) / share.shape[0], exact)
        gradient = base.gradient + exact
        parts = _judged_parts(q, evaluation, fit)
        statistics = moments.statistics(judged.averages, parts, ("factor",), weight, self._factor)
        statistics_of_both = base.statistics | _prefixed(statistics)
        of_own = self._gradient_of_misfit(q, evaluation, own_units, own, context, weight, unit)
        if self.needs.derivatives:
            derivatives = base.derivatives or (lambda cotangent: {})
            return Applied(gradient, statistics_of_both, lambda cotangent: derivatives(cotangent) | of_own)
        # Automatic differentiation finds the derivatives of the base, and these by a sum that is linear in them.
        loss = sum(xp.sum(learned.numbers[name] * xp.astype(value, unit.dtype)) for name, value in of_own.items())
        return Applied(gradient, statistics_of_both, None, loss if base.loss is None else loss + base.loss)

    def _gradient_of_misfit(
        self,
        q: Distribution,
        evaluation: Evaluation,
        fit: _Fit,
        own: Mapping[str, Any],
        context: Float[Array, "*#batch features"],
        weight: Float[Array, "*batch"],
        unit: Float[Array, ""],
    ) -> dict[str, Any]:
        r"""Return the gradient in the parameters of the weighted misfit, over some of the batch elements.

        It is written out, and not left to automatic differentiation, because it then needs no second forward pass over
        these elements. With the cotangents :math:`\bar r_k` and :math:`\bar d_k` of r and of its gradient in x,
        :math:`p_{kr} = u_r^T s_k` and :math:`c_{kr} = w_r p_{kr}`,

        .. math::
            \bar{slope} = \sum_k \bar r_k s_k + \bar d_k, \quad
            \bar\delta = -\sum_k \tfrac12 \bar r_k s_k^2 + \bar d_k s_k, \quad
            \bar c_{kr} = \tfrac12 \bar r_k p_{kr} + u_r^T \bar d_k, \quad
            \bar w_r = \sum_k \bar c_{kr} p_{kr} + \sum_l u_{rl}^2 \bar\delta_l,

        .. math::
            \bar u_r = \sum_k c_{kr} \bar d_k + \big(\tfrac12 \bar r_k c_{kr} + \bar c_{kr} w_r\big) s_k
                + 2 w_r \, u_r \bar\delta.
        """
        xp, K, (variables,) = q.xp, self.samples, q.event_shape
        step = max(1, prod(q.batch_shape) // max(FIT_ELEMENTS, FIT_POINTS // K))
        elements, directions = len(range(0, prod(q.batch_shape), step)), own["directions"].shape[0]
        features = context.shape[-1]

        def some(array: Array, *trailing: int) -> Array:
            return q.subsample_array(step, array, trailing)

        # The context may have fewer batch axes than q.
        context, w = (xp.broadcast_to(v, (*q.batch_shape, v.shape[-1])) for v in (context, fit.w))
        context, w = some(context, features), some(w, directions)
        score = some(q.score(evaluation.x), variables)
        variance = some(q.covariance_product(xp.ones_like(q.mean)), variables)
        f, df = some(evaluation.f) / unit, some(evaluation.df, variables) / unit
        along = some(fit.along, directions)
        remaining_f, remaining_df = f - some(fit.r), df - some(fit.dr, variables)
        centered = remaining_f - sum_over_samples(remaining_f) / K
        misfit_of_f = sum_over_samples(centered**2) / max(1, K - 1)
        misfit = misfit_of_f + sum_over_samples(q.dot(remaining_df, variance * remaining_df)) / K
        # An outlier would stay in the averages of Adam for a thousand steps. A batch element without weight does not
        # count, even if f is not finite there. The weights are scaled as if all elements had been used.
        weight, ones = some(weight), xp.ones_like(misfit)
        weight = step * weight / xp.where(misfit > LARGEST_MISFIT, misfit / LARGEST_MISFIT, ones)
        counts, none = (weight > 0) & xp.isfinite(misfit), xp.zeros_like(misfit)
        of_r = xp.where(counts, -2 / max(1, K - 1) * weight * centered, none)
        of_dr = q.scale(xp.where(counts, -2 / K * weight, none), variance)
        of_dr = xp.where(counts[..., None], of_dr * remaining_df, xp.zeros_like(of_dr))

        scaled = q.scale(of_r, score)
        of_slope = sum_over_samples(scaled + of_dr)
        of_diagonal = -sum_over_samples((scaled / 2 + of_dr) * score)
        U = xp.astype(own["directions"], score.dtype)
        flat, rows = (K * elements, variables), (K * elements, directions)
        of_weighted = of_r[..., None] / 2 * along + xp.reshape(xp.reshape(of_dr, flat) @ U.T, tuple(along.shape))
        weighted = w * along
        of_along = of_r[..., None] / 2 * weighted + of_weighted * w
        of_w = sum_over_samples(of_weighted * along) + of_diagonal @ (U**2).T
        of_directions = (
            xp.reshape(weighted, rows).T @ xp.reshape(of_dr, flat)
            + xp.reshape(of_along, rows).T @ xp.reshape(score, flat)
            + 2 * U * (w.T @ of_diagonal)
        )
        of_readout = xp.concat([of_slope, of_w], axis=-1)
        gradients = (of_directions, context.T @ of_readout, xp.sum(of_readout, axis=0))
        return {PREFIX + name: value for name, value in zip(OWN, gradients, strict=True)}

    def advance(self, averages: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """Move the running averages of the base and of the judgement."""
        of_base, judged = _split(averages)
        statistics_of_base, statistics_judged = _split(statistics)
        before, of_base = of_base, self.base.advance(of_base, statistics_of_base)
        # The floor of the base follows a fall at once, so that the share no longer tells it in the next step.
        fall = norm.fall_at_once(before, of_base) if "norm_fallen" in of_base else None
        judged = moments.advance(judged, statistics_judged, self._factor, sees_f=False, fall=fall)
        if isinstance(self.base, LinearEstimator) and of_base:
            # Its coefficients are those of a residual. Without the surrogate it gets f itself, and where f may have
            # become much larger, the surrogate leaves nearly all of it.
            of_base = self.base.leave_out(of_base, has_fallen(judged) | (judged["log_excess"] > JUMP))
        return of_base | _prefixed(judged)


def _prefixed(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {PREFIX + name: value for name, value in tree.items()}


def _split(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what belongs to the base, and what belongs to the surrogate, without its prefix."""
    own = {name.removeprefix(PREFIX): value for name, value in tree.items() if name.startswith(PREFIX)}
    return {name: value for name, value in tree.items() if not name.startswith(PREFIX)}, own


def _judged_parts(q: Distribution, evaluation: Evaluation, fit: _Fit) -> WeightedScores:
    r"""Return :math:`\mathrm{RLOO}(f)` and :math:`M \, slope - \mathrm{RLOO}(r)`, the parts that judge the factor.

    They are kept as weights of the scores, because the judgement looks at some batch elements only.
    """

    def weights(values: Float[Array, "K *batch"]) -> Float[Array, "K *batch"]:
        if values.shape[0] == 1:
            return values
        # Exactly 0 where all values are the same: a rounding error would look as if f had become much smaller.
        differences = subtract_from_samples(values, values[0])
        return differences - leave_one_out(differences)

    exact = q.covariance_product(fit.slope)
    return WeightedScores(
        q, q.score(evaluation.x), weights(evaluation.f), {"factor": -weights(fit.r)}, {"factor": -exact}
    )


class _Fit(NamedTuple):
    """Hold the surrogate at the samples.

    Attributes:
        slope: its gradient in x at the mean; M times it is the gradient of E[r].
        r: its values.
        dr: its gradient in x.
        w: the curvature along each direction.
        along: the score along each direction, which is no multiple of the surrogate.
    """

    slope: Float[Array, "*batch D"]
    r: Float[Array, "K *batch"]
    dr: Float[Array, "K *batch D"]
    w: Float[Array, "*batch R"]
    along: Float[Array, "K *batch R"]

    def scale(self, factor: Float[Array, ""]) -> _Fit:
        """Return the surrogate times a number."""
        return _Fit(factor * self.slope, factor * self.r, factor * self.dr, factor * self.w, self.along)


def _features(
    q: Distribution, evaluation: Evaluation, context: Array, features: int
) -> Float[Array, "*#batch features"]:
    """Return the context divided by the square root of its width, held constant, in the type of the score."""
    wanted = (*q.batch_shape[max(0, len(q.batch_shape) + 1 - context.ndim) :], features)
    if tuple(context.shape) != wanted:
        raise ValueError(
            f"context must have shape {wanted}, the features of each batch element that init saw, got shape "
            f"{tuple(context.shape)}"
        )
    return detach(q.xp.astype(context, q.xp.result_type(evaluation.x, q.logits))) / features**0.5


def _fit(q: Distribution, evaluation: Evaluation, parameters: Mapping[str, Any], context: Array) -> _Fit:
    """Compute r and its gradient in x at the samples."""
    xp, score = q.xp, q.score(evaluation.x)
    parameters = {name: xp.astype(value, score.dtype) for name, value in parameters.items()}
    directions = parameters["directions"]
    count, variables = directions.shape
    readout = context @ parameters["readout"] + parameters["readout_bias"]
    slope, w = readout[..., :variables], readout[..., variables:]
    diagonal = w @ directions**2
    # One axis of points: the gradient of the directions would transpose what it sums over two axes.
    along = xp.reshape(xp.reshape(score, (-1, variables)) @ directions.T, (*score.shape[:-1], count))
    across = xp.reshape(xp.reshape(w * along, (-1, count)) @ directions, score.shape)
    dr = slope + across - diagonal * score
    # The quadratic form at s is half the product of s with the form's gradient at s, and the slope is counted twice.
    return _Fit(slope, q.dot(score, slope + dr) / 2, dr, w, along)


def _share(q: Distribution, df: Float[Array, "K *batch D"], floor: Float[Array, ""]) -> Float[Array, "K *batch"]:
    r"""Return :math:`\phi_k = \min(1, n_k / (\beta \ell)^2)` with :math:`n_k = G_k^T M G_k`."""
    xp, square = q.xp, q.dot(df, q.covariance_product(df))
    limit = xp.astype((FLOOR_SHARE * floor) ** 2, square.dtype)
    # A gradient of 0 is no sign of a fall: f is flat there.
    is_small = (square < limit) & (square > 0)
    return xp.where(is_small, square / xp.where(is_small, limit, xp.ones_like(square)), xp.ones_like(square))


def _residual(evaluation: Evaluation, fit: _Fit, share: Float[Array, "K *batch"] | None) -> Evaluation:
    """Return f - r for the base; at the mean, r is 0 and its gradient is the slope.

    The direction stays that of f. Where f is flat, the residual's is that of r, which changes with its factor.
    """
    residual = replace(
        evaluation,
        direction=evaluation.df,
        f=evaluation.f - fit.r,
        df=evaluation.df - fit.dr,
        df_mean=None if evaluation.df_mean is None else evaluation.df_mean - fit.slope,
    )
    if share is None:
        return residual
    of_f, of_r = (values - leave_one_out(values) for values in (evaluation.f, fit.r))
    # What the surrogate is multiplied by in the weight of a sample must not depend on that sample.
    return replace(residual, df=share[..., None] * residual.df, weight=of_f - leave_one_out(share) * of_r)
