"""What a front-end computed of f, for an estimator's formula to use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from doublecv.arrays import Array, register_where_jax_is_in_use

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """f at the K samples and, where the estimator asks for it, the gradients of f and f at the mean of q.

    Attributes:
        x: the samples.
        f: f at the samples.
        df: the gradient of f in x at the samples; None where the estimator does not need it.
        f_mean: f at the mean of q; None where the estimator does not need it.
        df_mean: the gradient of f in x at the mean of q; None where the estimator does not need it.
        control: the estimator's own control variate at its relaxed points; None where it has none.
        dcontrol: the gradient of `control` in the logits.
    """

    x: Float[Array, "K *logits"]
    f: Float[Array, "K *batch"]
    df: Float[Array, "K *logits"] | None = None
    f_mean: Float[Array, "*batch"] | None = None
    df_mean: Float[Array, "*logits"] | None = None
    control: Float[Array, "relaxed *batch"] | None = None
    dcontrol: Float[Array, "relaxed *logits"] | None = None

    fields: ClassVar[tuple[str, ...]] = ("x", "f", "df", "f_mean", "df_mean", "control", "dcontrol")

    def __post_init__(self) -> None:
        register_where_jax_is_in_use(self, *self.fields)
