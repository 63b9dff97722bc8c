"""Mean and variance of an estimator, exactly: every outcome of its samples, weighted by its joint probability."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from array_api_compat import device, is_jax_array, is_torch_array

from doublecv.arrays import Array
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float, Int

LARGEST_ENUMERATION = 2**20
"""The most outcomes that are enumerated; beyond it the functions refuse rather than fill the memory."""


class Moments(NamedTuple):
    """The exact mean and variance of an estimator, for every logit."""

    mean: Float[Array, "*logits"]
    variance: Float[Array, "*logits"]


def exact_gradient(f: Callable[[Array], Array], q: Distribution) -> Float[Array, "*logits"]:
    """d/dlogits E_q f = sum_x q(x) f(x) s(x), by enumeration of every x. f is not differentiated."""
    points, probabilities = support(q)
    return q.xp.sum(q.weigh(probabilities * f(points), q.score(points)), axis=0)


def exact_moments(
    estimator: Estimator,
    f: Callable[[Array], Array],
    q: Distribution,
    coefficients: Mapping[str, Any],
    df: Callable[[Array], Array] | None = None,
) -> Moments:
    """The estimator's mean and variance, by enumeration of all outcomes with their exact joint probability.

    Args:
        estimator: the estimator.
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, small enough for all outcomes of K samples to be enumerated.
        coefficients: the estimator's coefficients.
        df: the gradient of f in x, for NumPy arrays and estimators that need it; JAX and torch find it by themselves.
    """
    outcomes = enumerate_outcomes(estimator, f, q, df)
    estimates = outcomes.estimates(coefficients)
    mean = outcomes.expectation(estimates)
    return Moments(mean, outcomes.expectation((estimates - mean) ** 2))


@dataclass(frozen=True, eq=False)
class Outcomes:
    """All outcomes of an estimator's K samples, as one more batch axis in front."""

    estimator: Estimator
    q: Distribution
    evaluation: Evaluation
    probabilities: Float[Array, "outcomes *batch"]

    def estimates(self, coefficients: Mapping[str, Any]) -> Float[Array, "outcomes *logits"]:
        """The estimate that each outcome gives."""
        return self.estimator.gradient(self.q, self.evaluation, coefficients)

    def expectation(self, values: Float[Array, "outcomes *logits"]) -> Float[Array, "*logits"]:
        """The mean of a function of the outcome."""
        return self.q.xp.sum(self.q.weigh(self.probabilities, values), axis=0)


def enumerate_outcomes(
    estimator: Estimator,
    f: Callable[[Array], Array],
    q: Distribution,
    df: Callable[[Array], Array] | None = None,
) -> Outcomes:
    """Every outcome of the estimator's K samples, with f at them and their joint probability."""
    estimator.check_family(q)
    if estimator.relaxed_points:
        raise ValueError(
            f"estimator must be a function of its samples alone, got {type(estimator).__name__}, which draws "
            f"continuous points besides that cannot be enumerated; take variance(), which draws"
        )
    xp, variables = q.xp, q.event_shape[0]
    joint = estimator.sampler.joint(q, estimator.samples)
    count = len(joint.patterns) ** variables
    _check_enumerable(f"{estimator.samples} samples of {variables} variables", count)
    pattern_of_variable = _choices(len(joint.patterns), variables)

    # f is evaluated once at every point of the support; an outcome is K indices into it.
    points, _ = support(q)
    values, gradients = _evaluate(f, points, df, estimator.needs_df)
    value_of_variable = np.array(joint.patterns)[pattern_of_variable]
    place = q.variable_values().shape[0] ** np.arange(variables - 1, -1, -1)
    index = _indices(q, value_of_variable.transpose(2, 0, 1) @ place)

    def at_outcomes(table: Array) -> Array:
        return xp.reshape(xp.take(table, index, axis=0), (estimator.samples, count, *table.shape[1:]))

    repeated = q.broadcast_to((count, *q.batch_shape))
    f_mean = df_mean = None
    if estimator.needs_mean:
        f_mean, df_mean = _evaluate(f, q.mean[None], df, differentiate=True)
        f_mean = xp.broadcast_to(f_mean, repeated.batch_shape)
        df_mean = xp.broadcast_to(df_mean, tuple(repeated.logits.shape))
    df_at_outcomes = None if gradients is None else at_outcomes(gradients)
    evaluation = Evaluation(at_outcomes(points), at_outcomes(values), df_at_outcomes, f_mean, df_mean)
    return Outcomes(
        estimator, repeated, evaluation, _product_over_variables(q, joint.probabilities, pattern_of_variable)
    )


def support(q: Distribution) -> tuple[Float[Array, "points *logits"], Float[Array, "points *batch"]]:
    """Every value of x, and its probability."""
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
    """Every choice of one of `entries` for each variable, the last variable changing fastest."""
    return np.indices((entries,) * variables).reshape(variables, -1).T


def _product_over_variables(
    q: Distribution, probabilities: Float[Array, "entries *batch D"], chosen: Int[np.ndarray, "choices D"]
) -> Float[Array, "choices *batch"]:
    """For every choice of one entry a variable, the product of the chosen probabilities."""
    result = q.xp.ones((chosen.shape[0], *q.batch_shape), dtype=q.logits.dtype, device=device(q.logits))
    for variable in range(chosen.shape[1]):
        result = result * q.xp.take(probabilities[..., variable], _indices(q, chosen[:, variable]), axis=0)
    return result


def _indices(q: Distribution, indices: Int[np.ndarray, "..."]) -> Int[Array, "entries"]:
    """Flat indices as an array of the same library and device as the logits."""
    return q.xp.asarray(np.ascontiguousarray(indices.reshape(-1)), device=device(q.logits))


def _check_enumerable(what: str, count: int) -> None:
    if count > LARGEST_ENUMERATION:
        raise ValueError(
            f"{what} have {count:,} outcomes, more than the {LARGEST_ENUMERATION:,} that are enumerated; "
            f"take fewer, or the functions that draw: variance(), or optimal_alpha() with a key"
        )


def _evaluate(
    f: Callable[[Array], Array], x: Array, df: Callable[[Array], Array] | None, differentiate: bool
) -> tuple[Array, Array | None]:
    """f at x and, where wanted, its gradient, by whatever automatic differentiation the arrays have."""
    if not differentiate:
        return f(x), None
    if df is not None:
        return f(x), df(x)
    if is_jax_array(x):
        from doublecv.jax import evaluate

        return evaluate(f, x)
    if is_torch_array(x):
        import torch

        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            values = f(leaf)
            (gradient,) = torch.autograd.grad(values.sum(), leaf)
        return values.detach(), gradient
    raise ValueError(
        "df is None, but the estimator needs the gradient of f and NumPy cannot find it; "
        "give df, or make q of a JAX or torch array"
    )
