"""Estimators whose control variate is f at relaxed points: REBAR, RELAX and Double CV with a concrete relaxation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, log, prod, sqrt
from typing import TYPE_CHECKING, Any, final

import numpy as np

from doublecv.arrays import Array, sum_over_samples
from doublecv.distributions import Distribution
from doublecv.estimators.averages import leave_one_out, score_gradient, score_magnitude
from doublecv.estimators.base import Applied, DescendingEstimator, Learned, Needs, RelaxedEstimator
from doublecv.estimators.concrete import Concrete, relax, relaxed_points
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.linear import LinearEstimator
from doublecv.estimators.parts import Vectors

if TYPE_CHECKING:
    from jaxtyping import Float

TEMPERATURE = 0.1
"""The temperature at the start."""

NEGATIVE_SLOPE = 0.3
"""The slope below 0 of the hidden units of RELAX's network."""


def _conditional_control(evaluation: Evaluation) -> Float[Array, "K *batch"]:
    r"""Return :math:`c(\tilde z_k)`."""
    assert evaluation.control is not None
    return evaluation.control[evaluation.x.shape[0] :]


def _reparameterized_gradient(evaluation: Evaluation) -> Float[Array, "*logits"]:
    r"""Return :math:`\frac{1}{K} \sum_k \nabla c(z_k) - \nabla c(\tilde z_k)`, whose mean is that of c s."""
    assert evaluation.dcontrol is not None
    samples = evaluation.x.shape[0]
    return sum_over_samples(evaluation.dcontrol[:samples] - evaluation.dcontrol[samples:]) / samples


def _relaxed_estimate(q: Distribution, evaluation: Evaluation) -> Applied:
    r"""Return :math:`\frac{1}{K} \sum_k (f_k - c(\tilde z_k)) s_k + \nabla c(z_k) - \nabla c(\tilde z_k)`."""
    score_part = score_gradient(q, evaluation.x, evaluation.f - _conditional_control(evaluation))
    return Applied(score_part + _reparameterized_gradient(evaluation), {})


@final
@dataclass(frozen=True)
class Rebar(RelaxedEstimator, DescendingEstimator):
    r"""Estimate with REBAR.

    .. math::
        g = \frac{1}{K} \sum_k (f(x_k) - c(\tilde z_k)) \, s(x_k) + \nabla_{logits} c(z_k) - \nabla_{logits} c(\tilde
        z_k), \qquad c(z) = scale \cdot f(\mathrm{sigmoid}(z / temperature))

    (softmax for Categorical), where z is the concrete relaxation whose hard threshold is x and :math:`\tilde z` is
    drawn from z given x (Tucker et al., 2017). It is unbiased at any temperature and scale: given x, the score of z is
    that of x plus that of :math:`\tilde z`, so the last two terms have the mean of what the first subtracts. f must be
    defined inside the cube or simplex. Learning the temperature uses second derivatives of f. Unlike the original, this
    estimator draws the noise of :math:`\tilde z` independently, has one temperature and one scale, and has neither the
    modified relaxation nor the neural baseline.

    >>> Rebar(samples=2).evaluations
    6

    Attributes:
        samples: K >= 1; f is evaluated at 3K points.
    """

    samples: int = 1

    @cached_property
    def needs(self) -> Needs:
        r"""Return the needs: z and :math:`\tilde z` of every sample."""
        return Needs(relaxed_points=2 * self.samples, coupling=Concrete())

    def start(self, q: Distribution | None, context: Float[Array, "*#batch features"] | None) -> Learned:
        """Return the logarithm of the temperature, which keeps it positive, and the scale."""
        return Learned({"log_temperature": np.asarray(log(TEMPERATURE)), "scale": np.asarray(1.0)}, {}, {})

    def control(
        self,
        f: Callable[[Array], Array],
        q: Distribution,
        noise: Float[Array, "2 K *logits"],
        x: Float[Array, "K *logits"],
        numbers: Mapping[str, Any],
        context: Float[Array, "*#batch features"] | None,
    ) -> Float[Array, "2*K *batch"]:
        r"""Return c at z and :math:`\tilde z`."""
        return numbers["scale"] * f(relax(q, relaxed_points(q, noise, x), numbers["log_temperature"]))

    def formula(
        self,
        q: Distribution,
        evaluation: Evaluation,
        learned: Learned,
        weight: Float[Array, "*batch"],
        context: Float[Array, "*#batch features"] | None,
    ) -> Applied:
        """Compute the estimate."""
        return _relaxed_estimate(q, evaluation)


@final
@dataclass(frozen=True)
class Relax(RelaxedEstimator, DescendingEstimator):
    r"""Estimate with RELAX, which is REBAR with a learned function r added to f.

    .. math:: c(z) = scale \cdot \big(f(\mathrm{sigmoid}(z / temperature)) + r(z, y)\big)

    (Grathwohl et al., 2018), in the form of the programs of Dong, Mnih and Tucker (2020) and Titsias and Shi (2022). r
    is a network with one hidden layer of LeakyReLU(0.3) units that reads z and the context y, if one is given. It is
    unbiased for any network.

    >>> import doublecv as dcv
    >>> learned = Relax(samples=1, units=5).init(dcv.Bernoulli(logits=np.zeros((8, 3))), context=np.zeros((8, 2)))
    >>> learned.numbers["from_context"].shape, learned.numbers["from_point"].shape
    ((2, 5), (3, 5))

    Attributes:
        samples: K >= 1; f is evaluated at 3K points.
        units: the number of hidden units of the network.
        seed: the seed of the network's initial weights, Glorot uniform.
    """

    samples: int = 1
    units: int = 137
    seed: int = 0

    def check_options(self) -> None:
        """Raise if there are no hidden units."""
        if isinstance(self.units, bool) or not isinstance(self.units, int) or self.units < 1:
            raise ValueError(f"units must be an integer of at least 1, got {self.units!r}")

    @cached_property
    def needs(self) -> Needs:
        r"""Return the needs: z and :math:`\tilde z` of every sample, and features of each batch element."""
        return Needs(relaxed_points=2 * self.samples, coupling=Concrete(), context=True, sized=True)

    def start(self, q: Distribution | None, context: Float[Array, "*#batch features"] | None) -> Learned:
        """Return temperature, scale and the network's weights: Glorot uniform, with biases 0."""
        assert q is not None
        features, points = 0 if context is None else context.shape[-1], prod(q.event_shape)
        generator = np.random.default_rng(self.seed)

        def glorot(inputs: int, outputs: int) -> Any:
            limit = sqrt(6 / (inputs + outputs))
            return generator.uniform(-limit, limit, size=(inputs, outputs))

        hidden = glorot(features + points, self.units)
        numbers = {
            "log_temperature": np.asarray(log(TEMPERATURE)),
            "scale": np.asarray(1.0),
            "from_context": hidden[:features],
            "from_point": hidden[features:],
            "hidden_bias": np.zeros(self.units),
            "to_output": glorot(self.units, 1)[:, 0],
            "output_bias": np.zeros(()),
        }
        return Learned(numbers, {}, {})

    def control(
        self,
        f: Callable[[Array], Array],
        q: Distribution,
        noise: Float[Array, "2 K *logits"],
        x: Float[Array, "K *logits"],
        numbers: Mapping[str, Any],
        context: Float[Array, "*#batch features"] | None,
    ) -> Float[Array, "2*K *batch"]:
        r"""Return c at z and :math:`\tilde z`."""
        z = relaxed_points(q, noise, x)
        values = f(relax(q, z, numbers["log_temperature"]))
        if tuple(values.shape) != q.batch_shape:
            raise ValueError(
                f"f must return shape {q.batch_shape} at the relaxed points, one number per point (in front) and batch "
                f"element, got shape {tuple(values.shape)}"
            )
        return numbers["scale"] * (values + self._network(q, z, numbers, context))

    def _network(
        self, q: Distribution, z: Float[Array, "points *logits"], numbers: Mapping[str, Any], context: Array | None
    ) -> Float[Array, "points *batch"]:
        xp = q.xp
        flat = xp.reshape(z, (*q.batch_shape, prod(q.event_shape)))
        hidden = flat @ xp.astype(numbers["from_point"], z.dtype) + xp.astype(numbers["hidden_bias"], z.dtype)
        features = numbers["from_context"].shape[0]
        given = 0 if context is None else context.shape[-1]
        if given != features:
            raise ValueError(
                f"context must have {features} features for each batch element, as when the state was initialized, got "
                f"{'none' if context is None else given}"
            )
        if context is not None:
            hidden = hidden + xp.astype(context, z.dtype) @ xp.astype(numbers["from_context"], z.dtype)
        rectified = xp.where(hidden >= 0, hidden, NEGATIVE_SLOPE * hidden)
        return rectified @ xp.astype(numbers["to_output"], z.dtype) + numbers["output_bias"]

    def formula(
        self,
        q: Distribution,
        evaluation: Evaluation,
        learned: Learned,
        weight: Float[Array, "*batch"],
        context: Float[Array, "*#batch features"] | None,
    ) -> Applied:
        """Compute the estimate."""
        return _relaxed_estimate(q, evaluation)


@final
@dataclass(frozen=True)
class ConcreteDoubleCV(LinearEstimator, RelaxedEstimator):
    r"""Estimate with Double CV whose control variate is f at a concrete relaxation.

    .. math::
        g = \frac{1}{K} \sum_k \Big[f(x_k) + \alpha b_k - \frac{1}{K-1} \sum_{j \ne k} (f(x_j) + \alpha b_j)\Big] s(x_k)
            + \alpha \frac{1}{K} \sum_k \nabla r(\tilde z_k) - \nabla r(z_k),
        \qquad b_k = r(\tilde z_k), \quad r(z) = f(\mathrm{sigmoid}(z / temperature)).

    This is REBAR (Tucker et al., 2017) with scale :math:`-\alpha` and a leave-one-out baseline.

    >>> ConcreteDoubleCV(samples=2).evaluations
    6

    Attributes:
        samples: K >= 2; f is evaluated at 3K points.
        temperature: the temperature of the relaxation, which is not learned, so that g is linear in alpha.
    """

    temperature: float = TEMPERATURE

    def check_options(self) -> None:
        """Raise if the temperature is not a positive number."""
        super().check_options()
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, int | float):
            raise TypeError(f"temperature must be a number, got {self.temperature!r}")
        if not 0 < self.temperature < inf:
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")

    @cached_property
    def needs(self) -> Needs:
        r"""Return the needs: z and :math:`\tilde z` of every sample."""
        return Needs(relaxed_points=2 * self.samples, coupling=Concrete(), minimum_samples=2, coefficients=("alpha",))

    def control(
        self,
        f: Callable[[Array], Array],
        q: Distribution,
        noise: Float[Array, "2 K *logits"],
        x: Float[Array, "K *logits"],
        numbers: Mapping[str, Any],
        context: Float[Array, "*#batch features"] | None,
    ) -> Float[Array, "2*K *batch"]:
        r"""Return r at z and :math:`\tilde z`."""
        return f(relax(q, relaxed_points(q, noise, x), log(self.temperature)))

    def parts(self, q: Distribution, evaluation: Evaluation) -> Vectors:
        r"""Return :math:`g_0`, which is RLOO, and :math:`h = \mathrm{RLOO}(b) - c`."""

        def rloo(values: Float[Array, "K *batch"]) -> Float[Array, "*logits"]:
            return score_gradient(q, evaluation.x, values - leave_one_out(values))

        b = _conditional_control(evaluation)
        c = _reparameterized_gradient(evaluation)
        size = partial(score_magnitude, q, q.score(evaluation.x), b, c)
        return Vectors(q, rloo(evaluation.f), {"alpha": rloo(b) - c}, size)
