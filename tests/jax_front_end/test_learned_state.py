"""Coefficients that are learned from more than the estimate's square: running moments, and a surrogate's parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from doublecv.diagnostics import exact_moments, optimal_coefficients

import doublecv as dcv
from doublecv.jax import estimate, expect
from problems import make_coefficients, make_problem

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(2)
PROBLEM = make_problem("network", dcv.Bernoulli)
LOGITS = np.random.default_rng(1).normal(size=(5, 3))


def as_arrays(coefficients):
    return jax.tree.map(jnp.asarray, coefficients)


def loss(logits, coefficients, estimator, key):
    return expect(PROBLEM.f, dcv.Bernoulli(logits), estimator, coefficients, key).mean()


@pytest.mark.parametrize("estimator", [dcv.DoubleCV(2, learning="moments"), dcv.QuadraticDoubleCV(3)], ids=str)
def test_descent_with_rate_one_hundredth_is_the_exponential_average(estimator):
    coefficients = as_arrays(make_coefficients(estimator, 0.5))
    gradient = jax.grad(loss, argnums=1)(LOGITS, coefficients, estimator, KEY)["moments"]
    evaluation = estimate(PROBLEM.f, dcv.Bernoulli(jnp.asarray(LOGITS)), estimator, coefficients, KEY).evaluation
    g0, h = estimator.parts(dcv.Bernoulli(jnp.asarray(LOGITS)), evaluation).vectors()
    parts = jnp.stack([g0, *h.values()]).reshape(1 + len(h), -1)
    new = parts @ parts.T / g0.size
    descent = optax.sgd(0.01)
    updates, _ = descent.update(gradient, descent.init(gradient))
    moved = optax.apply_updates(coefficients["moments"], updates)
    np.testing.assert_allclose(moved, 0.99 * coefficients["moments"] + 0.01 * new, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("estimator", [dcv.DoubleCV(2, learning="moments"), dcv.QuadraticDoubleCV(2)], ids=str)
def test_learned_in_a_scan_they_come_close_to_the_least_variance(estimator):
    q = dcv.Bernoulli(jnp.asarray(LOGITS))

    @jax.jit
    def learn(coefficients, key):
        def step(coefficients, key):
            gradient = jax.grad(loss, argnums=1)(LOGITS, coefficients, estimator, key)
            return jax.tree.map(lambda c, g: c - 0.01 * g, coefficients, gradient), None

        return jax.lax.scan(step, coefficients, jax.random.split(key, 600))[0]

    learned = learn(as_arrays(estimator.coefficients()), KEY)
    explicit = dataclasses.replace(estimator, learning="gradient")

    def total(numbers):
        return float(exact_moments(explicit, PROBLEM.f, q, numbers).variance.sum())

    best = total(optimal_coefficients(estimator, PROBLEM.f, q))
    start = total(explicit.coefficients())
    assert best < 0.7 * start
    assert total(estimator.numbers(learned)) - best < 0.15 * (start - best)


def test_under_vmap_every_model_has_moments_of_its_own():
    estimator = dcv.QuadraticDoubleCV(2)
    single = as_arrays(make_coefficients(estimator, 0.5))
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), single)
    keys = jax.random.split(KEY, 2)
    gradients = jax.vmap(lambda c, key: jax.grad(loss, argnums=(0, 1))(LOGITS, c, estimator, key))(several, keys)
    for place, key in enumerate(keys):
        own = jax.tree.map(lambda leaf, place=place: leaf[place], several)
        wanted = jax.grad(loss, argnums=(0, 1))(LOGITS, own, estimator, key)
        got = jax.tree.map(lambda leaf, place=place: leaf[place], gradients)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), got, wanted)


def test_a_pullback_is_refused():
    with pytest.raises(
        ValueError, match="pullback was given, but QuadraticDoubleCV learns its coefficients from moments"
    ):
        expect(PROBLEM.f, dcv.Bernoulli(LOGITS), dcv.QuadraticDoubleCV(2), {}, KEY, pullback=lambda g: g)


class TestSurrogate:
    @staticmethod
    def make(context):
        return dcv.Surrogate(dcv.DoubleCV(2), variables=3, features=4, directions=2, context=context)

    def test_learning_it_reduces_the_variance(self):
        context = jnp.asarray(np.random.default_rng(3).normal(size=(5, 4)))
        estimator, q = self.make(context), dcv.Bernoulli(jnp.asarray(LOGITS))
        optimiser = optax.adam(0.02)

        @jax.jit
        def learn(coefficients, key):
            def step(carry, key):
                coefficients, state = carry
                gradient = jax.grad(loss, argnums=1)(LOGITS, coefficients, estimator, key)
                updates, state = optimiser.update(gradient, state)
                return (optax.apply_updates(coefficients, updates), state), None

            return jax.lax.scan(step, (coefficients, optimiser.init(coefficients)), jax.random.split(key, 800))[0][0]

        start = as_arrays(estimator.coefficients())
        learned = learn(start, KEY)

        def total(coefficients):
            return float(exact_moments(estimator, PROBLEM.f, q, coefficients).variance.sum())

        assert total(learned) < 0.3 * total(start)

    def test_neither_the_model_nor_the_context_gets_a_gradient_from_it(self):
        weights = jnp.asarray(np.random.default_rng(4).normal(size=3))
        context = jnp.asarray(np.random.default_rng(3).normal(size=(5, 4)))
        coefficients = as_arrays(make_coefficients(self.make(context), 0.5))

        def value(weights, context, logits, estimator, coefficients):
            f = lambda x: jnp.tanh(x @ weights)  # noqa: E731
            return expect(f, dcv.Bernoulli(logits), estimator, coefficients, KEY).mean()

        def with_surrogate(weights, context):
            return value(weights, context, LOGITS, self.make(context), coefficients)

        of_weights, of_context = jax.grad(with_surrogate, argnums=(0, 1))(weights, context)
        wanted = jax.grad(value)(weights, context, LOGITS, dcv.RLOO(2), {})
        np.testing.assert_allclose(of_weights, wanted, rtol=1e-12)
        np.testing.assert_array_equal(of_context, 0)

    def test_the_bases_alpha_gets_the_gradient_of_the_square_and_the_parameters_that_of_the_fit(self):
        context = jnp.asarray(np.random.default_rng(3).normal(size=(5, 4)))
        estimator, q = self.make(context), dcv.Bernoulli(jnp.asarray(LOGITS))
        coefficients = as_arrays(make_coefficients(estimator, 0.5))
        result = estimate(PROBLEM.f, q, estimator, coefficients, KEY)

        def square(alpha):
            return jnp.mean(estimator.gradient(q, result.evaluation, coefficients | {"alpha": alpha}) ** 2)

        def fit(parameters):
            weight = jnp.full(5, 1 / 5)
            changed = coefficients | {"surrogate": parameters}
            return estimator.gradient_and_loss(q, result.evaluation, changed, weight)[1]

        wanted = {"alpha": jax.grad(square)(0.5), "surrogate": jax.grad(fit)(coefficients["surrogate"])}
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), result.coefficient_gradient, wanted
        )
