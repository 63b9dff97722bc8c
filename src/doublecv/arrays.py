"""Helpers for the operations on which NumPy, JAX and PyTorch differ.

All other operations in the formulas use the array API standard, so that one formula runs on all three libraries.

In annotations, `*batch` are the axes of independent problems, `*logits` are the batch axes followed by the axes of one
event (D for Bernoulli, D C for Categorical), K is the number of samples, `*leading` are any axes in front, and
`*points` are any axes followed by those of the logits. Axes marked `*#` are broadcast to those of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import add
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj, is_torch_array
from array_api_compat import is_jax_array as _is_jax_array

Array: TypeAlias = Any
"""A NumPy array, a JAX array (or tracer) or a torch tensor."""

Shape: TypeAlias = tuple[int, ...]


def namespace(array: Array) -> Any:
    """Return the array API namespace of an array's library.

    It depends only on the type, and is remembered because finding it takes longer than many operations of PyTorch.
    """
    kind = type(array)
    if kind not in _namespaces:
        _namespaces[kind] = array_namespace(array)
    return _namespaces[kind]


# NumPy has the standard's functions itself since 2.1, and answers faster without a wrapper around them.
_namespaces: dict[type, Any] = {np.ndarray: np} if hasattr(np, "cumulative_sum") else {}


def is_jax_array(array: Array) -> bool:
    """Return whether an array is one of JAX, traced or not; remembered for its type, as `namespace` is."""
    kind = type(array)
    if kind not in _of_jax:
        _of_jax[kind] = bool(_is_jax_array(array))
    return _of_jax[kind]


_of_jax: dict[type, bool] = {}


def is_array(value: Any) -> bool:
    """Return whether a value is an array of a library that has a namespace; remembered for its type also."""
    kind = type(value)
    if kind not in _are_arrays:
        _are_arrays[kind] = bool(is_array_api_obj(value))
    return _are_arrays[kind]


_are_arrays: dict[type, bool] = {}


def remember(array: Array) -> None:
    """Find now what the functions above remember for the type of an array."""
    namespace(array)
    is_jax_array(array)
    is_array(array)


def detach(array: Array) -> Array:
    """Return the same numbers, held constant under differentiation."""
    if isinstance(array, np.ndarray):
        return array
    if is_torch_array(array):
        return array.detach()
    if is_jax_array(array):
        import jax

        return jax.lax.stop_gradient(array)
    return array


def at_least(array: Array, least: float) -> Array:
    """Return the larger of each element and a number; `numpy.clip` takes several times as long for small arrays."""
    if isinstance(array, np.ndarray | np.generic):
        return np.maximum(array, least)
    return namespace(array).clip(array, least, None)


def at_most(array: Array, most: float) -> Array:
    """Return the smaller of each element and a number."""
    if isinstance(array, np.ndarray | np.generic):
        return np.minimum(array, most)
    return namespace(array).clip(array, None, most)


def sigmoid(array: Array) -> Array:
    """Return 1 / (1 + exp(-array)), accurate in both tails.

    PyTorch launches one kernel per operation, so its own sigmoid is much faster there, and NumPy's `where` takes ten
    times as long as its exponential. The formula uses `where` because the array libraries define the derivative of an
    absolute value at 0 as 0, which would make the derivative at 0 vanish silently.
    """
    xp = namespace(array)
    if is_torch_array(array):
        return xp.sigmoid(array)
    if isinstance(array, np.ndarray):
        # Infinity is right where the exponential overflows.
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-array))
    decay = xp.exp(xp.where(array >= 0, -array, array))
    return xp.where(array >= 0, xp.ones_like(decay), decay) / (1 + decay)


def sum_over_samples(v: Array) -> Array:
    r"""Return :math:`\sum_k v_k` over the leading axis.

    XLA on a CPU reduces a leading axis several times more slowly than the same additions written out, which it fuses
    with the operations that made the terms. NumPy's own function for sums takes several times as long to start.
    """
    if isinstance(v, np.ndarray):
        return np.add.reduce(v, axis=0)
    if is_jax_array(v) and 0 < v.shape[0] <= MAX_UNROLLED:
        return reduce(add, (v[k] for k in range(v.shape[0])))
    return namespace(v).sum(v, axis=0)


def subtract_from_samples(v: Array, shared: Array) -> Array:
    r"""Return :math:`v_k - shared` for every entry k of the leading axis.

    The differences are written out, or kept apart from what made v, because XLA on a CPU (jaxlib 0.10.2, jax-ml/jax
    issue 39103) reads wrong elements where a sum over the last axis is fused with an array that is broadcast over a
    leading axis.
    """
    if not is_jax_array(v):
        return v - shared[None]
    import jax

    if v.shape[0] <= MAX_UNROLLED:
        return namespace(v).stack([v[k] - shared for k in range(v.shape[0])])
    return jax.lax.optimization_barrier(v) - shared[None]  # type: ignore[no-untyped-call]


MAX_UNROLLED = 32
"""The longest sum over samples that is written out; the size of the compiled program grows with it."""


def log_mean_exp(v: Array, axis: int) -> Array:
    r"""Return :math:`\log \frac{1}{n} \sum_i e^{v_i}` along an axis of length n."""
    xp = namespace(v)
    largest = detach(xp.max(v, axis=axis, keepdims=True))
    # A weight of 0 has the logarithm minus infinity; where all have it, so has the mean.
    finite = xp.where(xp.isfinite(largest), largest, xp.zeros_like(largest))
    total = xp.sum(xp.exp(v - finite), axis=axis) / v.shape[axis]
    return xp.log(total) + xp.squeeze(finite, axis=axis)


LARGEST_PRODUCT = 2**17
"""The number of multiplications of which NumPy makes one product of matrices.

From about twice as many on, OpenBLAS starts threads, which keep a core busy for milliseconds after the product. In a
backward pass of PyTorch they take it from the threads of the model: a step took three times as long.
"""


def matrix_product(a: Array, b: Array) -> Array:
    """Multiply matrices at full precision (JAX defaults to lower precision on accelerators)."""
    if is_jax_array(a):
        import jax.numpy as jnp

        return jnp.matmul(a, b, precision="highest")
    if not isinstance(a, np.ndarray) or a.shape[0] * b.size <= LARGEST_PRODUCT:
        return a @ b
    (rows, inner), columns = a.shape, b.shape[1]
    if inner > columns:
        step = max(1, LARGEST_PRODUCT // (rows * columns))
        return sum(a[:, start : start + step] @ b[start : start + step] for start in range(0, inner, step))
    step = max(1, LARGEST_PRODUCT // (rows * inner))
    return np.concatenate([a @ b[:, start : start + step] for start in range(0, columns, step)], axis=1)


def value_and_gradient(f: Callable[[Array], Array], x: Array) -> tuple[Array, Array]:
    """Return f at the points x and its gradient in x, by the automatic differentiation of the array's library."""
    if is_jax_array(x):
        import jax

        values, pullback = jax.vjp(f, x)
        return values, pullback(namespace(values).ones_like(values))[0]
    if is_torch_array(x):
        import torch

        with torch.enable_grad():
            points = x.detach().clone().requires_grad_()
            values = f(points)
            (gradient,) = torch.autograd.grad(values.sum(), points)
        return values.detach(), gradient
    raise ValueError(
        "df is None, but the gradient of f is needed and NumPy cannot find it; "
        "give df, or make q of a JAX or torch array"
    )


def widened(array: Array) -> Array:
    """Return the array with at least 32 bits per number: sums over many variables are inaccurate in narrower types."""
    xp = namespace(array)
    return xp.astype(array, xp.float32) if xp.finfo(array.dtype).bits < 32 else array


def repeat_without_gradient(step: Callable[[Any, Array], Array], times: int, start: Array) -> Array:
    """Return `start` after the calls `step(0, start)`, `step(1, ...)`, ... , held constant under differentiation."""
    if is_jax_array(start):
        import jax

        def held(t: Any, value: Array) -> Array:
            return jax.lax.stop_gradient(step(t, value))

        return jax.lax.fori_loop(0, times, held, start)
    with _without_graph(start):
        for t in range(times):
            start = step(t, start)
    return start


def _without_graph(array: Array) -> AbstractContextManager[Any]:
    if not is_torch_array(array):
        return nullcontext()
    import torch

    return torch.no_grad()


def require_floating(argument: str, array: Array) -> None:
    """Raise unless `array` is an array of a real floating type."""
    if not is_array(array):
        raise TypeError(
            f"{argument} must be a NumPy, JAX or torch array, got {type(array).__name__}; "
            f"wrap it first, for example numpy.asarray({argument}, dtype=float)"
        )
    if not namespace(array).isdtype(array.dtype, "real floating"):
        raise TypeError(
            f"{argument} must have a floating type, got {array.dtype}; convert it first, "
            f"for example to float32: a gradient in integers does not exist"
        )


def register_where_jax_is_in_use(instance: object, *fields: str, static: tuple[str, ...] = ()) -> None:
    """Register the class of `instance` as a JAX pytree of `fields` the first time one of them holds a JAX array.

    `import doublecv` must not import JAX, so the class cannot be registered where it is defined.
    """
    if any(is_jax_array(getattr(instance, field)) for field in fields):
        register_pytree(type(instance), fields, static)


_pytrees: set[type] = set()


def register_pytree(cls: type, fields: tuple[str, ...], static: tuple[str, ...] = ()) -> None:
    """Register `cls` with JAX, once, as a pytree whose children are `fields` and whose constants are `static`."""
    if cls in _pytrees:
        return
    _pytrees.add(cls)
    import jax

    def constants(instance: object) -> tuple[Any, ...]:
        return tuple(getattr(instance, field) for field in static)

    def flatten_with_keys(instance: object) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        return [(jax.tree_util.GetAttrKey(field), getattr(instance, field)) for field in fields], constants(instance)

    def flatten(instance: object) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(instance, field) for field in fields], constants(instance)

    def unflatten(constants: tuple[Any, ...], children: Any) -> object:
        # JAX rebuilds pytrees from placeholders too, so the constructor's checks must not run.
        instance: object = object.__new__(cls)
        for field, child in (*zip(fields, children, strict=True), *zip(static, constants, strict=True)):
            object.__setattr__(instance, field, child)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def is_traced(array: Array) -> bool:
    """Return whether an array stands for an unknown value while JAX traces a function."""
    if not is_jax_array(array):
        return False
    import jax

    return isinstance(array, jax.core.Tracer)
