"""Exact mean and variance of an estimator, by enumeration of every outcome of its samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, value_and_gradient
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, Evaluation, Learned

if TYPE_CHECKING:
    from jaxtyping import Float, Int

LARGEST_ENUMERATION = 2**20
"""The largest number of outcomes that is enumerated; the functions refuse more rather than fill the memory."""


class ExactMoments(NamedTuple):
    """Hold the exact mean and variance of an estimator, for every logit."""

    mean: Float[Array, "*logits"]
    variance: Float[Array, "*logits"]


def exact_gradient(f: Callable[[Array], Array], q: Distribution) -> Float[Array, "*logits"]:
    r"""Return :math:`\nabla_{logits} E_q f = \sum_x q(x) f(x) s(x)` by enumeration of every x.

    f is not differentiated.

    >>> import doublecv as dcv
    >>> q = dcv.Bernoulli(logits=np.zeros(2))
    >>> exact_gradient(lambda x: x.sum(-1), q)
    array([0.25, 0.25])

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, small enough for every x to be enumerated.
    """
    points, probabilities = support(q)
    return q.xp.sum(q.scale(probabilities * f(points), q.score(points)), axis=0)


def exact_mean(f: Callable[[Array], Array], q: Distribution) -> Float[Array, "*batch"]:
    r"""Return :math:`E_q f = \sum_x q(x) f(x)` by enumeration of every x."""
    points, probabilities = support(q)
    return q.xp.sum(probabilities * f(points), axis=0)


def expected_value(f: Callable[[Array], Array], q: Distribution, estimator: Estimator) -> Float[Array, "*batch"]:
    """Return the mean of f as the estimator asks for it: by a function of its own, or by enumeration."""
    function = estimator.needs.expected_f
    return function(q) if callable(function) else exact_mean(f, q)


def exact_moments(
    f: Callable[[Array], Array],
    q: Distribution,
    estimator: Estimator,
    learned: Learned | None = None,
    *,
    context: Float[Array, "*#batch features"] | None = None,
    df: Callable[[Array], Array] | None = None,
) -> ExactMoments:
    """Return the estimator's mean and variance by enumeration of all outcomes with their exact joint probability.

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, small enough for all outcomes of K samples to be enumerated.
        estimator: the estimator.
        learned: the learned state; None for the initial one.
        context: features of each batch element, for estimators that use them.
        df: the gradient of f in x, for NumPy arrays; JAX and torch find it by automatic differentiation.
    """
    outcomes = enumerate_outcomes(f, q, estimator, df)
    estimates = outcomes.estimates(estimator.init(q, context) if learned is None else learned, context)
    mean = outcomes.expectation(estimates)
    return ExactMoments(mean, outcomes.expectation((estimates - mean) ** 2))


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Hold all outcomes of an estimator's K samples along one more batch axis in front."""

    estimator: Estimator
    q: Distribution
    evaluation: Evaluation
    probabilities: Float[Array, "outcomes *batch"]

    def estimates(
        self, learned: Learned, context: Float[Array, "*#batch features"] | None = None
    ) -> Float[Array, "outcomes *logits"]:
        """Return the estimate of each outcome."""
        return self.estimator.apply(self.q, self.evaluation, learned, None, context).gradient

    def expectation(self, values: Float[Array, "outcomes *logits"]) -> Float[Array, "*logits"]:
        """Return the mean of a function of the outcome."""
        return self.q.xp.sum(self.q.scale(self.probabilities, values), axis=0)


def enumerate_outcomes(
    f: Callable[[Array], Array],
    q: Distribution,
    estimator: Estimator,
    df: Callable[[Array], Array] | None = None,
) -> Outcomes:
    """Return every outcome of the estimator's K samples, with f at them and their joint probability."""
    estimator.check_family(q)
    needs = estimator.needs
    if needs.relaxed_points:
        raise ValueError(
            f"estimator must be a function of its samples only, got {type(estimator).__name__}, which also draws "
            f"continuous points that cannot be enumerated; measure its variance over draws instead"
        )
    xp, variables = q.xp, q.event_shape[0]
    joint = needs.coupling.joint(q, estimator.samples)
    count = len(joint.patterns) ** variables
    _check_enumerable(f"{estimator.samples} samples of {variables} variables", count)
    pattern_of_variable = _choices(len(joint.patterns), variables)

    # f is evaluated once at every point of the support; an outcome is K indices into it.
    points, _ = support(q)
    values, gradients = _evaluate(f, points, df, needs.gradient)
    value_of_variable = np.array(joint.patterns)[pattern_of_variable]
    place = q.variable_values().shape[0] ** np.arange(variables - 1, -1, -1)
    index = _indices(q, value_of_variable.transpose(2, 0, 1) @ place)

    def at_outcomes(table: Array) -> Array:
        return xp.reshape(xp.take(table, index, axis=0), (estimator.samples, count, *table.shape[1:]))

    repeated = q.broadcast_to((count, *q.batch_shape))
    f_mean = df_mean = None
    if needs.mean:
        f_mean, df_mean = _evaluate(f, q.mean[None], df, differentiate=True)
        f_mean = xp.broadcast_to(f_mean, repeated.batch_shape)
        df_mean = xp.broadcast_to(df_mean, tuple(repeated.logits.shape))
    df_at_outcomes = None if gradients is None else at_outcomes(gradients)
    expected_f = xp.broadcast_to(expected_value(f, q, estimator), repeated.batch_shape) if needs.expected_f else None
    evaluation = Evaluation(at_outcomes(points), at_outcomes(values), df_at_outcomes, f_mean, df_mean, expected_f)
    return Outcomes(
        estimator, repeated, evaluation, _product_over_variables(q, joint.probabilities, pattern_of_variable)
    )


def support(q: Distribution) -> tuple[Float[Array, "points *logits"], Float[Array, "points *batch"]]:
    """Return every value of x and its probability."""
    values, variables = q.variable_values(), q.event_shape[0]
    count = values.shape[0] ** variables
    _check_enumerable(f"{variables} variables of {values.shape[0]} values each", count)
    chosen = _choices(values.shape[0], variables)
    points = q.xp.reshape(
        q.xp.take(values, _indices(q, chosen), axis=0), (count, *(1,) * len(q.batch_shape), *q.event_shape)
    )
    points = q.xp.broadcast_to(points, (count, *q.batch_shape, *q.event_shape))
    return points, _product_over_variables(q, q.variable_probabilities(), chosen)


def _choices(entries: int, variables: int) -> Int[np.ndarray, "choices variables"]:
    """Return every choice of one of `entries` for each variable, the last variable changing fastest."""
    return np.indices((entries,) * variables).reshape(variables, -1).T


def _product_over_variables(
    q: Distribution, probabilities: Float[Array, "entries *batch D"], chosen: Int[np.ndarray, "choices D"]
) -> Float[Array, "choices *batch"]:
    """Return, for every choice of one entry per variable, the product of the chosen probabilities."""
    result = q.xp.ones((chosen.shape[0], *q.batch_shape), dtype=q.logits.dtype, device=device(q.logits))
    for variable in range(chosen.shape[1]):
        result = result * q.xp.take(probabilities[..., variable], _indices(q, chosen[:, variable]), axis=0)
    return result


def _indices(q: Distribution, indices: Int[np.ndarray, "..."]) -> Int[Array, "entries"]:
    """Return flat indices as an array of the same library and device as the logits."""
    return q.xp.asarray(np.ascontiguousarray(indices.reshape(-1)), device=device(q.logits))


def _check_enumerable(what: str, count: int) -> None:
    if count > LARGEST_ENUMERATION:
        raise ValueError(
            f"{what} have {count:,} outcomes, more than the {LARGEST_ENUMERATION:,} that are enumerated; "
            f"take fewer variables or samples, or the functions that draw: variance() and optimal_coefficients()"
        )


def _evaluate(
    f: Callable[[Array], Array], x: Array, df: Callable[[Array], Array] | None, differentiate: bool
) -> tuple[Array, Array | None]:
    """Return f at x and, where wanted, its gradient."""
    if not differentiate:
        return f(x), None
    if df is not None:
        return f(x), df(x)
    return value_and_gradient(f, x)
