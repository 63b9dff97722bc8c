r"""Bounds with several samples, :math:`\log \frac{1}{S} \sum_s w(x_s)`: VIMCO and its control variates."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, final

from array_api_compat import device

from doublecv.arrays import Array, log_mean_exp, namespace
from doublecv.distributions import Distribution
from doublecv.estimators.averages import leave_one_out, mean_over_samples
from doublecv.estimators.base import Needs
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.linear import Learning, LinearEstimator
from doublecv.estimators.parts import Vectors

if TYPE_CHECKING:
    from jaxtyping import Float


@final
@dataclass(frozen=True)
class MultiSampleBound(LinearEstimator):
    r"""Estimate the gradient of a bound with S samples.

    .. math:: E[F], \qquad F = \log \frac{1}{S} \sum_s w(x_s),

    the importance weighted bound of Burda, Grosse and Salakhutdinov (2016). f returns :math:`\log w`, and the value of
    an `Expectation` with this estimator is F in place of the mean of f. The base is VIMCO (Mnih and Rezende, 2016),

    .. math:: g_0 = \sum_s (F - F_{-s}) \, s(x_s), \qquad
              F_{-s} = \log \frac{1}{S} \Big(e^{L_s} + \sum_{j \ne s} w_j\Big), \qquad
              L_s = \frac{1}{S-1} \sum_{j \ne s} \log w_j.

    With :math:`G_s = \nabla \log w(x_s)`, :math:`P_{sj} = G_j^T (x_s - \mu)` and the weight
    :math:`\omega_s = e^{L_s - F_{-s}} / S` that sample s would have with the mean of the others, the control variates
    are

    .. math::
        h_{current} &= \sum_s c_s^T (x_s - \mu) \, s(x_s) - M c_s,
        \qquad c_s = \omega_s \frac{1}{S-1} \sum_{j \ne s} G_j \\
        h_{crossed} &= \sum_s \frac{1}{S-1} \sum_{j \ne s} P_{js} \, s(x_s) \\
        h_{own} &= \sum_s \sum_{j \ne s} \alpha_{sj} P_{jj} \, s(x_s),

    where :math:`\alpha_{sj}` is the derivative of :math:`F_{-s}` in :math:`\log w_j`. The first is a first-order
    expansion of F in :math:`x_s` with the others' gradient, whose mean :math:`M c_s` is known because :math:`c_s` does
    not depend on :math:`x_s`. In the second, :math:`P_{js}` has mean 0 given :math:`x_s`. The third does not contain
    :math:`x_s`.

    In :math:`\log w = \log p(x, y) - \log q(x)` the bound has a gradient that passes through the logits of q, unlike
    the mean of :math:`\log q`. Either f does not hold them constant, and automatic differentiation adds that gradient;
    or f holds them constant (`q.detach()`, as in an ELBO), and with `held` the estimator adds it,

    .. math:: g_0 = \sum_s (F - F_{-s} - \hat w_s) \, s(x_s), \qquad \hat w_s = \frac{w_s}{\sum_j w_j}.

    The mean is the same. With `held` the coefficients make the variance of the complete gradient small, and there is
    one more control variate, a baseline of :math:`\hat w_s`: :math:`h_{weight} = \sum_s \omega_s s(x_s)`.

    >>> MultiSampleBound(samples=8).needs.coefficients
    ('current', 'crossed', 'own')

    Attributes:
        samples: S >= 2.
        control: whether to add the control variates, which use the gradient of f; VIMCO otherwise.
        held: whether f is :math:`\log p - \log q` with the logits of q held constant.
        learning: see `LinearEstimator`.
    """

    control: bool = True
    held: bool = False
    learning: Learning = field(default="moments", kw_only=True)

    @cached_property
    def needs(self) -> Needs:
        """Return the needs: log w at two or more samples, and its gradient for the control variates."""
        names = ("current", "crossed", "own", *(("weight",) if self.held else ())) if self.control else ()
        return Needs(gradient=self.control, minimum_samples=2, path=True, bound=True, coefficients=names)

    def parts(self, q: Distribution, evaluation: Evaluation) -> Vectors:
        r"""Return VIMCO and the control variates."""
        x, log_weight, gradient = evaluation.x, evaluation.f, evaluation.df
        xp, S = q.xp, x.shape[0]
        score = q.score(x)
        replaced = _replace_own(log_weight)
        without = log_mean_exp(replaced, axis=1)
        bound = log_mean_exp(log_weight, axis=0)[None]
        advantage = bound - without
        if self.held:
            advantage = advantage - xp.exp(log_weight - bound) / S

        def total(v: Array) -> Array:
            return S * mean_over_samples(q, v)

        g0 = total(q.scale(advantage, score))
        if not self.control:
            return Vectors(q, g0, {})
        share = xp.exp(replaced - without[:, None]) / S
        same = _identity(log_weight)
        omega = xp.sum(share * same, axis=1)
        P = q.pairwise_dot(score, gradient)
        own = xp.sum(P * same, axis=1)
        of_others = (1 - same) * P
        c = q.scale(omega, leave_one_out(gradient))
        current = omega * xp.sum(of_others, axis=1) / (S - 1)
        crossed = xp.sum(of_others, axis=0) / (S - 1)
        alpha = (share + omega[:, None] / (S - 1)) * (1 - same)
        baseline = xp.sum(alpha * own[None], axis=1)
        h = {
            "current": total(q.scale(current, score) - q.covariance_product(c)),
            "crossed": total(q.scale(crossed, score)),
            "own": total(q.scale(baseline, score)),
        }
        if self.held:
            h["weight"] = total(q.scale(omega, score))
        return Vectors(q, g0, h)


def _replace_own(log_weight: Float[Array, "S *batch"]) -> Float[Array, "S S *batch"]:
    """Return at s, j the log weight of j, or for s = j the mean of the others."""
    xp = namespace(log_weight)
    same = _identity(log_weight) > 0
    return xp.where(same, leave_one_out(log_weight)[:, None], log_weight[None])


def _identity(log_weight: Float[Array, "S *batch"]) -> Float[Array, "S S *ones"]:
    xp, S = namespace(log_weight), log_weight.shape[0]
    identity = xp.eye(S, dtype=log_weight.dtype, device=device(log_weight))
    return xp.reshape(identity, (S, S, *(1,) * (log_weight.ndim - 1)))
