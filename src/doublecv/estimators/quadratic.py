"""The quadratic double control variate: Double CV with squared terms and freely weighted coefficients."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, namespace
from doublecv.distributions import Distribution
from doublecv.estimators.averages import dot_correction, leave_one_out
from doublecv.estimators.base import Needs
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.linear import Learning, LinearEstimator
from doublecv.estimators.parts import Average, Correction, TabledScores, WeightedScores
from doublecv.paths import Path

if TYPE_CHECKING:
    from jaxtyping import Float

NAMES = ("current", "current_square", "crossed", "crossed_square", "own", "own_norm", "own_square")
"""The coefficients at K = 2."""

NAMES_OF_OTHERS = ("others", "others_square")
"""The coefficients that are added for K >= 3."""

BOUNDED = ("along", "along_square", "crossed_along", "crossed_along_square", "own_along")
"""The coefficients of terms with the direction of the gradient, at K = 2."""

BOUNDED_OF_OTHERS = ("others_along", "others_along_square")
"""Those that are added for K >= 3."""

LINEAR = ("current", "crossed", "own", "own_norm", "others")
"""The coefficients that are also solved for together with those of the direction."""

MAX_TABLED = 8
"""The largest K for which NumPy computes all weights by one product, with a table of the size n K (4 K^2 + K)."""


@final
@dataclass(frozen=True)
class QuadraticDoubleCV(LinearEstimator):
    r"""Estimate with the quadratic double control variate.

    .. math::
        g = \frac{1}{K} \sum_k w_k s(x_k) - a_L M \frac{1}{K} \sum_k G_k - a_S \frac{1}{K} \sum_k T(G_k) / \sqrt{N_k}

    .. math::
        w_k = f_k - \bar f_{-k}
        + \frac{1}{K-1} \sum_{j \ne k} \big(a_L P_{kj} + a_S Q_{kj} + c_L P_{jk} + c_S Q_{jk}
        + r_L P_{jj} + r_N \sqrt{N_j} + r_S Q_{jj}\big)
        + \frac{1}{(K-1)(K-2)} \sum_{j \ne k} \sum_{m \ne j,k} \big(o_L P_{jm} + o_S Q_{jm}\big) + b_k

    where the last sum exists for K >= 3, :math:`G_k = \nabla f(x_k)`, :math:`P_{kj} = G_j^T (x_k - \mu)`,
    :math:`n_j = E[(G_j^T (x - \mu))^2] = G_j^T M G_j`, :math:`\sqrt{N_j} = \sqrt{n_j} + \epsilon`,
    :math:`Q_{kj} = (P_{kj}^2 - n_j) / \sqrt{N_j}` and :math:`T(G) = E[s(x) (G^T (x - \mu))^2]`.

    :math:`b_k` has the same terms with the direction of the gradient,

    .. math:: D_j = \sqrt{N_j} \, G_j / \max(\sqrt{N_j}, \ell)^2,

    in the place of :math:`G_j`, without the squares of the sample's own and the norm. It does not become larger where f
    is steep, nor does it vanish where f is flat. Its corrections are :math:`M D_j` and :math:`T(D_j)`. The floor
    :math:`\ell`, which is smaller than most :math:`\sqrt{N_j}`, is learned (`doublecv.estimators.norm`).

    It is unbiased because, given the other samples, :math:`E[P_{kj} s(x_k)] = M G_j` and
    :math:`E[Q_{kj} s(x_k)] = T(G_j) / \sqrt{N_j}`, which are the two corrections; given :math:`x_k`, :math:`P_{jk}` and
    :math:`Q_{jk}` have mean 0; and the terms with r and o do not contain :math:`x_k`. Double CV (Titsias and Shi, 2022,
    equation 11) is the case :math:`a_L = \alpha`, :math:`c_L = -\alpha / (K-1)`, :math:`o_L = -\alpha (K-2) / (K-1)`
    with all others 0. The coefficients are called, in this order, `current`, `current_square`, `crossed`,
    `crossed_square`, `own`, `own_norm`, `own_square`, `others`, `others_square`, and those of :math:`b_k` `along`,
    `along_square`, `crossed_along`, `crossed_along_square`, `own_along`, `others_along`, `others_along_square`.

    >>> len(QuadraticDoubleCV(samples=2).needs.coefficients), len(QuadraticDoubleCV(samples=4).needs.coefficients)
    (12, 16)

    Attributes:
        samples: K >= 2.
        learning: see `LinearEstimator`; "moments" is the default here because a descent of this many coefficients is
            slow.
    """

    learning: Learning = field(default="moments", kw_only=True)

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: gradients at two or more samples."""
        return Needs(gradient=True, minimum_samples=2, path=True, coefficients=(*self._of_gradient, *self.bounded))

    @property
    def _of_gradient(self) -> tuple[str, ...]:
        """Return the coefficients of the terms with the gradient itself."""
        return NAMES if self.samples == 2 else (*NAMES, *NAMES_OF_OTHERS)

    @property
    def bounded(self) -> tuple[str, ...]:
        """Return the coefficients of the terms with the direction of the gradient.

        They have the unit of f, so no one rate of a descent serves them.
        """
        if self.learning == "gradient":
            return ()
        return BOUNDED if self.samples == 2 else (*BOUNDED, *BOUNDED_OF_OTHERS)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """Return the terms with the gradient, those with its direction, and the linear ones of both."""
        if not self.bounded:
            return (self._of_gradient,)
        linear = tuple(name for name in LINEAR if name in self._of_gradient)
        return self._of_gradient, (*linear, *self.bounded), self.bounded

    @property
    def direction(self) -> tuple[float, ...]:
        """Return the coefficients of Double CV with alpha = 1."""
        K = self.samples
        of_double_cv = {"current": 1.0, "crossed": -1 / (K - 1), "others": -(K - 2) / (K - 1)}
        return tuple(of_double_cv.get(name, 0.0) for name in self.needs.coefficients)

    def parts(self, q: Distribution, evaluation: Evaluation) -> WeightedScores | TabledScores:
        r"""Return :math:`g_0`, which is RLOO, and the control variate of each coefficient."""
        xp, f, score = q.xp, evaluation.f, q.score(evaluation.x)
        of_gradient = _products(q, score, evaluation.df)
        other = evaluation.direction
        of_direction = of_gradient if other is None else _products(q, score, other)
        # The norm only scales, so the estimate is unbiased whatever is added; 0 / 0 must be 0.
        least = float(xp.finfo(of_gradient.norm.dtype).smallest_normal)
        inverse, floored = 1 / (of_gradient.norm + least**0.5), of_direction.norm
        if evaluation.floor is not None:
            floored = xp.maximum(floored, xp.asarray(evaluation.floor, dtype=floored.dtype, device=device(floored)))
        # A gradient whose square is rounded to 0 has no direction.
        has_direction = of_direction.square > least / float(xp.finfo(floored.dtype).eps)
        # 1 above the floor, and proportional to the norm below it.
        damping = of_direction.norm / (floored + least**0.5)
        to_unit = xp.where(has_direction, damping / (floored + least**0.5), xp.zeros_like(floored))
        compensator, (square, square_along) = of_gradient.squares(q, score, (inverse, to_unit**2))
        linear, linear_along = of_gradient.linear(q, (xp.ones_like(inverse), to_unit))
        compensator_along = compensator
        if other is not None:
            compensator_along, (_, square_along) = of_direction.squares(q, score, (inverse, to_unit**2))
            _, linear_along = of_direction.linear(q, (inverse, to_unit))
        P, norm = of_gradient.pairs, of_gradient.norm
        Q, along = (P**2 - compensator) * inverse, of_direction.pairs * to_unit
        along_square = along**2 - compensator_along * to_unit**2
        corrections: dict[str, Correction] = {
            "current": linear,
            "current_square": square,
            "along": linear_along,
            "along_square": square_along,
        }
        names = self.needs.coefficients
        weight_of_g0 = f - leave_one_out(f) if evaluation.weight is None else evaluation.weight
        corrections = {name: r for name, r in corrections.items() if name in names}
        if isinstance(f, np.ndarray) and self.samples <= MAX_TABLED and not q.visited:
            shape = (self.samples**2, *f.shape[1:])
            entries = np.concatenate([*(pairs.reshape(shape) for pairs in (P, Q, along, along_square)), norm])
            return TabledScores(
                q, score, weight_of_g0, self._table, entries, names, corrections, norm=of_direction.norm
            )
        weights = self._weights(P, Q, along, along_square, norm)
        weights = {name: weights[name] for name in names}
        return WeightedScores(q, score, weight_of_g0, weights, corrections, norm=of_direction.norm)

    def _weights(
        self,
        P: Float[Array, "K K *batch"],
        Q: Float[Array, "K K *batch"],
        along: Float[Array, "K K *batch"],
        along_square: Float[Array, "K K *batch"],
        norm: Float[Array, "K *batch"],
    ) -> dict[str, Float[Array, "K *batch"]]:
        r"""Return the weight of every coefficient, which is linear in the arguments."""
        of_P, of_Q, of_along, of_square = (_means_over_pairs(pairs) for pairs in (P, Q, along, along_square))
        weights = {
            "current": of_P.current,
            "current_square": of_Q.current,
            "crossed": of_P.crossed,
            "crossed_square": of_Q.crossed,
            "own": leave_one_out(of_P.own),
            "own_norm": leave_one_out(norm),
            "own_square": leave_one_out(of_Q.own),
        }
        if self.samples > 2:
            weights |= {"others": of_P.others, "others_square": of_Q.others}
        weights |= {
            "along": of_along.current,
            "along_square": of_square.current,
            "crossed_along": of_along.crossed,
            "crossed_along_square": of_square.crossed,
            "own_along": leave_one_out(of_along.own),
        }
        if self.samples > 2:
            weights |= {"others_along": of_along.others, "others_along_square": of_square.others}
        return weights

    @cached_property
    def _table(self) -> Float[np.ndarray, "n K entries"]:
        r"""Return the matrices that turn the entries of P, Q, those of the direction, and the norms into weights."""
        K, size = self.samples, 4 * self.samples**2 + self.samples
        units, of_norm = np.eye(size)[:-K], np.eye(size)[-K:]
        P, Q, along, along_square = units.reshape(4, K, K, size)
        weights = self._weights(P, Q, along, along_square, of_norm)
        return np.stack([weights[name] for name in self.needs.coefficients])


class _Products(NamedTuple):
    r"""Hold what control variates take from one vector :math:`G_j` per sample.

    Attributes:
        vectors: the vectors.
        covariance: :math:`M G_j`.
        square: :math:`n_j = G_j^T M G_j`.
        norm: :math:`\sqrt{n_j}`.
        pairs: :math:`P_{kj} = G_j^T (x_k - \mu)`.
    """

    vectors: Float[Array, "K *logits"]
    covariance: Float[Array, "K *logits"]
    square: Float[Array, "K *batch"]
    norm: Float[Array, "K *batch"]
    pairs: Float[Array, "K K *batch"]

    def linear(
        self, q: Distribution, weights: tuple[Float[Array, "K *batch"], Float[Array, "K *batch"]]
    ) -> tuple[Correction, Correction]:
        r"""Return the corrections of :math:`w_j P_{kj}` on the current sample for two weights w."""
        if q.visited:
            first, second = (dot_correction(q, q.scale(weight, self.vectors)) for weight in weights)
            return first, second
        return Average(weights[0], self.covariance), Average(weights[1], self.covariance)

    def squares(
        self,
        q: Distribution,
        score: Float[Array, "K *logits"],
        weights: tuple[Float[Array, "K *batch"], Float[Array, "K *batch"]],
    ) -> tuple[Array, tuple[Correction, Correction]]:
        r"""Return the compensator of :math:`P_{kj}^2`, and the corrections of its multiples by two weights."""
        if q.visited:
            return _squares_on_paths(q, self.vectors, score, weights)
        moment = q.score_square_moment(self.vectors)
        return self.square, (Average(weights[0], moment), Average(weights[1], moment))


def _products(q: Distribution, score: Float[Array, "K *logits"], vectors: Float[Array, "K *logits"]) -> _Products:
    covariance = q.covariance_product(vectors)
    square = q.dot(vectors, covariance)
    return _Products(vectors, covariance, square, q.xp.sqrt(q.xp.clip(square, 0, None)), q.pairwise_dot(score, vectors))


def _squares_on_paths(
    q: Distribution,
    G: Float[Array, "K *logits"],
    score: Float[Array, "K *logits"],
    weights: tuple[Float[Array, "K *batch"], Float[Array, "K *batch"]],
) -> tuple[Float[Array, "K K *batch"], tuple[Float[Array, "K *logits"], Float[Array, "K *logits"]]]:
    r"""Return the compensators of the squared terms on paths, and two weighted corrections of the current sample's one.

    On its own path the square :math:`P_{kj}^2` has the compensator :math:`n_{kj} = \sum_t G_{jt}^T M_{kt} G_{jt}`, and

    .. math:: E[(P_{kj}^2 - n_{kj}) s_{kt}]
              = E\Big[T_{kt}(G_{jt}) + 2 M_{kt} G_{jt} \sum_{u < t} G_{ju}^T s_{ku}\Big].

    The second part has mean 0 where the variables are independent.
    """
    assert isinstance(q, Path)
    xp, K = q.xp, G.shape[0]
    compensators, first, second = [], xp.zeros_like(G), xp.zeros_like(G)
    for j in range(K):
        others = xp.broadcast_to(G[j][None], tuple(G.shape))
        product = q.covariance_product(others)
        compensators.append(q.dot(others, product))
        mean = q.score_square_moment(others) + 2 * product * q.sum_of_earlier(others * score)
        is_other = xp.asarray([float(k != j) for k in range(K)], dtype=G.dtype, device=device(G))
        is_other = xp.reshape(is_other, (K, *(1,) * (weights[0].ndim - 1)))
        first = first + q.scale(is_other * weights[0][j], mean)
        second = second + q.scale(is_other * weights[1][j], mean)
    pairs = K * (K - 1)
    return xp.stack(compensators, axis=1), (first / pairs, second / pairs)


class _PairMeans(NamedTuple):
    r"""Hold means over pairs of samples of an array :math:`A_{kj}`, for every sample k.

    Attributes:
        current: :math:`\frac{1}{K-1} \sum_{j \ne k} A_{kj}`.
        crossed: :math:`\frac{1}{K-1} \sum_{j \ne k} A_{jk}`.
        own: :math:`A_{kk}`.
        others: :math:`\frac{1}{(K-1)(K-2)} \sum_{j \ne k} \sum_{m \ne j,k} A_{jm}`; 0 for K = 2.
    """

    current: Float[Array, "K *batch"]
    crossed: Float[Array, "K *batch"]
    own: Float[Array, "K *batch"]
    others: Float[Array, "K *batch"]


def _means_over_pairs(A: Float[Array, "K K *batch"]) -> _PairMeans:
    xp, K = namespace(A), A.shape[0]
    same = xp.eye(K, dtype=A.dtype, device=device(A))[(..., *(None,) * (A.ndim - 2))]
    own = xp.sum(A * same, axis=1)
    current, crossed = xp.sum(A, axis=1) - own, xp.sum(A, axis=0) - own
    others = xp.sum(current, axis=0, keepdims=True) - current - crossed
    return _PairMeans(current / (K - 1), crossed / (K - 1), own, others / max(1, (K - 1) * (K - 2)))
