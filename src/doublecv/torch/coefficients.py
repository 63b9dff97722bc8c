"""An estimator's coefficients in PyTorch: tensors by name, and modules for those that have tensors of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Coefficients: TypeAlias = Mapping[str, Any]
"""Tensors and modules by name."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A module that is called with given tensors in the place of its parameters."""

    module: nn.Module
    parameters: dict[str, Tensor]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the module."""
        return torch.func.functional_call(self.module, self.parameters, arguments, keywords)


def as_tensors(
    coefficients: Coefficients, dtype: torch.dtype, device: torch.device | None = None
) -> dict[str, Tensor | nn.Module]:
    """The same coefficients, numbers and arrays being made tensors."""

    def tensor(value: Any) -> Tensor:
        return value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=dtype, device=device)

    def converted(name: str, value: Any) -> Tensor | nn.Module:
        if isinstance(value, nn.Module):
            return value
        try:
            if isinstance(value, Mapping):
                return nn.ParameterDict({key: tensor(entry).detach() for key, entry in value.items()})
            return tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"coefficient {name!r} must be a number, a tensor, a dict of tensors or an nn.Module, "
                f"got {type(value).__name__}"
            ) from error

    return {name: converted(name, value) for name, value in coefficients.items()}


def leaves(coefficients: Coefficients) -> list[Tensor]:
    """All tensors, those of modules included."""
    return [
        leaf
        for value in coefficients.values()
        for leaf in (value.parameters() if isinstance(value, nn.Module) else (value,))
    ]


def with_leaves(coefficients: Coefficients, tensors: Iterable[Tensor]) -> dict[str, Any]:
    """The same coefficients with other tensors for their leaves; a module is bound to those that are its own."""

    def bound(name: str, value: Any) -> Any:
        module = coefficients[name]
        is_function = isinstance(module, nn.Module) and not isinstance(module, nn.ParameterDict)
        return Bound(module, value) if is_function else value

    return {name: bound(name, value) for name, value in by_name(coefficients, tensors).items()}


def by_name(coefficients: Coefficients, tensors: Iterable[Tensor | None]) -> dict[str, Any]:
    """One tensor for every leaf, by name; in a module, by the names of its parameters."""
    remaining = iter(tensors)
    return {
        name: {parameter: next(remaining) for parameter, _ in value.named_parameters()}
        if isinstance(value, nn.Module)
        else next(remaining)
        for name, value in coefficients.items()
    }
