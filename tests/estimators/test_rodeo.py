"""RODEO against its equation with all sums written out, and what is special about it: start, learning, memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from doublecv.diagnostics import exact_gradient, exact_moments, variance
from test_stein import by_definition

import doublecv as dcv
from doublecv.estimators import rodeo
from doublecv.jax import estimate
from problems import make_coefficients, make_logits, make_problem

FAMILIES = [dcv.Bernoulli, dcv.Categorical]
KEY = jax.random.key(2)


def random_evaluation(q, samples, seed=0):
    generator = np.random.default_rng(seed)
    x = q.sample(generator.uniform(size=(samples, *q.noise_shape)))
    return dcv.Evaluation(x, 5 * generator.normal(size=(samples, *q.batch_shape)), generator.normal(size=x.shape))


def written_out(q, evaluation, network):
    """The equation of the docstring, sample by sample, with every neighbour and every coordinate of h s."""
    x, f, df, (samples, variables) = evaluation.x, evaluation.f, evaluation.df, (len(evaluation.x), q.event_shape[0])

    def surrogate(k, output, y):
        total = 0
        for j in set(range(samples)) - {k}:
            n = np.sqrt(q.dot(df[j], q.covariance(df[j])))
            b = q.dot(df[j], y - x[j])
            inner = [network[name][:, None] for name in ("value", "slope", "bias")]
            hidden = np.tanh(inner[0] * f[j] / n + inner[1] * b / n + inner[2])
            total = total + n * (network[output] @ hidden)
        return variables / (samples - 1) * total

    g = 0
    for k in range(samples):
        others = [j for j in range(samples) if j != k]
        baseline = np.mean([f[j] + by_definition(q, x[j], partial(surrogate, j, "others")) for j in others], axis=0)
        control = by_definition(q, x[k], lambda y, k=k: q.weigh(surrogate(k, "current", y), q.score(y)))
        g = g + (q.weigh(f[k] - baseline, q.score(x[k])) + control) / samples
    return g


@pytest.mark.parametrize("samples", [2, 3, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_formula_is_the_equation(family, samples):
    q, estimator = family(logits=make_logits(family)), dcv.Rodeo(samples)
    coefficients, evaluation = make_coefficients(estimator, 0.7), random_evaluation(q, samples)
    wanted = written_out(q, evaluation, coefficients["network"])
    np.testing.assert_allclose(estimator.gradient(q, evaluation, coefficients), wanted, rtol=1e-11, atol=1e-11)
    assert np.abs(wanted - dcv.RLOO(samples).gradient(q, evaluation, {})).max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_it_starts_as_rloo(family):
    q, estimator = family(logits=make_logits(family)), dcv.Rodeo(3)
    evaluation = random_evaluation(q, 3)
    got = estimator.gradient(q, evaluation, estimator.coefficients())
    np.testing.assert_allclose(got, dcv.RLOO(3).gradient(q, evaluation, {}), atol=1e-14)


def test_it_starts_where_learning_can_begin():
    estimator, q = dcv.Rodeo(2), dcv.Bernoulli(logits=jnp.asarray(make_logits(dcv.Bernoulli)))
    f = make_problem("network", dcv.Bernoulli).f
    found = jax.jit(lambda coefficients: estimate(f, q, estimator, coefficients, KEY))(estimator.coefficients())
    gradient = found.coefficient_gradient["network"]
    for name in ("current", "others"):
        assert np.all(gradient[name] != 0), name
        assert len(np.unique(gradient[name])) == estimator.units, "hidden units that learn the same are one"


@pytest.mark.parametrize("shift", [-3.0, 50.0])
def test_a_constant_added_to_f_leaves_the_expectation(shift):
    problem, q, estimator = make_problem("network", dcv.Bernoulli), make_bernoulli(), dcv.Rodeo(2)
    coefficients = make_coefficients(estimator, 0.7)
    plain = exact_moments(estimator, problem.f, q, coefficients, problem.df)
    moved = exact_moments(estimator, lambda x: problem.f(x) + shift, q, coefficients, problem.df)
    np.testing.assert_allclose(moved.mean, plain.mean, atol=1e-11)
    assert np.abs(moved.variance - plain.variance).max() > 1e-3, "the network reads f itself"


@pytest.mark.parametrize("scale", [1e-3, 40.0])
def test_a_positive_factor_of_f_is_one_of_the_estimate(scale):
    q, estimator = make_bernoulli(), dcv.Rodeo(3)
    coefficients, evaluation = make_coefficients(estimator, 0.7), random_evaluation(q, 3)
    scaled = dcv.Evaluation(evaluation.x, scale * evaluation.f, scale * evaluation.df)
    plain = estimator.gradient(q, evaluation, coefficients)
    np.testing.assert_allclose(estimator.gradient(q, scaled, coefficients), scale * plain, rtol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_surrogate_with_the_own_gradient_would_be_biased(family, monkeypatch):
    right = rodeo._surrogates
    monkeypatch.setattr(rodeo, "_surrogates", lambda q, evaluation, network, shift: right(q, evaluation, network, 0))
    problem, q, estimator = make_problem("network", family), family(logits=make_logits(family)), dcv.Rodeo(2)
    mean = exact_moments(estimator, problem.f, q, make_coefficients(estimator, 0.7), problem.df).mean
    assert np.abs(mean - exact_gradient(problem.f, q)).max() > 1e-3


def make_bernoulli():
    return dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_finite_where_f_does_not_vary(dtype, slope):
    """A gradient of 0, and variables that are certain: nothing is divided by 0."""
    estimator, q = dcv.Rodeo(2), dcv.Bernoulli(logits=np.array([np.inf, -np.inf, 200.0, -60.0], dtype))
    x = q.sample(np.full((2, 4), 0.5, dtype))
    evaluation = dcv.Evaluation(x, np.array([300.0, -300.0], dtype), np.full(x.shape, slope, dtype))
    network = {name: np.asarray(value, dtype) for name, value in make_coefficients(estimator, 0.7)["network"].items()}
    gradient = estimator.gradient(q, evaluation, {"network": network})
    assert gradient.dtype == dtype
    assert np.isfinite(gradient).all()


def test_the_coefficients_gradient_is_the_same_in_jax_and_torch(x64):
    q, estimator = make_bernoulli(), dcv.Rodeo(3)
    coefficients, evaluation = make_coefficients(estimator, 0.7), random_evaluation(q, 3)
    arrays = (evaluation.x, evaluation.f, evaluation.df)

    def loss(convert, network):
        converted = dcv.Evaluation(*map(convert, arrays))
        gradient = estimator.gradient(dcv.Bernoulli(convert(q.logits)), converted, {"network": network})
        return (gradient**2).sum()

    in_jax = jax.jit(jax.grad(partial(loss, jnp.asarray)))(coefficients["network"])
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in coefficients["network"].items()}
    loss(torch.as_tensor, leaves).backward()
    for name, leaf in leaves.items():
        assert leaf.grad.abs().max() > 1e-3
        np.testing.assert_allclose(leaf.grad, in_jax[name], rtol=1e-10, atol=1e-12)


def learn(estimator, f, q, steps, rate):
    optimiser = optax.adam(rate)
    start = jax.tree.map(jnp.asarray, estimator.coefficients())

    def step(state, key):
        coefficients, moments = state
        gradient = estimate(f, q, estimator, coefficients, key).coefficient_gradient
        updates, moments = optimiser.update(gradient, moments)
        return (optax.apply_updates(coefficients, updates), moments), None

    (learned, _), _ = jax.jit(partial(jax.lax.scan, step))((start, optimiser.init(start)), jax.random.split(KEY, steps))
    return learned


def test_learned_it_has_less_variance_than_rloo():
    generator = np.random.default_rng(6)
    weights = jnp.asarray(generator.normal(size=(10, 5)), jnp.float32)
    many = dcv.Bernoulli(logits=jnp.zeros((32, 10)))
    one = dcv.Bernoulli(logits=many.logits[0])

    def f(x):
        return jnp.sum((x @ weights - 1) ** 2, -1)

    estimator = dcv.Rodeo(3)
    learned = learn(estimator, f, many, steps=400, rate=0.02)
    with_it = variance(f, one, estimator, learned, KEY, 10_000)
    without = variance(f, one, dcv.RLOO(3), {}, KEY, 10_000)
    assert with_it.variance < 0.6 * without.variance


def temporary_bytes(variables):
    """The memory that the compiled estimate with its coefficients' gradient takes besides its arguments."""
    logits, weights = jax.ShapeDtypeStruct((20, variables), jnp.float32), jnp.ones(variables)

    def gradients(logits, coefficients, key):
        found = estimate(lambda x: jnp.tanh(x @ weights), dcv.Bernoulli(logits), dcv.Rodeo(3), coefficients, key)
        return found.gradient, found.coefficient_gradient

    compiled = jax.jit(gradients).lower(logits, dcv.Rodeo(3).coefficients(), KEY).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_is_linear_in_the_variables():
    small, middle, large = map(temporary_bytes, (200, 400, 800))
    assert small < middle < large
    assert large - middle < 2.5 * (middle - small), "twice the step where it is linear, four times where quadratic"
    assert large < 4.5 * small


@pytest.mark.parametrize("units", [0, -1, 2.0, True, None])
def test_units(units):
    with pytest.raises(ValueError, match="units must be an integer of at least 1, got"):
        dcv.Rodeo(2, units=units)
    assert dcv.Rodeo(2, units=3).coefficients()["network"]["bias"].shape == (3,)
