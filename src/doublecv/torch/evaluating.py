"""Evaluate f where the estimators need it: at samples, at the mean of q, at relaxed points."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from doublecv.checks import check_returned_shape, missing_gradient, split_aux
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, Evaluation, RelaxedEstimator
from doublecv.exact import expected_value

if TYPE_CHECKING:
    from jaxtyping import Float

Function: TypeAlias = Callable[[Any], Any]
"""f, from points `[K, *batch, *event]` to numbers `[K, *batch]`."""

CheckedFunction: TypeAlias = Callable[[Tensor], tuple[Tensor, Any]]
"""f with checked results, as a function from points to a pair of values and auxiliary output."""


class Side(NamedTuple):
    """Hold what the estimator needs in addition to f at the samples; none of it reaches the model's own gradient.

    Attributes:
        f_mean: f at the mean of q, or None.
        df_mean: its gradient in x there, or None.
        expected_f: the exact mean of f, or None.
        control: the control variate at the relaxed points, or None. It has a graph, to be differentiated in the numbers
            that it was computed with, unless the estimate is linear in its coefficients.
        dcontrol: its gradient in the logits, or None.
        context: features of each batch element, or None.
    """

    f_mean: Tensor | None
    df_mean: Tensor | None
    expected_f: Tensor | None
    control: Tensor | None
    dcontrol: Tensor | None
    context: Tensor | None

    def evaluation(self, x: Tensor, values: Tensor, df: Tensor | None) -> Evaluation:
        """Return the evaluation that the formula takes."""
        return Evaluation(x, values, df, *self[:5])

    def only_where(self, counts: Tensor) -> Side:
        """Return the same with zeros for batch elements that do not count, even if f is not finite there."""
        f_mean, df_mean, expected_f = (only_where(counts, self[i], False) for i in range(3))
        control, dcontrol = (only_where(counts, self[i]) for i in range(3, 5))
        return Side(f_mean, df_mean, expected_f, control, dcontrol, self.context)


def only_where(counts: Tensor, tensor: Tensor | None, has_points: bool = True) -> Any:
    """Set the tensor to 0 for batch elements where `counts` is False; an axis of points may come first."""
    if tensor is None:
        return None
    behind = tensor.ndim - counts.ndim - has_points
    return torch.where(
        counts[(..., *(None,) * behind)], tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    )


def formulas(q: Distribution) -> AbstractContextManager[Any]:
    """Return a context in which formulas run in the type of the logits, even if the model runs under autocast."""
    return torch.autocast(q.logits.device.type, enabled=False) if _is_autocast(q) else nullcontext()


def _is_autocast(q: Distribution) -> bool:
    kind = q.logits.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def checked_function(f: Function, q: Distribution, has_aux: bool, dtype: torch.dtype) -> CheckedFunction:
    """Return a function that calls f with points of the type `dtype`, checks the result, and returns (values, aux)."""

    def checked(x: Tensor) -> tuple[Tensor, Any]:
        values, aux = split_aux(f(x.to(dtype)), has_aux)
        if not isinstance(values, Tensor):
            check_returned_shape("f", values, (x.shape[0], *q.batch_shape), q)
            raise TypeError(
                f"f must return a torch tensor, got {type(values).__name__}; convert it with torch.as_tensor, and take "
                f"an estimator that does not need the gradient of f"
            )
        check_returned_shape("f", values, (x.shape[0], *q.batch_shape), q)
        return values if values.is_floating_point() else values.to(q.logits.dtype), aux

    return checked


@dataclass(eq=False)
class Watched:
    """Call f, and note whether anything keeps the points that it was given after it has returned.

    A loss on points that were kept would add to the gradient that reaches them.

    Attributes:
        f: the function.
        kept: whether the last call left references to its points, other than in its result.
    """

    f: Function
    kept: bool = False

    def __call__(self, x: Any) -> Any:
        """Return f at x."""
        leaves = torch.utils._pytree.tree_leaves
        points = leaves(x)
        # PyTorch counts all its own references to a tensor, as in a graph, as one: this makes sure that there is one.
        holders = [point.detach() for point in points]
        for holder, point in zip(holders, points, strict=True):
            holder.grad = point
        before = list(map(sys.getrefcount, points))
        result = self.f(x)
        after = list(map(sys.getrefcount, points))
        returned = leaves(result)
        self.kept = any(
            new - old > sum(leaf is point for leaf in returned)
            for point, old, new in zip(points, before, after, strict=True)
        )
        return result


def evaluate(
    f: CheckedFunction, x: Float[Tensor, "K *logits"], needed_by: Estimator | None = None
) -> tuple[Float[Tensor, "K *batch"], Float[Tensor, "K *logits"], Any]:
    """Return f at the points x, its gradient in x and its auxiliary output; nothing else receives a gradient.

    Args:
        f: the function.
        x: the points.
        needed_by: the estimator that needs the gradient, for the error if it is missing; None for no error.
    """
    with torch.enable_grad():
        points = x.detach().requires_grad_()
        # f may change its argument in place, which a leaf does not allow.
        values, aux = f(points.clone())
        if needed_by is not None:
            check_gradient_exists(values, points, needed_by)
        return values, pointwise_gradient(values, points), aux


def check_gradient_exists(values: Tensor, x: Tensor, estimator: Estimator) -> None:
    """Raise if the graph of f shows that its gradient in x is zero everywhere and the estimator needs it.

    Operations whose derivative is zero whatever the numbers are (a threshold, an index, rounding) end the search. A
    gradient whose numbers are all 0 at these points is not missing.
    """
    target = torch.autograd.graph.get_gradient_edge(x).node
    waiting, seen = [values.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is target:
            return
        if node is None or node in seen or node.name().rstrip("0123456789") in ZERO_DERIVATIVE:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    raise missing_gradient(estimator)


ZERO_DERIVATIVE = frozenset(f"{name}Backward" for name in ("Ceil", "Floor", "Round", "Sgn", "Sign", "Trunc"))
"""The nodes of operations that are constant between jumps; others of this kind, as comparisons, have no node."""


def leaves_of(numbers: Mapping[str, Tensor], estimator: Estimator, q: Distribution) -> dict[str, Tensor]:
    """Return the numbers apart from the graph of the loss, to be differentiated where they require a gradient.

    Where they are differentiated through relaxed points, there is one copy of a scalar per point and batch element: the
    derivatives in the copies of a batch element that does not count can be left out, even if f is not finite there.
    """
    points = 0 if estimator.needs.coefficients else estimator.needs.relaxed_points

    def leaf(number: Tensor) -> Tensor:
        held = number.detach()
        copies = held.expand(points, *q.batch_shape) if points and not held.ndim else held
        return copies.requires_grad_(number.requires_grad)

    return {name: leaf(number) for name, number in numbers.items()}


def evaluate_side(
    f: CheckedFunction,
    q: Distribution,
    noise: Tensor | None,
    x: Float[Tensor, "K *logits"],
    estimator: Estimator,
    numbers: Mapping[str, Tensor],
    context: Tensor | None,
    learning: bool,
) -> Side:
    """Evaluate what the estimator needs in addition to f at the samples.

    Args:
        f: the checked function.
        q: the distribution, held constant.
        noise: the noise of the samples; None for paths.
        x: the samples.
        estimator: the estimator.
        numbers: the learned numbers, as `leaves_of` returns them.
        context: features of each batch element.
        learning: whether the numbers receive a gradient.
    """
    f_mean = df_mean = expected_f = control = dcontrol = None
    if estimator.needs.mean:
        with formulas(q):
            mean = q.mean
        values, df, _ = evaluate(f, mean[None], estimator)
        f_mean, df_mean = values[0].detach(), df[0]
    if estimator.needs.expected_f:
        with torch.no_grad():
            expected_f = expected_value(lambda points: f(points)[0], q, estimator)
    if isinstance(estimator, RelaxedEstimator):
        assert noise is not None  # `check_family` refuses paths for these estimators.
        graph = learning and not estimator.needs.coefficients
        control, dcontrol = _relaxed(f, q, noise, x, estimator, numbers, context, graph)
    return Side(f_mean, df_mean, expected_f, control, dcontrol, context)


def _relaxed(
    f: CheckedFunction,
    q: Distribution,
    noise: Tensor,
    x: Tensor,
    estimator: RelaxedEstimator,
    numbers: Mapping[str, Tensor],
    context: Tensor | None,
    graph: bool,
) -> tuple[Tensor, Tensor]:
    """Return the control variate at the relaxed points and its gradient in the logits of each."""
    f, points = _under_present_autocast(f, q), estimator.needs.relaxed_points

    def relaxed_f(z: Tensor) -> Tensor:
        values = f(z)[0]
        check_gradient_exists(values, z, estimator)
        return values

    with torch.enable_grad(), formulas(q):
        logits = q.broadcast_to((points, *q.batch_shape)).logits.detach().requires_grad_()
        values = estimator.control(relaxed_f, q.with_logits(logits), noise, x, numbers, context)
        check_returned_shape("f at the relaxed points", values, (points, *q.batch_shape), q)
        gradient = pointwise_gradient(values, logits, create_graph=graph)
        return values if graph else values.detach(), gradient


def _under_present_autocast(f: CheckedFunction, q: Distribution) -> CheckedFunction:
    if not _is_autocast(q):
        return f
    kind = q.logits.device.type
    dtype = torch.get_autocast_dtype(kind)

    def autocast_f(x: Tensor) -> tuple[Tensor, Any]:
        with torch.autocast(kind, dtype=dtype):
            return f(x)

    return autocast_f


def pointwise_gradient(values: Tensor, points: Tensor, create_graph: bool = False) -> Tensor:
    """Return the gradient of values each of which depends on one of the points; 0 where it depends on none."""
    if not getattr(values, "requires_grad", False):
        return torch.zeros_like(points)
    (gradient,) = torch.autograd.grad(
        values, points, torch.ones_like(values), create_graph=create_graph, materialize_grads=True
    )
    return gradient
