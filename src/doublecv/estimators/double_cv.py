"""Double CV: leave-one-out with a Taylor surrogate of f as a second control variate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from doublecv.arrays import Array, sum_over_samples
from doublecv.distributions import Distribution
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.leave_one_out import leave_one_out
from doublecv.estimators.linear import LinearEstimator

if TYPE_CHECKING:
    from jaxtyping import Float

SurrogateName = Literal["leave-one-out", "mean"]
Half = Literal["both", "current", "others"]


@dataclass(frozen=True)
class DoubleCV(LinearEstimator):
    """Double control variates (Titsias and Shi, 2022), with the equation

        g = 1/K sum_k [f(x_k) + alpha b_k - 1/(K-1) sum_{j != k} (f(x_j) + alpha b_j)] s(x_k) - alpha M d

        surrogate="leave-one-out":  b_k = (1/(K-1) sum_{j != k} grad f(x_j))^T (x_k - mu),   d = 1/K sum_k grad f(x_k)
        surrogate="mean":           b_k = grad f(mu)^T (x_k - mu),                           d = grad f(mu)

    The first is their equation 11 with b from equation 10, the main estimator of the paper; the second, equation 8,
    evaluates f and its gradient at the mean besides. alpha = 0 is RLOO; for a linear f, alpha = -1 leaves no
    variance at all.

    Attributes:
        samples: K >= 2.
        surrogate: which gradient makes the surrogate of f.
        keep: "both", or one of the half estimators of their appendix: "current" keeps alpha b_k and drops alpha b_j
            from the baseline; "others" keeps alpha b_j alone, which needs no correction.
    """

    surrogate: SurrogateName = "leave-one-out"
    keep: Half = "both"

    minimum_samples: ClassVar[int] = 2

    def check_options(self) -> None:
        """Raise where `surrogate`, `keep` or `learning` is unknown."""
        super().check_options()
        for field, choices in (("surrogate", get_args(SurrogateName)), ("keep", get_args(Half))):
            if (value := getattr(self, field)) not in choices:
                raise ValueError(f"{field} must be one of {', '.join(choices)}; got {value!r}")

    @property
    def name(self) -> str:
        """The registry's name."""
        variants = [] if self.surrogate == "leave-one-out" else [self.surrogate]
        keep = [] if self.keep == "both" else [self.keep]
        return "-".join(["double-cv", *variants, *keep, *self.averaged])

    @property
    def needs_df(self) -> bool:
        """The leave-one-out surrogate is made of the gradients at the samples."""
        return self.surrogate == "leave-one-out"

    @property
    def needs_mean(self) -> bool:
        """The mean-field surrogate is made of the gradient at the mean."""
        return self.surrogate == "mean"

    def starts(self) -> dict[str, float]:
        """alpha, the regression coefficient, which starts at 0 as in the paper."""
        return {"alpha": 0.0}

    def linear_parts(
        self, q: Distribution, evaluation: Evaluation
    ) -> tuple[Float[Array, "*logits"], dict[str, Float[Array, "*logits"]]]:
        """g0 = 1/K sum_k (f_k - loo(f)_k) s_k, which is RLOO, and h = 1/K sum_k (b_k - loo(b)_k) s_k - M d."""
        f, score = evaluation.f, q.score(evaluation.x)
        if self.surrogate == "mean":
            b, d = q.dot(evaluation.df_mean, score), evaluation.df_mean
        else:
            b, d = q.dot(leave_one_out(evaluation.df), score), sum_over_samples(evaluation.df) / self.samples

        def average(weight: Float[Array, "K *batch"]) -> Float[Array, "*logits"]:
            return sum_over_samples(q.weigh(weight, score)) / self.samples

        if self.keep == "others":
            h = -average(leave_one_out(b))
        else:
            h = average(b if self.keep == "current" else b - leave_one_out(b)) - q.covariance(d)
        return average(f - leave_one_out(f)), {"alpha": h}
