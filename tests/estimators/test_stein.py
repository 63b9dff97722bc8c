"""The Gibbs Stein operator against its definition, with every neighbor written out."""

import numpy as np
import pytest

import doublecv as dcv
from doublecv.estimators.stein import NeighborValues, constant_values, gibbs_stein, gibbs_stein_of_score, linear_values
from doublecv.exact import support
from problems import make_logits

FAMILIES = [dcv.Bernoulli, dcv.Categorical]


def h(y, event_axes):
    """A function that is no sum over variables."""
    flat = y.reshape(*y.shape[: y.ndim - event_axes], -1)
    return np.exp(np.sin(flat @ np.linspace(-2, 3, flat.shape[-1]))) - 0.4


def replaced(q, x, variable, value):
    """x with one variable set to a value."""
    y = x.copy()
    y[(..., variable, *(slice(None),) * (q.event_axes - 1))] = value
    return y


def around(q, x, function):
    """The function at x and at every neighbor, each of them written out: D times the size of x."""
    variables = range(q.event_shape[0])
    if isinstance(q, dcv.Bernoulli):
        flipped = [replaced(q, x, i, 1 - x[..., i]) for i in variables]
        return NeighborValues(function(x), np.stack([function(y) for y in flipped], axis=-1))
    at = [[function(replaced(q, x, i, value)) for value in q.variable_values()] for i in variables]
    return NeighborValues(function(x), np.moveaxis(np.array(at), (0, 1), (-2, -1)))


def by_definition(q, x, function):
    """1/D sum_i sum_{y_i} q(y_i) function(y_i, x_-i) - function(x), for a function that may return a vector."""
    total = 0
    for i in range(q.event_shape[0]):
        for value, probability in zip(q.variable_values(), q.variable_probabilities()[..., i], strict=True):
            there = function(replaced(q, x, i, value))
            weight = np.broadcast_to(probability, x.shape[: x.ndim - q.event_axes])
            total = total + weight.reshape(*weight.shape, *(1,) * (there.ndim - weight.ndim)) * there
    return total / q.event_shape[0] - function(x)


@pytest.fixture(params=FAMILIES, ids=lambda family: family.__name__)
def q(request):
    return request.param(logits=make_logits(request.param))


def test_the_operator_is_its_definition(q):
    x, _ = support(q)
    stein = gibbs_stein(q, x, around(q, x, lambda y: h(y, q.event_axes)))
    np.testing.assert_allclose(stein, by_definition(q, x, lambda y: h(y, q.event_axes)), atol=1e-13)


def test_the_operator_on_a_vector_is_its_definition(q):
    """(A h s)(x) has D coordinates, each of which asks for all neighbors."""
    x, _ = support(q)
    stein = gibbs_stein_of_score(q, x, around(q, x, lambda y: h(y, q.event_axes)))
    naive = by_definition(q, x, lambda y: q.scale(h(y, q.event_axes), q.score(y)))
    np.testing.assert_allclose(stein, naive, atol=1e-13)


def test_the_mean_is_zero(q):
    x, probabilities = support(q)
    at = around(q, x, lambda y: h(y, q.event_axes))
    stein, of_score = gibbs_stein(q, x, at), gibbs_stein_of_score(q, x, at)
    assert np.abs(stein).max() > 0.01
    assert np.abs(of_score).max() > 0.01
    np.testing.assert_allclose((probabilities * stein).sum(0), 0, atol=1e-14)
    np.testing.assert_allclose(q.scale(probabilities, of_score).sum(0), 0, atol=1e-14)


def test_one_product_makes_those_with_all_neighbors(q):
    x, _ = support(q)
    v = np.random.default_rng(0).normal(size=x.shape)
    written_out = around(q, x, lambda y: q.dot(v, y) - 0.3)
    short = linear_values(q, x, v, written_out.here)
    np.testing.assert_allclose(short.neighbors, written_out.neighbors, atol=1e-14)


def test_a_constant_is_mapped_to_zero(q):
    x, _ = support(q)
    same = constant_values(q, np.full(x.shape[: x.ndim - q.event_axes], 1.7))
    everywhere = NeighborValues(same.here, np.broadcast_to(same.neighbors, x.shape))
    np.testing.assert_allclose(gibbs_stein(q, x, everywhere), 0, atol=1e-14)


@pytest.mark.parametrize("infinity", [-np.inf, np.inf])
def test_a_certain_variable_has_no_neighbors(infinity):
    q = dcv.Bernoulli(logits=np.array([infinity, 0.4]))
    x = np.array([float(infinity > 0), 1.0])
    at = NeighborValues(np.array(2.0), np.array([100.0, 3.0]))
    np.testing.assert_allclose(gibbs_stein(q, x, at), (1 - q.mean[1]) / 2)
    assert gibbs_stein_of_score(q, x, at)[0] == 0
