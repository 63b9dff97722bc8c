"""A learned quadratic surrogate of f: any estimator on what it leaves over, plus its own exact gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from doublecv.arrays import Array, detach, sum_over_samples
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.couplings import Coupling
from doublecv.estimators.evaluation import Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Surrogate(Estimator):
    """An estimator on the residual of f and a learned quadratic r(x, y), with the equation

        g = base estimator applied to (f - r, grad f - grad r)  +  M slope(y),

        r(x, y) = slope(y)^T s + 1/2 sum_r w_r(y) [(u_r^T s)^2 - sum_l u_rl^2 s_l^2],        s = x - mu
        grad r  = slope(y) + sum_r w_r(y) [(u_r^T s) u_r - u_r^2 * s]

    with slope and w linear in a context of the batch element, such as the last hidden layer of the encoder that made
    the logits, and the logits. The quadratic form has no diagonal, and E[s_j s_l s_i] = 0 for j != l, so that its
    gradient is 0 and the gradient of E[r] is M slope(y), exactly; for any parameters, the estimate is unbiased because
    the base estimator is (Paisley, Blei and Jordan, 2012, take out a surrogate whose gradient is known likewise).

    The parameters are the coefficient "surrogate". Their gradient is that of the sample variance of f - r plus
    1/K sum_k sum_i v_i (d_i f(x_k) - d_i r(x_k))^2, v = mu (1 - mu), on the same samples: learned by Adam with rate
    1e-3, say, after each use. Neither f's own parameters nor what made the context get any gradient from it.

    Bernoulli alone: a categorical variable has a block of the quadratic form to itself, and to take the blocks out of
    a sum of squares takes as long as C times as many variables would.

    Attributes:
        base: the estimator of the residual's gradient, any but those with relaxed points; K is that of the base.
        variables: D.
        features: the number of the context's features.
        directions: the number of directions u, at most D.
        context: the features of every batch element; it changes from call to call, so it is given when there is one:
            `dataclasses.replace(estimator, context=hidden)` in JAX, `expectation(f, q, context=hidden)` in PyTorch.
    """

    # K is the base's, and __post_init__ has checked that one.
    samples: int = field(init=False, default=1, repr=False)
    base: Estimator
    variables: int | None = None
    features: int | None = None
    directions: int = 100
    context: Float[Array, "*batch features"] | None = field(default=None, compare=False, repr=False)

    families: ClassVar[tuple[type[Distribution], ...]] = (Bernoulli,)

    def check_options(self) -> None:
        """Raise where the base cannot be used or a size is not one."""
        if not isinstance(self.base, Estimator):
            raise TypeError(f"base must be a doublecv estimator, got {type(self.base).__name__}")
        if self.base.relaxed_points or isinstance(self.base, Surrogate):
            raise ValueError(
                f"base must be an estimator of f at samples alone, got {type(self.base).__name__}; "
                f"take RLOO, DoubleCV, QuadraticDoubleCV, DisARM or ARMS"
            )
        for name in ("variables", "features", "directions"):
            size = getattr(self, name)
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise ValueError(f"{name} must be a positive integer, got {size!r}")
        if self.variables is not None and self.directions > self.variables:
            raise ValueError(f"directions must be at most variables, {self.variables}, got {self.directions}")
        object.__setattr__(self, "samples", self.base.samples)

    @property
    def name(self) -> str:
        """The registry's name."""
        return f"surrogate-{self.base.name}"

    @property
    def needs_df(self) -> bool:
        """The surrogate is fitted to the gradients too."""
        return True

    @property
    def needs_mean(self) -> bool:
        """Whatever the base needs."""
        return self.base.needs_mean

    @property
    def sampler(self) -> Coupling:
        """That of the base."""
        return self.base.sampler

    @property
    def averaged(self) -> tuple[str, ...]:
        """Those of the base."""
        return self.base.averaged

    def coefficients(self) -> dict[str, Any]:
        """Those of the base, and the surrogate's parameters: slope and weights 0, the directions cosines.

        r = 0 at first, and the estimate that of the base. The rows of the discrete cosine transform are orthogonal and
        no two variables have the same: a start as good as random rows, without random numbers.
        """
        variables, features = self._given("variables"), self._given("features")
        frequencies, places = np.arange(1, self.directions + 1)[:, None], np.arange(variables) + 0.5
        return {
            **self.base.coefficients(),
            "surrogate": {
                "directions": np.sqrt(2 / variables) * np.cos(np.pi / variables * frequencies * places),
                "slope": np.zeros((features, variables)),
                "slope_bias": np.zeros(variables),
                "weight": np.zeros((features, self.directions)),
                "weight_bias": np.zeros(self.directions),
            },
        }

    def numbers(self, coefficients: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the base, and the surrogate's parameters."""
        return {**self.base.numbers(self._of_base(coefficients)), "surrogate": coefficients["surrogate"]}

    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*batch D"]:
        """base(f - r, grad f - grad r) + M slope."""
        fitted = self._fitted(q, evaluation, coefficients["surrogate"])
        residual = _residual(evaluation, fitted)
        return self.base.formula(q, residual, self._of_base(coefficients)) + q.covariance(detach(fitted.slope))

    def formula_and_loss(
        self,
        q: Distribution,
        evaluation: Evaluation,
        coefficients: Mapping[str, Any],
        weight: Float[Array, "*batch"],
    ) -> tuple[Float[Array, "*batch D"], Float[Array, ""] | None]:
        """The estimate, and how badly the surrogate fits f and its gradient at the samples."""
        xp, fitted = q.xp, self._fitted(q, evaluation, coefficients["surrogate"])
        residual = _residual(evaluation, fitted)
        of_residual, loss = self.base.formula_and_loss(q, residual, self._of_base(coefficients), weight)
        left_of_f = evaluation.f - fitted.r
        centred = left_of_f - sum_over_samples(left_of_f) / self.samples
        left_of_df = evaluation.df - fitted.dr
        misfit = sum_over_samples(centred**2) / max(1, self.samples - 1) + sum_over_samples(
            q.dot(left_of_df, q.covariance(left_of_df))
        ) / (self.samples)
        fit = xp.sum(xp.abs(weight) * misfit)
        return of_residual + q.covariance(detach(fitted.slope)), fit if loss is None else fit + loss

    def _fitted(self, q: Distribution, evaluation: Evaluation, parameters: Mapping[str, Any]) -> _Fitted:
        """r and its gradient in x at the samples."""
        xp, score = q.xp, q.score(evaluation.x)
        context = self._checked_context(q)
        directions = parameters["directions"]
        slope = context @ parameters["slope"] + parameters["slope_bias"]
        w = context @ parameters["weight"] + parameters["weight_bias"]
        diagonal = w @ directions**2
        # One axis of points: the gradient of the directions would transpose what it sums over two axes.
        count, variables = directions.shape
        along = xp.reshape(xp.reshape(score, (-1, variables)) @ directions.T, (*score.shape[:-1], count))
        weighted = w * along
        across = xp.reshape(xp.reshape(weighted, (-1, count)) @ directions, score.shape)
        r = q.dot(slope, score) + (q.dot(weighted, along) - q.dot(diagonal * score, score)) / 2
        return _Fitted(slope, r, slope + across - diagonal * score)

    def _checked_context(self, q: Distribution) -> Float[Array, "*batch features"]:
        context, features = self._given("context"), self._given("features")
        wanted = (*q.batch_shape[max(0, len(q.batch_shape) + 1 - context.ndim) :], features)
        if tuple(context.shape) != wanted:
            raise ValueError(
                f"context must have shape {wanted}, the features of every batch element, got shape "
                f"{tuple(context.shape)}"
            )
        return detach(context)

    def _given(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise ValueError(
                f"{name} of Surrogate is None; give it: Surrogate(base, variables=D, features=C) and, for a gradient, "
                f"dataclasses.replace(estimator, context=array of shape [*batch, C])"
            )
        return value

    def _of_base(self, coefficients: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in coefficients.items() if name != "surrogate"}


class _Fitted(NamedTuple):
    """The surrogate at the samples.

    Attributes:
        slope: its gradient in x at the mean, of which M times is the gradient of E[r].
        r: its values.
        dr: its gradient in x.
    """

    slope: Float[Array, "*batch D"]
    r: Float[Array, "K *batch"]
    dr: Float[Array, "K *batch D"]


def _residual(evaluation: Evaluation, fitted: _Fitted) -> Evaluation:
    """f - r for the base, to which the surrogate is given; at the mean r is 0 and its gradient the slope."""
    return replace(
        evaluation,
        f=evaluation.f - detach(fitted.r),
        df=evaluation.df - detach(fitted.dr),
        df_mean=None if evaluation.df_mean is None else evaluation.df_mean - detach(fitted.slope),
    )
