"""The Gibbs Stein operator, which makes functions of mean zero out of any function of discrete variables.

    (A h)(x) = 1/D sum_i [E_{y_i ~ q} h(y_i, x_-i) - h(x)],        E_q[(A h)(x)] = 0

(Shi, Zhou, Hwang, Titsias and Mackey, 2022): averaging over one variable leaves E_q h as it is. It asks for h at x and
at its neighbours, the points that differ from x in one variable: for Bernoulli the D points with one bit flipped, for
Categorical the D C points with one variable set to one category, x itself D times among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from doublecv.arrays import Array
from doublecv.distributions import Bernoulli, Distribution

if TYPE_CHECKING:
    from jaxtyping import Float


class Around(NamedTuple):
    """A function h at points x and at their neighbours.

    Attributes:
        here: h(x).
        neighbours: for Bernoulli at i, h(x with x_i flipped); for Categorical at (i, c), h(x with x_i = c).
    """

    here: Float[Array, "*shape"]
    neighbours: Float[Array, "*points"]


def constant_around(q: Distribution, here: Float[Array, "*shape"]) -> Around:
    """A function that is the same everywhere; the axes of the neighbours have length 1."""
    return Around(here, here[(..., *(None,) * q.event_axes)])


def linear_around(
    q: Distribution, x: Float[Array, "*points"], v: Float[Array, "*points"], here: Float[Array, "*shape"]
) -> Around:
    """The function v^T y + constant of y that is `here` at x.

    A neighbour differs from x in one variable, so one product makes all, and no neighbour is written out.
    """
    change = v * (1 - 2 * x) if isinstance(q, Bernoulli) else v - q.xp.sum(v * x, axis=-1, keepdims=True)
    return Around(here, constant_around(q, here).neighbours + change)


def gibbs_stein(q: Distribution, x: Float[Array, "*points"], h: Around) -> Float[Array, "*shape"]:
    """(A h)(x) = 1/D sum_i sum_{y_i} q(y_i) [h(y_i, x_-i) - h(x)]."""
    change = h.neighbours - constant_around(q, h.here).neighbours
    # The flipped bit has probability 1 - mu where x = 1 and mu where x = 0: that is |x - mu|.
    probability = q.xp.abs(q.score(x)) if isinstance(q, Bernoulli) else q.mean
    return q.dot(probability, change) / q.event_shape[0]


def gibbs_stein_of_score(q: Distribution, x: Float[Array, "*points"], h: Around) -> Float[Array, "*points"]:
    """(A h s)(x), the operator on each coordinate of h(y) s(y), in time and memory that are linear in D.

    The score of variable i is the same at all neighbours but those in variable i itself, where the operator has
    E_{y_i}[h s_i] - h(x) s_i(x) instead of s_i(x) (E_{y_i}[h] - h(x)). Together

        (A h s)(x)_i = s_i(x) (A h)(x) + 1/D (E_{y_i}[h(y_i, x_-i) s_i(y_i)] - s_i(x) E_{y_i}[h(y_i, x_-i)])

    whose last bracket is -s_i(x) h(x with x_i flipped) for Bernoulli and, for category c of a one-hot variable,
    mu_ic h(x with x_i = c) - x_ic E_{y_i}[h(y_i, x_-i)].
    """
    if isinstance(q, Bernoulli):
        own = -q.score(x) * h.neighbours
    else:
        weighted = q.mean * h.neighbours
        own = weighted - x * q.xp.sum(weighted, axis=-1, keepdims=True)
    return q.weigh(gibbs_stein(q, x, h), q.score(x)) + own / q.event_shape[0]
