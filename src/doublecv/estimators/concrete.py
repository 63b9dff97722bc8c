"""The concrete relaxation: continuous z whose hard threshold is the sample x, and z~ drawn from z given x.

With standard noise g, logistic for Bernoulli and Gumbel for Categorical, z = location + g has x = [z > 0], or x = the
one-hot vector of the largest z, as a sample of q. Divided by a temperature and put through the family's mean, z is a
point inside the cube or simplex at which f can be differentiated (Maddison, Mnih and Teh, 2017; Jang, Gu and Poole,
2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import TYPE_CHECKING, Any

from array_api_compat import device

from doublecv.arrays import Array, Shape, namespace
from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.estimators.couplings import Coupling, Independent, Joint

if TYPE_CHECKING:
    from jaxtyping import Float


class Concrete(Coupling):
    """K independent hard samples from the noise of z, with noise for as many z~ besides: noise[0] and noise[1]."""

    def noise_shape(self, q: Distribution, samples: int) -> Shape:
        """For z and for z~ one number a sample, variable and category."""
        return (2, samples, *q.batch_shape, *q.event_shape)

    def draw(self, q: Distribution, noise: Float[Array, "2 K *logits"]) -> Float[Array, "K *logits"]:
        """x = [u < mu], which is [z > 0], for Bernoulli; the one-hot vector of the largest z for Categorical."""
        if isinstance(q, Bernoulli):
            return q.sample(_inside(noise[0]))
        z = relaxed_sample(q, noise[0])
        categories = q.xp.arange(q.event_shape[-1], device=device(q.logits))
        return q.xp.astype(categories == q.xp.argmax(z, axis=-1, keepdims=True), q.logits.dtype)

    def joint(self, q: Distribution, samples: int) -> Joint:
        """The hard samples are independent."""
        return Independent().joint(q, samples)


def relaxed_sample(q: Distribution, noise: Float[Array, "K *logits"]) -> Float[Array, "K *logits"]:
    """z = location + g: logits - logit(u) for Bernoulli, log mu - log(-log u) for Categorical."""
    return _location(q, noise) + _standard(q, noise)


def conditional_sample(
    q: Distribution, noise: Float[Array, "K *logits"], x: Float[Array, "K *logits"]
) -> Float[Array, "K *logits"]:
    """z~, distributed as z is given the hard sample x, and differentiable in the logits with x held.

    Bernoulli, with t = 2x - 1 and g = -logit(v):  z~ = t softplus(softplus(t logits) + t g). For x = 1 this is
    z at u = mu v, for x = 0 at u = mu + (1 - mu) v (Tucker et al., 2017, rewritten so that nothing cancels).

    Categorical, with b the category of x and g = -log(-log v):  z~_b = g_b, the largest of Gumbels whose weights sum
    to 1, and z~_i = -log(exp(-g_i) / mu_i + exp(-g_b)) = g_b - softplus(g_b - g_i - log mu_i), Gumbels cut off at it
    (Maddison, Tarlow and Minka, 2014; Tucker et al., 2017).
    """
    location, standard = _location(q, noise), _standard(q, noise)
    x = q.xp.astype(x, noise.dtype)
    if isinstance(q, Bernoulli):
        t = 2 * x - 1
        return t * softplus(softplus(t * location) + t * standard)
    largest = q.xp.sum(x * standard, axis=-1, keepdims=True)
    return largest - (1 - x) * softplus(largest - standard - location)


def relax(q: Distribution, z: Float[Array, "*points"], coefficients: Mapping[str, Any]) -> Float[Array, "*points"]:
    """The point inside: sigmoid(z / temperature) or softmax(z / temperature), in the type of the logits."""
    log_temperature = coefficients["log_temperature"]
    # Python's exp for Python's numbers: they take on the type of the arrays that they meet, in all three libraries.
    number = isinstance(log_temperature, int | float)
    temperature = exp(log_temperature) if number else namespace(log_temperature).exp(log_temperature)
    return q.xp.astype(type(q)(logits=z / temperature).mean, q.logits.dtype)


def softplus(a: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log(1 + exp(a)), with first and second derivatives that are right at 0 and finite everywhere."""
    xp = namespace(a)
    positive = a >= 0
    return xp.where(positive, a, xp.zeros_like(a)) + xp.log1p(xp.exp(xp.where(positive, -a, a)))


def _location(q: Distribution, noise: Float[Array, "K *logits"]) -> Float[Array, "*logits"]:
    """The logits, or the log probabilities, with room for a division by the square of a temperature."""
    largest = float(q.xp.finfo(noise.dtype).max) ** 0.25
    finite = type(q)(logits=q.xp.clip(q.xp.astype(q.logits, noise.dtype), -largest, largest))
    return finite.log_mean if isinstance(finite, Categorical) else finite.logits


def _standard(q: Distribution, noise: Float[Array, "K *logits"]) -> Float[Array, "K *logits"]:
    """Logistic noise -logit(u), or Gumbel noise -log(-log u)."""
    u = _inside(noise)
    if isinstance(q, Bernoulli):
        return q.xp.log1p(-u) - q.xp.log(u)
    return -q.xp.log(-q.xp.log(u))


def _inside(noise: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The noise off 0 and 1 by half a step of its type at 1, within the step that a drawn 0 stands for."""
    half_step = float(namespace(noise).finfo(noise.dtype).eps) / 2
    return namespace(noise).clip(noise, half_step, 1 - half_step)
