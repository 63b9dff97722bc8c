"""Estimators whose control variate is a first-order Taylor expansion of f: MuProp, Double CV and its halves."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, final, get_args

from doublecv.arrays import Array, subtract_from_samples
from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.estimators.averages import (
    dot_correction,
    dot_with_others,
    leave_one_out,
    score_gradient,
    score_magnitude,
)
from doublecv.estimators.base import FixedEstimator, Needs
from doublecv.estimators.couplings import Coupling, DirichletCopula, Independent
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.linear import Learning, LinearEstimator
from doublecv.estimators.parts import Controlled, Vectors

if TYPE_CHECKING:
    from jaxtyping import Float

Control = Literal["leave-one-out", "mean"]
Half = Literal["current", "others"]


@final
@dataclass(frozen=True)
class MuProp(FixedEstimator):
    r"""Estimate with the Taylor expansion of f around the mean as baseline.

    .. math:: g = \frac{1}{K} \sum_k [f(x_k) - f(\mu) - \nabla f(\mu)^T (x_k - \mu)] \, s(x_k) + M \nabla f(\mu)

    (Gu et al., 2016, for one layer of discrete variables). The original also has an input-dependent baseline and
    learned scalings, which this estimator does not have.

    >>> MuProp(samples=4).evaluations
    5

    Attributes:
        samples: K >= 1; f is also evaluated at the mean.
    """

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: f at the samples and at the mean."""
        return Needs(mean=True)

    def estimate(self, q: Distribution, evaluation: Evaluation) -> Float[Array, "*logits"]:
        """Return the estimate."""
        assert evaluation.f_mean is not None, "the evaluation was checked"
        difference = subtract_from_samples(evaluation.f, evaluation.f_mean)
        residual = difference - q.dot(evaluation.df_mean, q.score(evaluation.x))
        return score_gradient(q, evaluation.x, residual) + q.covariance_product(evaluation.df_mean)


@final
@dataclass(frozen=True)
class DoubleCV(LinearEstimator):
    r"""Estimate with double control variates (Titsias and Shi, 2022).

    .. math::
        g = \frac{1}{K} \sum_k \Big[f(x_k) + \alpha b_k - \frac{1}{K-1} \sum_{j \ne k} (f(x_j) + \alpha b_j)\Big] s(x_k)
            - \alpha c.

    With ``control="leave-one-out"``, the main estimator of the paper (equation 11, with b from equation 10),

    .. math:: b_k = \Big(\frac{1}{K-1} \sum_{j \ne k} \nabla f(x_j)\Big)^T (x_k - \mu), \qquad
        c = M \frac{1}{K} \sum_k \nabla f(x_k);

    with ``control="mean"`` (equation 8), which also evaluates f and its gradient at the mean,

    .. math:: b_k = \nabla f(\mu)^T (x_k - \mu), \qquad c = M \nabla f(\mu).

    :math:`\alpha = 0` is RLOO; for a linear f, :math:`\alpha = -1` leaves no variance. The first sum is RLOO of
    :math:`f + \alpha b`. With another coupling the estimate of that coupling takes its place, DisARM or ARMS, and the
    leave-one-out mean runs over the samples that are independent of sample k.

    >>> DoubleCV(samples=4).needs.coefficients
    ('alpha',)

    Attributes:
        samples: K >= 2; antithetic pairs need an even K, and K >= 4 where a pair is left out.
        control: which gradients make the control variate b.
        coupling: how the samples depend on each other; `Independent()`, `Antithetic()` or `DirichletCopula()`. Coupled
            samples support only Bernoulli.
        learning: see `LinearEstimator`. "moments" is the default, with which the variance was half as large as with a
            descent over 30 small training runs, and hardly ever above that of RLOO; the paper has "gradient".
    """

    learning: Learning = field(default="moments", kw_only=True)
    control: Control = "leave-one-out"
    coupling: Coupling = Independent()  # noqa: RUF009, because couplings are immutable

    def check_options(self) -> None:
        """Raise if an option is unknown or the control variate has no independent sample."""
        super().check_options()
        if self.control not in get_args(Control):
            raise ValueError(f"control must be one of {', '.join(get_args(Control))}; got {self.control!r}")
        if not isinstance(self.coupling, Coupling):
            raise TypeError(
                f"coupling must be a coupling such as doublecv.estimators.Antithetic(), got {self.coupling!r}"
            )
        if isinstance(self.coupling, DirichletCopula) and self.control == "leave-one-out":
            raise ValueError(
                "control must be 'mean' for coupling=DirichletCopula(), got 'leave-one-out': the samples all depend on "
                "each other, so no independent sample has a gradient to use"
            )

    @property
    def direction(self) -> tuple[float, ...]:
        """Return alpha = 1: its multiple, which is alpha, is limited."""
        return (1.0,)

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: gradients at the samples or at the mean."""
        independent, leave_one_out = isinstance(self.coupling, Independent), self.control == "leave-one-out"
        pairs = not independent and not isinstance(self.coupling, DirichletCopula)
        return Needs(
            gradient=leave_one_out,
            mean=not leave_one_out,
            families=(Bernoulli, Categorical) if independent else (Bernoulli,),
            minimum_samples=4 if pairs and leave_one_out else 2,
            multiple_of=2 if pairs else 1,
            coupling=self.coupling,
            path=independent and leave_one_out,
            coefficients=("alpha",),
        )

    def parts(self, q: Distribution, evaluation: Evaluation) -> Controlled:
        r"""Return :math:`g_0 = estimate(f)` and :math:`h = estimate(b) - c` with the estimate of the coupling."""
        x, score = evaluation.x, q.score(evaluation.x)
        if self.control == "mean":
            b, c = q.dot(evaluation.df_mean, score), q.covariance_product(evaluation.df_mean)
        elif isinstance(self.coupling, Independent):
            b, c = dot_with_others(q, evaluation.df, score)
        else:
            b = q.dot(self.coupling.mean_of_independent(evaluation.df), score)
            c = dot_correction(q, evaluation.df)
        return Controlled(q, self.coupling, x, evaluation.f, "alpha", b, c)


@final
@dataclass(frozen=True)
class HalfDoubleCV(LinearEstimator):
    r"""Estimate with one half of `DoubleCV` (Titsias and Shi, 2022, appendix).

    ``keep="current"`` keeps :math:`\alpha b_k` and drops :math:`\alpha b_j` from the baseline; ``keep="others"`` keeps
    only :math:`\alpha b_j`, which needs no correction:

    .. math::
        g_{current} = \mathrm{RLOO} + \alpha \Big(\frac{1}{K} \sum_k b_k s(x_k) - c\Big), \qquad
        g_{others} = \mathrm{RLOO} - \alpha \frac{1}{K} \sum_k \bar b_{-k} s(x_k).

    >>> HalfDoubleCV(samples=2, keep="others").needs.coefficients
    ('alpha',)

    Attributes:
        samples: K >= 2.
        keep: the half that is kept.
    """

    keep: Half = "current"

    def check_options(self) -> None:
        """Raise if an option is unknown."""
        super().check_options()
        if self.keep not in get_args(Half):
            raise ValueError(f"keep must be one of {', '.join(get_args(Half))}; got {self.keep!r}")

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: gradients at two or more samples."""
        return Needs(gradient=True, minimum_samples=2, path=True, coefficients=("alpha",))

    def parts(self, q: Distribution, evaluation: Evaluation) -> Vectors:
        r"""Return :math:`g_0`, which is RLOO, and the kept half of h."""
        x, f = evaluation.x, evaluation.f
        b = q.dot(leave_one_out(evaluation.df), q.score(x))
        if self.keep == "current":
            c = dot_correction(q, evaluation.df)
            h, size = score_gradient(q, x, b) - c, partial(score_magnitude, q, q.score(x), b, c)
        else:
            h, size = -score_gradient(q, x, leave_one_out(b)), partial(score_magnitude, q, q.score(x), b)
        return Vectors(q, score_gradient(q, x, f - leave_one_out(f)), {"alpha": h}, size)
