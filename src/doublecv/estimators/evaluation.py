"""Values of f that a front-end computed for an estimator's formula."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from doublecv.arrays import Array, register_where_jax_is_in_use

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Hold f at the K samples and what else the estimator needs; fields that it does not need are None.

    Attributes:
        x: the samples.
        f: f at the samples.
        df: the gradient of f in x at the samples.
        f_mean: f at the mean of q.
        df_mean: the gradient of f in x at the mean of q.
        expected_f: the exact mean of f under q.
        control: the estimator's own control variate at its relaxed points.
        dcontrol: the gradient of `control` in the logits.
        direction: vectors whose direction bounded control variates have, if it is not that of df.
        weight: the weights of the scores in RLOO, if they are not f less its leave-one-out mean.
        floor: the floor of the norm of these vectors (see `doublecv.estimators.norm`), which earlier steps determine.
    """

    x: Float[Array, "K *logits"]
    f: Float[Array, "K *batch"]
    df: Float[Array, "K *logits"] | None = None
    f_mean: Float[Array, "*batch"] | None = None
    df_mean: Float[Array, "*logits"] | None = None
    expected_f: Float[Array, "*batch"] | None = None
    control: Float[Array, "relaxed *batch"] | None = None
    dcontrol: Float[Array, "relaxed *logits"] | None = None
    direction: Float[Array, "K *logits"] | None = None
    weight: Float[Array, "K *batch"] | None = None
    floor: Float[Array, ""] | None = None

    def __post_init__(self) -> None:
        register_where_jax_is_in_use(self, *FIELDS)


FIELDS = tuple(field.name for field in fields(Evaluation))
"""The names of the fields of `Evaluation`, in order."""
