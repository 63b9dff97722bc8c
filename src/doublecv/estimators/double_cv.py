"""Double CV: leave-one-out or coupled samples, with a surrogate of f as a second control variate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, log
from typing import TYPE_CHECKING, Any, Literal, get_args

from doublecv.arrays import Array, sum_over_samples
from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.estimators.arms import copula_gradient
from doublecv.estimators.concrete import Concrete, relax
from doublecv.estimators.couplings import Antithetic, Coupling, DirichletCopula, Independent
from doublecv.estimators.disarm import antithetic_gradient, leave_pair_out
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.leave_one_out import leave_one_out
from doublecv.estimators.linear import LinearEstimator
from doublecv.estimators.parts import Vectors
from doublecv.estimators.rebar import conditional_control, relaxed_points, reparameterised_gradient

if TYPE_CHECKING:
    from jaxtyping import Float

SurrogateName = Literal["leave-one-out", "mean", "concrete"]
Half = Literal["both", "current", "others"]
CouplingName = Literal["independent", "antithetic", "dirichlet"]

COUPLINGS: dict[CouplingName, Coupling] = {
    "independent": Independent(),
    "antithetic": Antithetic(),
    "dirichlet": DirichletCopula(),
}

TEMPERATURE = 0.5
"""The temperature of the concrete relaxation, unless another one is given."""


@dataclass(frozen=True)
class DoubleCV(LinearEstimator):
    """Double control variates (Titsias and Shi, 2022), with the equation

        g = 1/K sum_k [f(x_k) + alpha b_k - 1/(K-1) sum_{j != k} (f(x_j) + alpha b_j)] s(x_k) - alpha c

        surrogate="leave-one-out":  b_k = (1/(K-1) sum_{j != k} grad f(x_j))^T (x_k - mu),   c = M 1/K sum_k grad f(x_k)
        surrogate="mean":           b_k = grad f(mu)^T (x_k - mu),                           c = M grad f(mu)
        surrogate="concrete":       b_k = r(z~_k),   c = 1/K sum_k d/dlogits r(z_k) - d/dlogits r(z~_k),
                                    r(z) = f(sigmoid(z / temperature))        (softmax for Categorical)

    The first is their equation 11 with b from equation 10, the main estimator of the paper; the second, equation 8,
    evaluates f and its gradient at the mean besides. alpha = 0 is RLOO; for a linear f, alpha = -1 leaves no
    variance at all. The third is REBAR (Tucker et al., 2017) with scale -alpha and a leave-one-out baseline.

    The first sum is RLOO of f + alpha b. Any estimator that is linear in f can stand in its place, with samples that
    are coupled as it wants them, for Bernoulli:

        coupling="antithetic":  g = DisARM(f + alpha b) - alpha c,   over K/2 antithetic pairs
        coupling="dirichlet":   g = ARMS(f + alpha b) - alpha c,     surrogate="mean" alone

    The two samples of a pair are not independent, so that the leave-one-out surrogate leaves both out:
    b_k = (1/(K-2) sum_j grad f(x_j))^T (x_k - mu) with j in the other pairs. The samples of the Dirichlet copula all
    depend on each other, so there is none whose gradient another may use.

    Attributes:
        samples: K >= 2; antithetic pairs take an even K, and K >= 4 where a pair is left out.
        surrogate: what makes the surrogate of f; "concrete" evaluates f at 3K points.
        keep: "both", or one of the half estimators of their appendix: "current" keeps alpha b_k and drops alpha b_j
            from the baseline; "others" keeps alpha b_j alone, which needs no correction.
        coupling: how the samples depend on each other.
        temperature: that of surrogate="concrete"; a number and no coefficient, so that g stays linear in alpha.
    """

    surrogate: SurrogateName = "leave-one-out"
    keep: Half = "both"
    coupling: CouplingName = "independent"
    temperature: float = TEMPERATURE

    def check_options(self) -> None:
        """Raise where an option is unknown, or has no meaning with another one."""
        super().check_options()
        choices = {"surrogate": get_args(SurrogateName), "keep": get_args(Half), "coupling": get_args(CouplingName)}
        for field, known in choices.items():
            if (value := getattr(self, field)) not in known:
                raise ValueError(f"{field} must be one of {', '.join(known)}; got {value!r}")
        if self.coupling == "dirichlet" and self.surrogate == "leave-one-out":
            raise ValueError(
                "surrogate must be 'mean' for coupling='dirichlet', got 'leave-one-out': the samples all depend on "
                "each other, so there is no independent one to take a gradient from"
            )
        if self.coupling != "independent" and self.surrogate == "concrete":
            raise ValueError(
                f"coupling must be 'independent' for surrogate='concrete', got {self.coupling!r}: its samples are "
                f"thresholds of independent relaxed ones"
            )
        if self.keep != "both" and (self.coupling != "independent" or self.surrogate == "concrete"):
            raise ValueError(
                f"keep must be 'both' for coupling={self.coupling!r} and surrogate={self.surrogate!r}, got "
                f"{self.keep!r}: the halves are those of a Taylor surrogate at independent samples"
            )
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, int | float):
            raise TypeError(f"temperature must be a number, got {self.temperature!r}")
        if not 0 < self.temperature < inf:
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")
        if self.temperature != TEMPERATURE and self.surrogate != "concrete":
            raise ValueError(
                f"temperature is for surrogate='concrete', got {self.temperature} with surrogate={self.surrogate!r}"
            )

    @property
    def name(self) -> str:
        """The registry's name."""
        defaults = {"surrogate": "leave-one-out", "coupling": "independent", "keep": "both"}
        variants = [getattr(self, field) for field, default in defaults.items() if getattr(self, field) != default]
        return "-".join(["double-cv", *variants, *self.averaged])

    @property
    def minimum_samples(self) -> int:
        """Another sample, or another pair of samples, is what a surrogate or a baseline is made of."""
        return 4 if self.coupling == "antithetic" and self.surrogate == "leave-one-out" else 2

    @property
    def multiple_of(self) -> int:
        """Antithetic samples come in pairs."""
        return 2 if self.coupling == "antithetic" else 1

    @property
    def families(self) -> tuple[type[Distribution], ...]:
        """Both, where the samples are independent."""
        return (Bernoulli, Categorical) if self.coupling == "independent" else (Bernoulli,)

    @property
    def needs_df(self) -> bool:
        """The leave-one-out surrogate is made of the gradients at the samples."""
        return self.surrogate == "leave-one-out"

    @property
    def needs_mean(self) -> bool:
        """The mean-field surrogate is made of the gradient at the mean."""
        return self.surrogate == "mean"

    @property
    def relaxed_points(self) -> int:
        """z and z~ of every sample, for the concrete surrogate."""
        return 2 * self.samples if self.surrogate == "concrete" else 0

    @property
    def sampler(self) -> Coupling:
        """The coupling; with the noise of z and z~ for the concrete surrogate."""
        if self.surrogate == "concrete":
            return Concrete()
        return COUPLINGS[self.coupling]

    def starts(self) -> dict[str, float]:
        """alpha, the regression coefficient, which starts at 0 as in the paper."""
        return {"alpha": 0.0}

    def control(
        self,
        f: Callable[[Array], Array],
        q: Distribution,
        noise: Float[Array, "2 K *logits"],
        x: Float[Array, "K *logits"],
        coefficients: Mapping[str, Any],
    ) -> Float[Array, "2*K *batch"]:
        """r at z and z~, for the concrete surrogate."""
        return f(relax(q, relaxed_points(q, noise, x), {"log_temperature": log(self.temperature)}))

    def parts(self, q: Distribution, evaluation: Evaluation) -> Vectors:
        """g0 = estimate(f) and h = estimate(b) - c, with the estimate that the coupling has: RLOO, DisARM or ARMS."""
        x, score = evaluation.x, q.score(evaluation.x)
        b, c = self._surrogate(q, evaluation, score)

        def average(weight: Float[Array, "K *batch"]) -> Float[Array, "*logits"]:
            return sum_over_samples(q.weigh(weight, score)) / self.samples

        def estimate(values: Float[Array, "K *batch"]) -> Float[Array, "*logits"]:
            match self.coupling:
                case "antithetic":
                    return antithetic_gradient(q, x, values)
                case "dirichlet":
                    return copula_gradient(q, x, values)
            return average(values - leave_one_out(values))

        match self.keep:
            case "current":
                h = average(b) - c
            case "others":
                h = -average(leave_one_out(b))
            case "both":
                h = estimate(b) - c
        return Vectors(q, estimate(evaluation.f), {"alpha": h})

    def _surrogate(
        self, q: Distribution, evaluation: Evaluation, score: Float[Array, "K *logits"]
    ) -> tuple[Float[Array, "K *batch"], Float[Array, "*logits"]]:
        """b at the samples, and c, which has the mean of b s."""
        if self.surrogate == "concrete":
            return conditional_control(evaluation), reparameterised_gradient(evaluation)
        if self.surrogate == "mean":
            return q.dot(evaluation.df_mean, score), q.covariance(evaluation.df_mean)
        others = leave_pair_out if self.coupling == "antithetic" else leave_one_out
        d = sum_over_samples(evaluation.df) / self.samples
        return q.dot(others(evaluation.df), score), q.covariance(d)
