"""R*: REINFORCE with the exact mean of f as its baseline, the bound that leave-one-out cannot pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from doublecv.arrays import Array
from doublecv.distributions import Distribution
from doublecv.estimators.base import Estimator
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.reinforce import score_gradient

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class RStar(Estimator):
    """R*, with the equation

        g = 1/K sum_k (f(x_k) - E_q f) s(x_k)

    (Titsias and Shi, 2022, Proposition 1: its variance is at most that of RLOO). E_q f is rarely known: this is a
    yardstick for problems on which it is.

    Attributes:
        samples: K >= 1.
        expected_f: the function q -> E_q f, `[*batch]`. It may be left out when the estimator is made and given later
            with `dataclasses.replace`, but no gradient exists without it.
    """

    expected_f: Callable[[Distribution], Array] | None = None

    @property
    def name(self) -> str:
        """The registry's name."""
        return "r-star"

    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*logits"]:
        """1/K sum_k (f_k - E f) s_k."""
        if self.expected_f is None:
            raise ValueError(
                "expected_f of RStar is None, but its baseline is the exact mean of f; "
                "give it as a function of q: RStar(samples, expected_f=lambda q: ...)"
            )
        return score_gradient(q, evaluation.x, evaluation.f - self.expected_f(q))
