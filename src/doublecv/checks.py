"""Checks and error messages that both front-ends share."""

from __future__ import annotations

from typing import Any

from doublecv.arrays import Shape
from doublecv.distributions import Categorical, Distribution
from doublecv.estimators import Estimator, label, names
from doublecv.estimators.base import not_an_estimator
from doublecv.sequential import Sequential


def check_estimator(estimator: Any) -> None:
    """Raise unless `estimator` is one of doublecv's."""
    if not isinstance(estimator, Estimator):
        raise not_an_estimator("estimator", estimator)


def check_sequential(estimator: Estimator) -> None:
    """Raise unless the estimator supports variables of several kinds and paths."""
    if not estimator.needs.path:
        raise TypeError(
            f"{label(estimator)} does not support q = Product, Layers or Autoregressive, whose variables are of "
            f"several kinds or depend on each other; take one of " + ", ".join(PATH_ESTIMATORS)
        )


PATH_ESTIMATORS = ("Reinforce", "RLOO", "DoubleCV", "HalfDoubleCV", "QuadraticDoubleCV", "MultiSampleBound")
"""The estimators that support paths."""


def check_function(f: Any, q: Any) -> None:
    """Raise unless f can be called and q is not a function."""
    if isinstance(f, Distribution | Sequential) or (callable(q) and not callable(f)):
        raise TypeError("f and q are swapped: the function comes first, then the distribution")
    if not callable(f):
        raise TypeError(f"f must be a function from points [K, *batch, *event] to [K, *batch], got {type(f).__name__}")


def check_pullback(estimator: Estimator, pullback: Any) -> None:
    """Raise if a pullback is given to an estimator whose coefficients come from moments of the logits' gradient."""
    if pullback is not None and estimator.needs.coefficients and not estimator.init().numbers:
        raise ValueError(
            f"pullback was given, but {label(estimator)} learns its coefficients from moments of the logits' gradient; "
            f"leave pullback out, or make the estimator with learning='gradient'"
        )


def check_returned_shape(what: str, values: Any, wanted: Shape, q: Distribution) -> None:
    """Raise unless what f returned is an array of the shape `wanted`."""
    given = tuple(values.shape) if hasattr(values, "shape") else type(values).__name__
    if given == wanted:
        return
    remedy = "sum over the event axes and over nothing else"
    if isinstance(given, tuple) and given == (wanted[0], *wanted[1:], q.event_shape[0]):
        remedy = (
            f"q has {q.event_shape[0]} variables per batch element, and f returned one number for each. If one "
            f"variable per example was meant, give the variables an axis of their own: "
            + ("logits[..., None, :]" if isinstance(q, Categorical) else "logits[..., None]")
            + "; otherwise sum over the variables"
        )
    elif isinstance(values, tuple):
        remedy = "if the second result is auxiliary output, say has_aux=True"
    raise ValueError(
        f"{what} must return shape {wanted}, one number for each sample (in front) and batch element, got {given}; "
        f"{remedy}"
    )


def split_aux(returned: Any, has_aux: bool) -> tuple[Any, Any]:
    """Return the values of f and its auxiliary output, which is None without `has_aux`."""
    if not has_aux:
        return returned, None
    if not isinstance(returned, tuple) or len(returned) != 2:
        given = f"an array of shape {tuple(returned.shape)}" if hasattr(returned, "shape") else type(returned).__name__
        raise TypeError(f"f must return (values, aux) with has_aux=True, got {given}")
    return returned


def missing_gradient(estimator: Estimator) -> TypeError:
    """Return the error for an f whose gradient in x is needed and identically zero."""
    return TypeError(
        f"the gradient of f in x is zero everywhere, but {label(estimator)} needs it: f uses a threshold, an index, an "
        f"embedding lookup, stop_gradient or detach of x, or does not depend on x. Make f differentiable in x, or take "
        f"an estimator that does not need the gradient: "
        + ", ".join(name for name in ("rloo", "disarm", "arms", "carms") if name in names())
    )


def differentiated_twice(what: str, remedy: str) -> TypeError:
    """Return the error for a second derivative, with the remedy in the front-end's own terms."""
    return TypeError(
        f"{what} was differentiated twice, but the derivative of a gradient estimate does not estimate a second "
        f"derivative; {remedy}"
    )
