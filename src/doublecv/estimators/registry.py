"""Estimators by name, for the command line, comparisons and the test battery."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from doublecv.distributions import Distribution
from doublecv.estimators.base import Estimator

_factories: dict[str, Callable[..., Estimator]] = {}


def register(name: str, factory: Callable[..., Estimator]) -> None:
    """Let `make(name, samples=K)` call `factory(samples=K)`; the estimator also joins the test battery.

    Args:
        name: the name, which must be new.
        factory: a class of estimators, or a function of `samples` and options.
    """
    if name in _factories:
        raise ValueError(f"name {name!r} is already registered")
    _factories[name] = factory


def names(family: type[Distribution] | None = None) -> tuple[str, ...]:
    """Return the names of all registered estimators, in the order of their registration.

    >>> from doublecv import Bernoulli
    >>> "carms" in names(), "carms" in names(Bernoulli)
    (True, False)

    Args:
        family: if given, only the estimators that support this family are named.
    """
    if family is None:
        return tuple(_factories)
    if not (isinstance(family, type) and issubclass(family, Distribution)):
        raise TypeError(f"family must be a class of distributions such as doublecv.Bernoulli, got {family!r}")
    return tuple(name for name, factory in _factories.items() if family in factory(samples=4).needs.families)


def make(name: str, samples: int | None = None, **options: Any) -> Estimator:
    """Make the estimator of that name for K samples.

    >>> make("double-cv", samples=4)
    DoubleCV(samples=4, learning='gradient', control='leave-one-out', coupling=Independent())

    Args:
        name: a registered name; `names()` lists them.
        samples: K, which must be given.
        options: further options of the estimator.
    """
    if name not in _factories:
        close = get_close_matches(str(name), names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the names are {', '.join(names())}"
        raise ValueError(f"name must be that of a registered estimator, got {name!r}; {hint}")
    if samples is None:
        raise TypeError(f"samples is missing, the number K of samples: make({name!r}, samples=4)")
    return _factories[name](samples=samples, **options)


def label(estimator: Estimator) -> str:
    """Return the registered name of an estimator, or its representation where it was made with other options.

    >>> label(make("disarm", samples=2))
    'disarm'
    """
    for name, factory in _factories.items():
        try:
            if factory(samples=estimator.samples) == estimator:
                return name
        except (TypeError, ValueError):
            # Not every estimator exists for every number of samples.
            continue
    return repr(estimator)
