r"""The concrete relaxation: a continuous z whose hard threshold is the sample x, and :math:`\tilde z` given x.

With standard noise g, logistic for Bernoulli and Gumbel for Categorical, let z = location + g. Then x = [z > 0], or the
one-hot vector of the largest z, is a sample of q. Divided by a temperature and mapped by the family's mean function, z
is a point inside the cube or simplex at which f can be differentiated (Maddison, Mnih and Teh, 2017; Jang, Gu and
Poole, 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Any, final

from array_api_compat import device

from doublecv.arrays import Array, Shape, namespace
from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.estimators.couplings import Coupling, Independent, Joint

if TYPE_CHECKING:
    from jaxtyping import Float


@final
@dataclass(frozen=True)
class Concrete(Coupling):
    r"""Draw K independent hard samples from noise[0], the noise of z; noise[1] is the noise of :math:`\tilde z`."""

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        r"""Return one number per sample, variable and category, for z and for :math:`\tilde z`."""
        return (2, samples, *q.batch_shape, *q.event_shape)

    def draw(self, q: Distribution, noise: Float[Array, "2 K *logits"]) -> Float[Array, "K *logits"]:
        """Draw the hard samples."""
        return hard_sample(q, noise[0])

    def joint(self, q: Distribution, samples: int) -> Joint:
        """Return the product of the marginals: the hard samples are independent."""
        return Independent().joint(q, samples)

    def estimate(
        self, q: Distribution, x: Float[Array, "K *logits"], f: Float[Array, "K *batch"]
    ) -> Float[Array, "*logits"]:
        """Estimate with RLOO."""
        return Independent().estimate(q, x, f)

    def mean_of_independent(self, v: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
        """Return the leave-one-out mean."""
        return Independent().mean_of_independent(v)


def relaxed_points(
    q: Distribution, noise: Float[Array, "2 K *logits"], x: Float[Array, "K *logits"]
) -> Float[Array, "2*K *logits"]:
    r"""Return :math:`z_1, \dots, z_K, \tilde z_1, \dots, \tilde z_K`, each from its own logits along q's first axis."""
    samples = x.shape[0]
    z = relaxed_sample(q.with_logits(q.logits[:samples]), noise[0])
    conditional = conditional_sample(q.with_logits(q.logits[samples:]), noise[1], x)
    return q.xp.concat([z, conditional], axis=0)


def hard_sample(q: Distribution, noise: Float[Array, "K *logits"]) -> Float[Array, "K *logits"]:
    """Return [u < mu], which is [z > 0], for Bernoulli; the one-hot vector of the largest z for Categorical."""
    if isinstance(q, Bernoulli):
        return q.sample(_inside(noise))
    z = relaxed_sample(q, noise)
    categories = q.xp.arange(q.event_shape[-1], device=device(q.logits))
    return q.xp.astype(categories == q.xp.argmax(z, axis=-1, keepdims=True), q.logits.dtype)


def relaxed_sample(q: Distribution, noise: Float[Array, "K *logits"]) -> Float[Array, "K *logits"]:
    """Return z = location + g: logits - logit(u) for Bernoulli, log mu - log(-log u) for Categorical."""
    return _location(q, noise) + _standard(q, noise)


def conditional_sample(
    q: Distribution, noise: Float[Array, "K *logits"], x: Float[Array, "K *logits"]
) -> Float[Array, "K *logits"]:
    r"""Return :math:`\tilde z`, distributed as z given the hard sample x, differentiable in the logits with x held.

    Bernoulli, with t = 2x - 1 and g = -logit(v):
    :math:`\tilde z = t \, \mathrm{softplus}(\mathrm{softplus}(t \cdot logits) + t g)`. For x = 1 this is z at u = mu v,
    for x = 0 at u = mu + (1 - mu) v (Tucker et al., 2017, rewritten so that nothing cancels).

    Categorical, with b the category of x and g = -log(-log v): :math:`\tilde z_b = g_b`, the largest of Gumbel
    variables whose weights sum to 1, and :math:`\tilde z_i = g_b - \mathrm{softplus}(g_b - g_i - \log \mu_i)`, Gumbel
    variables truncated at it (Maddison, Tarlow and Minka, 2014; Tucker et al., 2017).
    """
    location, standard = _location(q, noise), _standard(q, noise)
    x = q.xp.astype(x, noise.dtype)
    if isinstance(q, Bernoulli):
        t = 2 * x - 1
        return t * softplus(softplus(t * location) + t * standard)
    largest = q.xp.sum(x * standard, axis=-1, keepdims=True)
    return largest - (1 - x) * softplus(largest - standard - location)


def relax(q: Distribution, z: Float[Array, "*points"], log_temperature: Any) -> Float[Array, "*points"]:
    """Return the interior point sigmoid(z / temperature) or softmax(z / temperature), in the type of the logits.

    Args:
        q: the distribution.
        z: the relaxed samples.
        log_temperature: one number, or one per point and batch element.
    """
    if isinstance(log_temperature, int | float):
        # Python's exp for Python's numbers: they take on the type of the arrays that they meet in all three libraries.
        temperature: Any = exp(log_temperature)
    else:
        event = (None,) * q.event_axes if log_temperature.ndim else ()
        temperature = namespace(log_temperature).exp(log_temperature)[(..., *event)]
    return q.xp.astype(q.with_logits(z / temperature).mean, q.logits.dtype)


def softplus(a: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return log(1 + exp(a)), with first and second derivatives that are right at 0 and finite everywhere."""
    xp = namespace(a)
    positive = a >= 0
    return xp.where(positive, a, xp.zeros_like(a)) + xp.log1p(xp.exp(xp.where(positive, -a, a)))


def _location(q: Distribution, noise: Float[Array, "K *logits"]) -> Float[Array, "*logits"] | Float[Array, "K *logits"]:
    """Return the logits or log probabilities, clipped so that a division by a squared temperature does not overflow."""
    largest = float(q.xp.finfo(noise.dtype).max) ** 0.25
    finite = type(q)(logits=q.xp.clip(q.xp.astype(q.logits, noise.dtype), -largest, largest))
    return finite.log_mean if isinstance(finite, Categorical) else finite.logits


def _standard(q: Distribution, noise: Float[Array, "K *logits"]) -> Float[Array, "K *logits"]:
    """Return logistic noise -logit(u), or Gumbel noise -log(-log u)."""
    u = _inside(noise)
    if isinstance(q, Bernoulli):
        return q.xp.log1p(-u) - q.xp.log(u)
    return -q.xp.log(-q.xp.log(u))


def _inside(noise: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Clip the noise to [eps/2, 1 - eps/2], so that its logit is finite."""
    half_step = float(namespace(noise).finfo(noise.dtype).eps) / 2
    return namespace(noise).clip(noise, half_step, 1 - half_step)
