"""RODEO against its equation with all sums written out, and what is special about it: start, learning, memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from test_stein import by_definition

import doublecv as dcv
from doublecv.estimators import Evaluation, stein
from doublecv.exact import exact_gradient, exact_moments
from doublecv.jax import Expectation
from problems import make_learned, make_logits, make_problem

FAMILIES = [dcv.Bernoulli, dcv.Categorical]
KEY = jax.random.key(2)


def random_evaluation(q, samples, seed=0):
    generator = np.random.default_rng(seed)
    x = q.sample(generator.uniform(size=(samples, *q.noise_shape)))
    return Evaluation(x, 5 * generator.normal(size=(samples, *q.batch_shape)), generator.normal(size=x.shape))


def written_out(q, evaluation, network):
    """The equation of the docstring, sample by sample, with every neighbor and every coordinate of h s."""
    x, f, df, (samples, variables) = evaluation.x, evaluation.f, evaluation.df, (len(evaluation.x), q.event_shape[0])

    def surrogate(k, output, y):
        total = 0
        for j in set(range(samples)) - {k}:
            n = np.sqrt(q.dot(df[j], q.covariance_product(df[j])))
            b = q.dot(df[j], y - x[j])
            inner = [network[name][:, None] for name in ("value", "slope", "bias")]
            hidden = np.tanh(inner[0] * f[j] / n + inner[1] * b / n + inner[2])
            total = total + n * (network[output] @ hidden)
        return variables / (samples - 1) * total

    g = 0
    for k in range(samples):
        others = [j for j in range(samples) if j != k]
        baseline = np.mean([f[j] + by_definition(q, x[j], partial(surrogate, j, "others")) for j in others], axis=0)
        control = by_definition(q, x[k], lambda y, k=k: q.scale(surrogate(k, "current", y), q.score(y)))
        g = g + (q.scale(f[k] - baseline, q.score(x[k])) + control) / samples
    return g


@pytest.mark.parametrize("samples", [2, 3, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_formula_is_the_equation(family, samples):
    q, estimator = family(logits=make_logits(family)), dcv.Rodeo(samples)
    learned, evaluation = make_learned(estimator, q), random_evaluation(q, samples)
    wanted = written_out(q, evaluation, learned.numbers)
    np.testing.assert_allclose(estimator.apply(q, evaluation, learned).gradient, wanted, rtol=1e-11, atol=1e-11)
    assert np.abs(wanted - dcv.RLOO(samples).apply(q, evaluation).gradient).max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_it_starts_as_rloo(family):
    q, estimator = family(logits=make_logits(family)), dcv.Rodeo(3)
    evaluation = random_evaluation(q, 3)
    got = estimator.apply(q, evaluation, estimator.init()).gradient
    np.testing.assert_allclose(got, dcv.RLOO(3).apply(q, evaluation).gradient, atol=1e-14)


def test_it_starts_where_learning_can_begin():
    estimator, q = dcv.Rodeo(2), dcv.Bernoulli(logits=jnp.asarray(make_logits(dcv.Bernoulli)))
    f = make_problem("network", dcv.Bernoulli).f
    expectation = Expectation(estimator)
    found = jax.jit(lambda learned: expectation.estimate(f, q, learned, KEY))(expectation.init(q).learned)
    gradient = found.learned_gradient.numbers
    for name in ("current", "others"):
        assert np.all(gradient[name] != 0), name
        assert len(np.unique(gradient[name])) == estimator.units, "hidden units that learn the same are one"


@pytest.mark.parametrize("shift", [-3.0, 50.0])
def test_a_constant_added_to_f_leaves_the_expectation(shift):
    problem, q, estimator = make_problem("network", dcv.Bernoulli), make_bernoulli(), dcv.Rodeo(2)
    learned = make_learned(estimator, q)
    plain = exact_moments(problem.f, q, estimator, learned, df=problem.df)
    moved = exact_moments(lambda x: problem.f(x) + shift, q, estimator, learned, df=problem.df)
    np.testing.assert_allclose(moved.mean, plain.mean, atol=1e-11)
    assert np.abs(moved.variance - plain.variance).max() > 1e-3, "the network reads f itself"


@pytest.mark.parametrize("scale", [1e-3, 40.0])
def test_a_positive_factor_of_f_is_one_of_the_estimate(scale):
    q, estimator = make_bernoulli(), dcv.Rodeo(3)
    learned, evaluation = make_learned(estimator, q), random_evaluation(q, 3)
    scaled = Evaluation(evaluation.x, scale * evaluation.f, scale * evaluation.df)
    plain = estimator.apply(q, evaluation, learned).gradient
    np.testing.assert_allclose(estimator.apply(q, scaled, learned).gradient, scale * plain, rtol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_surrogate_with_the_own_gradient_would_be_biased(family, monkeypatch):
    right = stein._networks
    monkeypatch.setattr(stein, "_networks", lambda q, evaluation, network, shift: right(q, evaluation, network, 0))
    problem, q, estimator = make_problem("network", family), family(logits=make_logits(family)), dcv.Rodeo(2)
    mean = exact_moments(problem.f, q, estimator, make_learned(estimator, q), df=problem.df).mean
    assert np.abs(mean - exact_gradient(problem.f, q)).max() > 1e-3


def make_bernoulli():
    return dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_finite_where_f_does_not_vary(dtype, slope):
    """A gradient of 0, and variables that are certain: nothing is divided by 0."""
    estimator, q = dcv.Rodeo(2), dcv.Bernoulli(logits=np.array([np.inf, -np.inf, 200.0, -60.0], dtype))
    x = q.sample(np.full((2, 4), 0.5, dtype))
    evaluation = Evaluation(x, np.array([300.0, -300.0], dtype), np.full(x.shape, slope, dtype))
    numbers = {name: np.asarray(value, dtype) for name, value in make_learned(estimator, q).numbers.items()}
    gradient = estimator.apply(q, evaluation, dcv.Learned(numbers, {}, {})).gradient
    assert gradient.dtype == dtype
    assert np.isfinite(gradient).all()


def test_finite_where_rounding_makes_a_variance_negative():
    generator = np.random.default_rng(0)
    q = dcv.Categorical(logits=(30 * generator.normal(size=(500, 1, 2))).astype(np.float32))
    evaluation = random_evaluation(q, 2)
    evaluation = Evaluation(*(array.astype(np.float32) for array in (evaluation.x, evaluation.f, evaluation.df)))
    variance = q.dot(evaluation.df, q.covariance_product(evaluation.df))
    assert variance.min() < -1e-30
    numbers = {name: value.astype(np.float32) for name, value in dcv.Rodeo(2).init().numbers.items()}
    assert np.isfinite(dcv.Rodeo(2).apply(q, evaluation, dcv.Learned(numbers, {}, {})).gradient).all()


def test_the_coefficients_gradient_is_the_same_in_jax_and_torch(x64):
    q, estimator = make_bernoulli(), dcv.Rodeo(3)
    learned, evaluation = make_learned(estimator, q), random_evaluation(q, 3)
    arrays = (evaluation.x, evaluation.f, evaluation.df)

    def loss(convert, numbers):
        converted = Evaluation(*map(convert, arrays))
        state = learned._replace(numbers=numbers)
        return (estimator.apply(dcv.Bernoulli(convert(q.logits)), converted, state).gradient ** 2).sum()

    in_jax = jax.jit(jax.grad(partial(loss, jnp.asarray)))(learned.numbers)
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in learned.numbers.items()}
    loss(torch.as_tensor, leaves).backward()
    for name, leaf in leaves.items():
        assert leaf.grad.abs().max() > 1e-3
        np.testing.assert_allclose(leaf.grad, in_jax[name], rtol=1e-10, atol=1e-12)


def test_learned_it_has_less_variance_than_rloo():
    weights = jnp.asarray(np.random.default_rng(6).normal(size=(10, 5)), jnp.float32)
    many, one = (dcv.Bernoulli(logits=jnp.zeros((count, 10))) for count in (32, 10_000))

    def f(x):
        return jnp.sum((x @ weights - 1) ** 2, -1)

    expectation = Expectation(dcv.Rodeo(3), optax.adam(0.02))

    @jax.jit
    def learn(state, key):
        def step(state, key):
            gradient = expectation.estimate(f, many, state.learned, key).learned_gradient
            return expectation.update(gradient, state), None

        return jax.lax.scan(step, state, jax.random.split(key, 400))[0]

    def variance(expectation, learned):
        gradients = jax.jit(lambda learned: expectation.estimate(f, one, learned, KEY).gradient)(learned)
        return float(jnp.var(gradients, axis=0).mean())

    rloo = Expectation(dcv.RLOO(3))
    with_it = variance(expectation, learn(expectation.init(many), KEY).learned)
    assert with_it < 0.6 * variance(rloo, rloo.init(one).learned)


def temporary_bytes(variables):
    """The memory that the compiled estimate with its coefficients' gradient takes besides its arguments."""
    logits, weights = jax.ShapeDtypeStruct((20, variables), jnp.float32), jnp.ones(variables)

    def gradients(logits, learned, key):
        found = Expectation(dcv.Rodeo(3)).estimate(lambda x: jnp.tanh(x @ weights), dcv.Bernoulli(logits), learned, key)
        return found.gradient, found.learned_gradient

    compiled = jax.jit(gradients).lower(logits, dcv.Rodeo(3).init(), KEY).compile()
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
    assert dcv.Rodeo(2, units=3).init().numbers["bias"].shape == (3,)
