"""What both front-ends check and refuse, in the same words."""

from __future__ import annotations

from typing import Any

from doublecv.arrays import Shape
from doublecv.estimators import Estimator


def check_estimator(estimator: Any) -> None:
    """Raise unless `estimator` is one of doublecv's."""
    if not isinstance(estimator, Estimator):
        raise TypeError(
            f"estimator must be a doublecv estimator such as doublecv.RLOO(samples=2), got {type(estimator).__name__}"
        )


def check_pullback(estimator: Estimator, pullback: Any) -> None:
    """Raise where a pullback is given to an estimator that learns from the logits' gradient alone."""
    if pullback is not None and estimator.averaged:
        raise ValueError(
            f"pullback was given, but {type(estimator).__name__} learns its coefficients from moments of the logits' "
            f"gradient; leave pullback out, or make the estimator with learning='gradient'"
        )


def check_returned_shape(what: str, values: Any, wanted: Shape) -> None:
    """Raise unless what f returned is an array of the shape `wanted`."""
    given = tuple(values.shape) if hasattr(values, "shape") else type(values).__name__
    if given != wanted:
        raise ValueError(
            f"{what} must return shape {wanted}, one number for each sample (in front) and batch element, got {given}; "
            f"sum over the event axes and over nothing else"
        )


def differentiated_twice(what: str, remedy: str) -> TypeError:
    """The error for a second derivative, with what can be done instead in the front-end's own terms."""
    return TypeError(
        f"{what} was differentiated twice, but the derivative of a gradient estimate estimates no second derivative; "
        f"{remedy}"
    )
