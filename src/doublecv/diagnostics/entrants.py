"""The estimators that take part in a comparison: from names and values, for one or several numbers of samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple, TypeAlias

from doublecv.biased import BIASED, BiasedEstimator
from doublecv.estimators import Estimator, LearnedSurrogate, label, make, names
from doublecv.estimators.base import not_an_estimator

AnyEstimator: TypeAlias = Estimator | BiasedEstimator
"""An unbiased or a biased estimator."""


class UnknownName(ValueError):
    """Report a name that is not that of an estimator."""


class Entrant(NamedTuple):
    """An estimator and what the table calls it."""

    name: str
    estimator: AnyEstimator


class Entrants(NamedTuple):
    """The estimators of a comparison, and a sentence for each that does not exist for one of the numbers of samples."""

    entrants: tuple[Entrant, ...]
    left_out: tuple[str, ...]


def collect(
    estimators: Iterable[AnyEstimator | str] | AnyEstimator | str, samples: int | Sequence[int] | None
) -> Entrants:
    """Return the estimators, each for every number of samples.

    Args:
        estimators: estimators or their names.
        samples: one or several K; None to leave estimators as they are.
    """
    given = [estimators] if isinstance(estimators, Estimator | BiasedEstimator | str) else list(estimators)
    counts = [samples] if isinstance(samples, int) else samples
    if not given:
        raise ValueError("estimators is empty; give at least one estimator or name")
    if counts is not None and not counts:
        raise ValueError("samples is empty; give one K or several, such as samples=(2, 4, 8)")
    entrants: list[Entrant] = []
    left_out: list[str] = []
    for estimator in given:
        if not isinstance(estimator, Estimator | BiasedEstimator | str):
            raise not_an_estimator("each of estimators", estimator)
        if counts is None:
            if isinstance(estimator, str):
                raise ValueError(
                    f"samples is None, but {estimator!r} is a name; say for which K, such as samples=(2, 4)"
                )
            entrants.append(Entrant(name_of(estimator), estimator))
            continue
        errors = []
        for count in counts:
            try:
                made = by_name(estimator, count) if isinstance(estimator, str) else with_samples(estimator, count)
            except UnknownName:
                raise
            except ValueError as error:
                errors.append(error)
                left_out.append(f"{estimator if isinstance(estimator, str) else name_of(estimator)}: {error}")
            else:
                entrants.append(Entrant(name_of(made), made))
        if len(errors) == len(counts):
            raise errors[0]
    return Entrants(tuple(dict.fromkeys(entrants)), tuple(left_out))


def check_any_estimator(estimator: object) -> None:
    """Raise unless it is an estimator, biased or not."""
    if not isinstance(estimator, Estimator | BiasedEstimator):
        raise not_an_estimator("estimator", estimator)


def by_name(name: str, samples: int) -> AnyEstimator:
    """Make the estimator of that name, biased ones included."""
    if name in BIASED:
        return BIASED[name](samples=samples)
    if name not in names():
        close = get_close_matches(name, [*names(), *BIASED], n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the names are {', '.join([*names(), *BIASED])}"
        raise UnknownName(f"estimators has the unknown name {name!r}; {hint}")
    return make(name, samples=samples)


def name_of(estimator: AnyEstimator) -> str:
    """Return the registered name, or the representation of an estimator with other options."""
    if isinstance(estimator, Estimator):
        return label(estimator)
    for name, factory in BIASED.items():
        if factory(samples=estimator.samples) == estimator:
            return name
    return repr(estimator)


def with_samples(estimator: AnyEstimator, samples: int) -> AnyEstimator:
    """Return the same estimator for another K.

    >>> import doublecv as dcv
    >>> with_samples(dcv.RLOO(samples=2), 8)
    RLOO(samples=8)
    """
    if isinstance(estimator, LearnedSurrogate):
        base = with_samples(estimator.base, samples)
        assert isinstance(base, Estimator)
        return replace(estimator, base=base)
    return replace(estimator, samples=samples)
