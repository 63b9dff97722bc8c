"""An estimator's coefficients in PyTorch: tensors by name, and modules, whose parameters they then are."""

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

    def tensor(name: str, value: Any) -> Tensor | nn.Module:
        if isinstance(value, Tensor | nn.Module):
            return value
        try:
            return torch.as_tensor(value, dtype=dtype, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"coefficient {name!r} must be a number, a tensor or an nn.Module, got {type(value).__name__}"
            ) from error

    return {name: tensor(name, value) for name, value in coefficients.items()}


def leaves(coefficients: Coefficients) -> list[Tensor]:
    """All tensors, those of modules included."""
    return [
        leaf
        for value in coefficients.values()
        for leaf in (value.parameters() if isinstance(value, nn.Module) else (value,))
    ]


def with_leaves(coefficients: Coefficients, tensors: Iterable[Tensor]) -> dict[str, Any]:
    """The same coefficients with other tensors for their leaves; a module is then bound to its own."""
    return {
        name: Bound(coefficients[name], value) if isinstance(value, dict) else value
        for name, value in by_name(coefficients, tensors).items()
    }


def by_name(coefficients: Coefficients, tensors: Iterable[Tensor | None]) -> dict[str, Any]:
    """One tensor for every leaf, by name; in a module, by the names of its parameters."""
    remaining = iter(tensors)
    return {
        name: {parameter: next(remaining) for parameter, _ in value.named_parameters()}
        if isinstance(value, nn.Module)
        else next(remaining)
        for name, value in coefficients.items()
    }
