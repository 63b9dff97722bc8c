"""Verify that f treats samples and batch elements one by one, and whether its gradient in x exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, Shape
from doublecv.checks import missing_gradient
from doublecv.distributions import Bernoulli, Distribution
from doublecv.estimators import Estimator
from doublecv.paths import Blocks

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

SAMPLES = 4
"""The number of samples of the check without an estimator."""


@dataclass(frozen=True)
class Check:
    """Hold what `check` found; printed, it is a sentence.

    Attributes:
        points: the shape of the points that f was given.
        values: the shape of what it returned.
        dtype: the type of what it returned.
        depends_on_x: whether any value of f differed between the drawn points.
        has_gradient: whether the gradient of f in x exists and is not zero everywhere.
        reason: why there is no gradient, or an empty text.
    """

    points: Shape
    values: Shape
    dtype: str
    depends_on_x: bool
    has_gradient: bool
    reason: str = ""

    def __str__(self) -> str:
        gradient = "its gradient in x exists"
        if not self.has_gradient:
            gradient = f"{self.reason}; take an estimator that does not need it, such as rloo, disarm or arms"
        return (
            f"f maps {list(self.points)} to {list(self.values)} ({self.dtype}), treats samples and batch elements one "
            f"by one, and {gradient}."
        )


def verify(
    q: Distribution,
    x: Float[Array, "K *logits"],
    values_at: Callable[[Array], Float[Array, "K *batch"]],
    gradient_at: Callable[[Array], Float[Array, "K *logits"]],
    estimator: Estimator | None,
) -> Check:
    """Evaluate f at drawn points and at points that differ in some samples or batch elements; raise if f mixes them.

    For every bit of an index, all entries with this bit set are replaced while the others stay, and the other way
    round, so that every two entries are told apart in about 2 log2 of their number evaluations.

    Args:
        q: the distribution.
        x: drawn points.
        values_at: f with checked shapes.
        gradient_at: the gradient of f in x; it may raise.
        estimator: the estimator whose needs f must meet, or None.
    """
    xp, values = q.xp, values_at(x)
    if not bool(xp.all(xp.isfinite(values))):
        raise ValueError("f returned NaN or infinity at points of the support; its gradient would be NaN there")
    again = values_at(x)
    if _deviation(values, again) > 0:
        raise ValueError(
            "f returned other values for the same points: it draws random numbers. For this check, fix them: put "
            "dropout into evaluation mode, or draw the noise of f outside of it"
        )
    other = opposite(q, x)
    depends_on_x = _deviation(values, values[:1]) > 0 or _deviation(values, values_at(other)) > 0
    samples, batch = x.shape[0], q.batch_shape
    for keep in _halves(samples):
        _compare(q, values_at, x, other, values, keep.reshape(-1, *(1,) * len(batch)), "samples")
    for keep in _halves(prod(batch)):
        _compare(q, values_at, x, other, values, keep.reshape(1, *batch), "batch elements")
    reason = _missing_gradient(q, x, gradient_at, depends_on_x)
    if reason and estimator is not None and estimator.needs.gradient:
        raise missing_gradient(estimator)
    return Check(
        tuple(x.shape), tuple(values.shape), str(values.dtype).removeprefix("torch."), depends_on_x, not reason, reason
    )


def opposite(q: Distribution, x: Float[Array, "K *logits"]) -> Float[Array, "K *logits"]:
    """Return points of the support that differ from x in every variable that has two values."""
    if isinstance(q, Blocks):
        return q.map_parts(opposite, x)
    return 1 - x if isinstance(q, Bernoulli) else q.xp.roll(x, 1, axis=-1)


def _halves(size: int) -> Iterator[Bool[np.ndarray, "size"]]:
    """Yield sets of indices such that for every two indices one set has the first and not the second."""
    for bit in range((size - 1).bit_length()):
        is_set = (np.arange(size) >> bit) % 2 == 1
        yield is_set
        yield ~is_set


def _compare(
    q: Distribution,
    values_at: Callable[[Array], Array],
    x: Array,
    other: Array,
    values: Array,
    keep: Bool[np.ndarray, "K_or_1 *batch_or_1"],
    what: str,
) -> None:
    xp = q.xp
    kept = xp.asarray(np.broadcast_to(keep, tuple(values.shape)).copy(), device=device(q.logits))
    mixed = values_at(xp.where(kept[(..., *(None,) * q.event_axes)], x, other))
    change = _deviation(xp.where(kept, values, 0 * values), xp.where(kept, mixed, 0 * mixed))
    eps = float(xp.finfo(values.dtype).eps)
    scale = max(float(xp.max(xp.abs(values))), float(xp.max(xp.abs(mixed))))
    if not change <= min(0.05, 1000 * eps) * scale:
        axes = "the sample axis, which is the first," if what == "samples" else "the batch axes"
        raise ValueError(
            f"f mixes {what}: its value for some of them changed by {change:.3g} when only others were replaced, so "
            f"that it has no gradient that an estimator could estimate. Remove means, sums and normalization over "
            f"{axes} from f; put batch normalization into evaluation mode; sum over the event axes only"
        )


def _deviation(a: Array, b: Array) -> float:
    return float(abs(a - b).max())


def _missing_gradient(q: Distribution, x: Array, gradient_at: Callable[[Array], Array], depends_on_x: bool) -> str:
    if not depends_on_x:
        return "it does not depend on x"
    try:
        gradient = gradient_at(x)
    except Exception as error:
        # Any failure of the user's function means the same: there is no gradient.
        return f"its gradient in x cannot be computed ({type(error).__name__}: {str(error).splitlines()[0]})"
    if not bool(q.xp.any(gradient != 0)):
        return "its gradient in x is zero everywhere (a threshold, an index, an embedding lookup or a detached x)"
    return ""
