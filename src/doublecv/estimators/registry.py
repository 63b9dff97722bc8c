"""Estimators by name: what the laboratory's command line, the comparisons and the test battery go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doublecv.estimators.base import Estimator

_factories: dict[str, Callable[..., Estimator]] = {}


def register(name: str, factory: Callable[..., Estimator]) -> None:
    """Let `make(name, samples=K)` call `factory(samples=K)`; the estimator then joins the test battery as well."""
    if name in _factories:
        raise ValueError(f"name {name!r} is registered already")
    _factories[name] = factory


def names() -> tuple[str, ...]:
    """The names of all registered estimators, in the order of their registration."""
    return tuple(_factories)


def make(name: str, samples: int, **options: Any) -> Estimator:
    """The estimator of that name for K samples; options are further fields of its class."""
    if name not in _factories:
        raise ValueError(f"name must be one of {', '.join(names())}; got {name!r}")
    return _factories[name](samples=samples, **options)
