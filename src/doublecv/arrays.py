"""The one door to the array libraries: what NumPy, JAX and torch arrays do differently.

Everything else in the formulas goes through the array API standard, so that one formula runs on all three.

The shapes in the annotations: `*batch` are the axes of independent problems, `*logits` those and the axes of one event
(D for Bernoulli, D C for Categorical), K the samples, `*leading` any axes in front, and `*points` any axes followed by
those of the logits.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any, TypeAlias

from array_api_compat import array_namespace, is_array_api_obj, is_jax_array, is_torch_array

Array: TypeAlias = Any
"""A NumPy array, a JAX array (or tracer) or a torch tensor."""

Shape: TypeAlias = tuple[int, ...]


def namespace(array: Array) -> Any:
    """The array API namespace of an array's library."""
    return array_namespace(array)


def detach(array: Array) -> Array:
    """The same numbers, held constant under differentiation."""
    if is_torch_array(array):
        return array.detach()
    if is_jax_array(array):
        import jax

        return jax.lax.stop_gradient(array)
    return array


def sigmoid(array: Array) -> Array:
    """1 / (1 + exp(-array)), accurate in both tails.

    torch runs every operation by itself, so its own kernel is many times faster there. The formula has `where` because
    the derivative of an absolute value at 0 is 0 in the array libraries, which would silently make the derivative at 0
    vanish.
    """
    xp = namespace(array)
    if is_torch_array(array):
        return xp.sigmoid(array)
    decay = xp.exp(xp.where(array >= 0, -array, array))
    return xp.where(array >= 0, xp.ones_like(decay), decay) / (1 + decay)


def sum_over_samples(v: Array) -> Array:
    """sum_k v_k over the leading axis.

    XLA on a CPU adds along a leading axis one number at a time, several times slower than the same additions written
    out, which it fuses with what made the terms.
    """
    if is_jax_array(v) and 0 < v.shape[0] <= MOST_WRITTEN_OUT:
        return reduce(add, (v[k] for k in range(v.shape[0])))
    return namespace(v).sum(v, axis=0)


MOST_WRITTEN_OUT = 32
"""The most terms of a sum over samples that are written out: a program grows with them, and so does its compilation."""


def matrix_product(a: Array, b: Array) -> Array:
    """a @ b with all digits of the numbers: JAX leaves some away on accelerators unless it is told not to."""
    if is_jax_array(a):
        import jax.numpy as jnp

        return jnp.matmul(a, b, precision="highest")
    return a @ b


def require_floating(argument: str, array: Array) -> None:
    """Raise unless `array` is an array of a real floating type."""
    if not is_array_api_obj(array):
        raise TypeError(
            f"{argument} must be a NumPy, JAX or torch array, got {type(array).__name__}; "
            f"wrap it first, for example numpy.asarray({argument}, dtype=float)"
        )
    if not namespace(array).isdtype(array.dtype, "real floating"):
        raise TypeError(
            f"{argument} must have a floating type, got {array.dtype}; convert it first, "
            f"for example to float32: a gradient in integers does not exist"
        )


def register_where_jax_is_in_use(instance: object, *fields: str) -> None:
    """Make the class of `instance` a JAX pytree of `fields`, the first time one of them holds a JAX array.

    `import doublecv` must not import JAX, so this cannot happen when the class is defined.
    """
    if any(is_jax_array(getattr(instance, field)) for field in fields):
        register_pytree(type(instance), fields)


_pytrees: set[type] = set()


def register_pytree(cls: type, fields: tuple[str, ...]) -> None:
    """Register `cls` with JAX, once, as a pytree whose children are the attributes `fields`."""
    if cls in _pytrees:
        return
    _pytrees.add(cls)
    import jax

    def flatten_with_keys(instance: object) -> tuple[list[tuple[Any, Any]], None]:
        return [(jax.tree_util.GetAttrKey(field), getattr(instance, field)) for field in fields], None

    def flatten(instance: object) -> tuple[list[Any], None]:
        return [getattr(instance, field) for field in fields], None

    def unflatten(_: None, children: Any) -> object:
        # JAX rebuilds pytrees from placeholders too, so the constructor's checks must not run.
        instance: object = object.__new__(cls)
        for field, child in zip(fields, children, strict=True):
            object.__setattr__(instance, field, child)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
