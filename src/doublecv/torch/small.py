"""The backward pass of small problems on the CPU, with NumPy: it starts an operation several times faster than PyTorch.

A formula is about a hundred operations on arrays of a few thousand numbers, whose time is that of starting them. The
formulas know no framework, so the same ones run on views of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from doublecv.distributions import Distribution, event_size
from doublecv.estimators import Estimator, Evaluation, Learned, LinearEstimator
from doublecv.torch.evaluating import Side

if TYPE_CHECKING:
    from jaxtyping import Float

LARGEST = 2**17
"""The largest number of coordinates of all samples for which NumPy is taken; PyTorch has several threads for more."""


class Step(NamedTuple):
    """Hold the inputs of the backward pass of one step; all but `side` are detached from the graph.

    Attributes:
        logits: the logits of q, in the type of the model.
        mean: the mean of q in the wide type; None on paths.
        samples: the samples.
        values: f at the samples.
        weight: the weight of each batch element in the loss.
        weighted_df: the gradient of f in x times weight / K, where the estimator needs it.
        gradient: the gradient of f in x, where the objective is not the mean of f.
        side: what the estimator needs in addition to f at the samples.
        learned: the learned state that the estimate uses.
        fixed: the coefficients and the floor, where they are held fixed in this step, in the order of `held_names`.
        parameters: the parameters that receive the derivatives of the numbers, by name.
    """

    logits: Float[Tensor, "*logits"]
    mean: Float[Tensor, "*logits"] | None
    samples: Float[Tensor, "K *logits"]
    values: Float[Tensor, "K *batch"]
    weight: Float[Tensor, "*batch"]
    weighted_df: Float[Tensor, "K *logits"] | None
    gradient: Float[Tensor, "K *logits"] | None
    side: Side
    learned: Learned
    fixed: Float[Tensor, "numbers"] | None
    parameters: Mapping[str, Tensor]


def smallest_weight(dtype: torch.dtype, samples: int) -> float:
    """Return the weight below which a batch element does not count, because the gradient cannot be divided by it."""
    return torch.finfo(dtype).smallest_normal * samples * 4


def is_small(estimator: Estimator, pullback: object | None, step: Step) -> bool:
    """Return whether the backward pass can run with NumPy: on the CPU, small, and without automatic differentiation."""
    explicit = estimator.gives_derivatives or not any(value.requires_grad for value in step.learned.numbers.values())
    return (
        explicit
        and pullback is None
        and step.logits.device.type == "cpu"
        and step.samples.numel() <= LARGEST
        and estimator.needs.relaxed_points == 0
    )


def small_backward(
    estimator: Estimator, family: Callable[[Any], Distribution], pullback: object | None, step: Step
) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """Return the gradients in the logits and the numbers, and the statistics of this step as NumPy arrays."""
    K, wide = step.samples.shape[0], torch.promote_types(step.logits.dtype, torch.float32)

    def array(tensor: Tensor | None) -> Any:
        if tensor is None or (tensor.dtype == wide and not tensor.requires_grad):
            return tensor if tensor is None else tensor.numpy()
        return tensor.detach().to(torch.promote_types(tensor.dtype, wide)).numpy()

    q = family(array(step.logits)).remember(array(step.mean))
    samples, values, weight, df = map(array, (step.samples, step.values, step.weight, step.weighted_df))
    side = Side(*map(array, step.side))
    # Infinities are an answer here, as in PyTorch.
    with np.errstate(all="ignore"):
        counts = np.abs(weight) > smallest_weight(step.weight.dtype, K)
        all_count = bool(counts.all())
        if df is not None:
            df = q.scale(K / weight, df)
            if step.gradient is not None:
                df = array(step.gradient)
        if not all_count:
            # A batch element without weight does not count, even if f is not finite there.
            weight = np.where(counts, weight, 0)
            values, df = _only_where(counts, values), None if df is None else _only_where(counts, df)
            side = side._replace(**{name: _only_where(counts, getattr(side, name), 0) for name in AT_ELEMENTS})
        numbers, averages = ({name: array(value) for name, value in tree.items()} for tree in step.learned[:2])
        if step.fixed is not None:
            assert isinstance(estimator, LinearEstimator)
            numbers = dict(zip(estimator.held_names, step.fixed.tolist(), strict=True))
        learned = Learned(numbers, averages, step.learned.statistics)
        evaluation = Evaluation(samples, values, df, *side[:5])
        applied = estimator.apply(q, evaluation, learned, np.abs(weight), side.context)
        of_logits = q.scale(weight, applied.gradient)
        of_numbers = {}
        if wanted := [name for name, value in step.learned.numbers.items() if value.requires_grad]:
            assert applied.derivatives is not None, "the estimator gives the derivatives of its numbers"
            magnitude = 2 / max(1, event_size(q)) * np.abs(weight)
            cotangent = q.scale(magnitude, applied.gradient)
            if not all_count:
                cotangent = _only_where(counts, cotangent, 0)
            found = applied.derivatives(cotangent)
            # `torch.as_tensor` takes three times as long for a scalar of NumPy.
            arrays = {name: torch.from_numpy(np.asarray(found[name])) for name in wanted}
            of_numbers = {name: value.to(step.learned.numbers[name].dtype) for name, value in arrays.items()}
        if not all_count:
            of_logits = _only_where(counts, of_logits, 0)
    return torch.from_numpy(of_logits).to(step.logits.dtype), of_numbers, applied.statistics


AT_ELEMENTS = ("f_mean", "df_mean", "expected_f")
"""The fields of `Side` that hold one entry per batch element."""


def _only_where(counts: Any, array: Any, leading: int = 1) -> Any:
    """Return the array with zeros for batch elements that do not count; `leading` axes are in front of the batch."""
    if array is None:
        return None
    behind = array.ndim - counts.ndim - leading
    return np.where(counts[(..., *(None,) * behind)], array, 0)
