"""The quadratic double control variate: Double CV with squared surrogates and freely weighted terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from array_api_compat import device

from doublecv.arrays import Array, namespace, sum_over_samples
from doublecv.distributions import Distribution
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.leave_one_out import leave_one_out
from doublecv.estimators.linear import Learning, LinearEstimator
from doublecv.estimators.parts import WeightedScores

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class QuadraticDoubleCV(LinearEstimator):
    """The quadratic double control variate, with the equation

        g = 1/K sum_k w_k s(x_k) - a_L M 1/K sum_k G_k - a_S 1/K sum_k T(G_k) / N_k

        w_k = f_k - 1/(K-1) sum_{j != k} f_j
            + 1/(K-1) sum_{j != k} ( a_L P_kj + a_S Q_kj  +  c_L P_jk + c_S Q_jk
                                     + r_L P_jj + r_N P_jj / sqrt(N_j) + r_S Q_jj )
            + 1/((K-1)(K-2)) sum_{j != k} sum_{m != j,k} ( o_L P_jm + o_S Q_jm )           for K >= 3

    where G_k = grad f(x_k), P_kj = G_j^T (x_k - mu), n_j = E[(G_j^T (x - mu))^2] = G_j^T M G_j, N_j = n_j + eps,
    Q_kj = (P_kj^2 - n_j) / N_j and T(G) = E[s(x) (G^T (x - mu))^2].

    It is unbiased because, given the other samples, E[P_kj s(x_k)] = M G_j and E[Q_kj s(x_k)] = T(G_j) / N_j, which
    are the two corrections; given x_k, P_jk and Q_jk have mean 0; and the terms r and o do not contain x_k. Double CV
    (Titsias and Shi, 2022, equation 11) is the case a_L = alpha, c_L = -alpha / (K-1), o_L = -alpha (K-2) / (K-1), and
    0 for the others. The coefficients are called, in this order, `current`, `current_square`, `crossed`,
    `crossed_square`, `own`, `own_scaled`, `own_square`, `others`, `others_square`.

    Attributes:
        samples: K >= 2.
        learning: see `LinearEstimator`; here "moments" is the default, since a descent of so many coefficients is slow.
    """

    learning: Learning = field(default="moments", kw_only=True)

    minimum_samples: ClassVar[int] = 2

    @property
    def name(self) -> str:
        """The registry's name."""
        return "quadratic-double-cv" if self.learning == "moments" else "quadratic-double-cv-gradient"

    @property
    def needs_df(self) -> bool:
        """All surrogates are made of the gradients at the samples."""
        return True

    def starts(self) -> dict[str, float]:
        """All at 0, which is RLOO."""
        names = ("current", "current_square", "crossed", "crossed_square", "own", "own_scaled", "own_square")
        return dict.fromkeys(names if self.samples == 2 else (*names, "others", "others_square"), 0.0)

    def parts(self, q: Distribution, evaluation: Evaluation) -> WeightedScores:
        """g0, which is RLOO, and the control variate of each coefficient."""
        assert evaluation.df is not None, "the evaluation was checked"
        xp, f, G, score = q.xp, evaluation.f, evaluation.df, q.score(evaluation.x)
        n = q.dot(G, q.covariance(G))
        N = n + float(xp.finfo(n.dtype).smallest_normal) ** 0.5
        P = q.dots(score, G)
        Q = (P**2 - n) / N
        of_P, of_Q = _sums(P), _sums(Q)
        mean_G = sum_over_samples(G) / self.samples
        mean_T = sum_over_samples(q.weigh(1 / N, q.third_moment(G))) / self.samples
        weights = {
            "current": of_P.current,
            "current_square": of_Q.current,
            "crossed": of_P.crossed,
            "crossed_square": of_Q.crossed,
            "own": leave_one_out(of_P.own),
            "own_scaled": leave_one_out(of_P.own / xp.sqrt(N)),
            "own_square": leave_one_out(of_Q.own),
        }
        if self.samples > 2:
            weights |= {"others": of_P.others, "others_square": of_Q.others}
        corrections = {"current": q.covariance(mean_G), "current_square": mean_T}
        return WeightedScores(q, score, f - leave_one_out(f), weights, corrections)


class _Sums(NamedTuple):
    """Means, for every sample k, over pairs of samples of an array A_kj.

    Attributes:
        current: 1/(K-1) sum_{j != k} A_kj.
        crossed: 1/(K-1) sum_{j != k} A_jk.
        own: A_kk.
        others: 1/((K-1)(K-2)) sum_{j != k} sum_{m != j,k} A_jm; 0 for K = 2.
    """

    current: Float[Array, "K *batch"]
    crossed: Float[Array, "K *batch"]
    own: Float[Array, "K *batch"]
    others: Float[Array, "K *batch"]


def _sums(A: Float[Array, "K K *batch"]) -> _Sums:
    xp, K = namespace(A), A.shape[0]
    same = xp.eye(K, dtype=A.dtype, device=device(A))[(..., *(None,) * (A.ndim - 2))]
    own = xp.sum(A * same, axis=1)
    current, crossed = xp.sum(A, axis=1) - own, xp.sum(A, axis=0) - own
    others = xp.sum(current, axis=0, keepdims=True) - current - crossed
    return _Sums(current / (K - 1), crossed / (K - 1), own, others / max(1, (K - 1) * (K - 2)))
