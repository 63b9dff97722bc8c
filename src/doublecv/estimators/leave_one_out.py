"""The leave-one-out mean over the samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from doublecv.arrays import Array, sum_over_samples

if TYPE_CHECKING:
    from jaxtyping import Float


def leave_one_out(v: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
    """loo(v)_k = 1/(K-1) sum_{j != k} v_j."""
    return (sum_over_samples(v)[None] - v) / (v.shape[0] - 1)
