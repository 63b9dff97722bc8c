"""RELAX's network, learning on the toy problem, the transformations of JAX, comparisons, and what is refused."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from doublecv.diagnostics import compare, exact_moments, optimal_coefficients
from doublecv.lab.vae.relax_network import RelaxNetwork, relax_with_input

import doublecv as dcv
from doublecv import estimators
from doublecv.jax import estimate, expect
from noise_quadrature import estimate_at, given_noise
from problems import network, toy
from relaxed import KINDS, make_relaxed

KEY = jax.random.key(0)


def bernoulli(*shape):
    return dcv.Bernoulli(logits=jnp.asarray(np.random.default_rng(0).normal(size=shape)))


def no_network(parameters, z):
    return jnp.zeros(z.shape[:-1])


# The network


def test_a_network_that_is_zero_is_rebar(x64):
    q, f = bernoulli(2, 3), network(3, 1).f
    rebar, relax = dcv.Rebar(2), dcv.Relax(2, network={}, apply=no_network)
    noise = np.random.default_rng(1).uniform(size=rebar.noise_shape(q))

    @jax.jit
    def gradients(noise):
        return [estimate_at(e, f, q, e.coefficients(), noise).gradient for e in (rebar, relax)]

    one, other = gradients(noise)
    assert np.array_equal(one, other)


def test_an_equinox_module_is_a_network():
    q, f = bernoulli(2, 3), network(3, 1).f
    module = eqx.nn.MLP(3, "scalar", 5, depth=1, key=KEY)
    parameters, static = eqx.partition(module, eqx.is_inexact_array)

    def apply(parameters, z):
        return jax.vmap(jax.vmap(eqx.combine(parameters, static)))(z)

    estimator = dcv.Relax(network=parameters, apply=apply)

    @jax.jit
    @jax.grad
    def loss(coefficients):
        return expect(f, q, estimator, coefficients, KEY).mean()

    gradient = loss(estimator.coefficients())["network"]
    assert isinstance(gradient, eqx.nn.MLP)
    assert jax.tree.structure(gradient) == jax.tree.structure(parameters)
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient))
    eqx.apply_updates(parameters, gradient)


@pytest.mark.parametrize("q", [bernoulli(4, 3), dcv.Categorical(logits=jnp.zeros((4, 2, 3)))])
def test_the_network_of_the_laboratory_reads_the_input_and_z(q):
    y = jnp.asarray(np.random.default_rng(2).normal(size=(4, 5)), jnp.float32)
    latents = int(np.prod(q.event_shape))
    r = RelaxNetwork(5, latents, KEY)
    z = jnp.asarray(np.random.default_rng(3).normal(size=(2, *q.logits.shape)), jnp.float32)
    joined = np.concatenate([np.broadcast_to(y, (2, 4, 5)), z.reshape(2, 4, latents)], axis=-1)
    hidden = joined @ np.concatenate([r.from_input, r.from_latent]) + np.asarray(r.hidden_bias)
    wanted = np.where(hidden > 0, hidden, 0.3 * hidden) @ np.asarray(r.to_output) + np.asarray(r.output_bias)
    assert hidden.shape[-1] == 137
    assert np.allclose(r(y, z), wanted, atol=1e-5)
    limit = math.sqrt(6 / (5 + latents + 137))
    assert 0.9 * limit < float(jnp.abs(jnp.concatenate([r.from_input, r.from_latent])).max()) <= limit
    assert all(eqx.is_inexact_array(leaf) for leaf in jax.tree.leaves(r))


# Transformations


def training_step(family):
    """The gradients of a model whose network reads y, with the norm pulled back; its state; and data for four steps."""
    event = (3,) if family is dcv.Bernoulli else (2, 3)
    base = jnp.asarray(np.random.default_rng(4).normal(size=(2, *event)), jnp.float32)
    generator = np.random.default_rng(5)
    y = generator.normal(size=(4, 2, 3)).astype(np.float32)
    estimator = relax_with_input(RelaxNetwork(3, int(np.prod(event)), KEY), y[0], samples=2)
    noise = generator.random(size=(4, *estimator.noise_shape(family(logits=base))), dtype=np.float32)

    def loss(encoder, w, coefficients, noise, y):
        # Integers and masks that are traced, as a model has them, are closed over by f, encoder and network alike.
        order = jnp.argsort(y[0])

        def encode(encoder):
            return base * jnp.tanh(encoder) * jnp.where(y.mean() > 0, 1.0, 2.0)

        def f(x):
            shuffled = jnp.where(y[0] > 0, x, 0.5 * x)[..., order]
            return jnp.sum(jnp.tanh(w * shuffled), axis=tuple(range(-family.event_axes, 0)))

        logits, pullback = jax.vjp(encode, encoder)
        reading_y = relax_with_input(coefficients["network"], y, samples=2)
        with given_noise(noise):
            return expect(f, family(logits=logits), reading_y, coefficients, KEY, pullback=pullback).mean()

    state = (jnp.linspace(0.5, 1.5, 3), jnp.asarray(1.2), jax.tree.map(jnp.asarray, estimator.coefficients()))
    return jax.grad(loss, argnums=(0, 1, 2)), state, (noise, y)


@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
def test_jit_vmap_and_scan_agree(family):
    gradients, state, data = training_step(family)
    one_by_one = jax.jit(gradients)
    wanted = [one_by_one(*state, *(part[i] for part in data)) for i in range(4)]
    wanted = jax.tree.map(lambda *leaves: jnp.stack(leaves), *wanted)
    vmapped = jax.jit(jax.vmap(gradients, in_axes=(None, None, None, 0, 0)))(*state, *data)
    _, scanned = jax.jit(lambda state, data: jax.lax.scan(lambda s, d: (s, gradients(*s, *d)), state, data))(
        state, data
    )
    for given in (vmapped, scanned):
        for one, other in zip(jax.tree.leaves(given), jax.tree.leaves(wanted), strict=True):
            assert np.allclose(one, other, rtol=1e-4, atol=1e-6)
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(wanted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_gradient_has_the_type_of_the_logits_and_of_the_coefficients(kind, dtype):
    q = bernoulli(2, 3)
    estimator, coefficients = make_relaxed(kind, q.event_shape)
    coefficients = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), coefficients)

    @jax.jit
    def gradients(logits, coefficients):
        def loss(logits, coefficients):
            points = []

            def f(x):
                points.append(x.dtype)
                return jnp.sum(x**2, axis=-1)

            value = expect(f, dcv.Bernoulli(logits=logits), estimator, coefficients, KEY).mean()
            assert set(points) == {logits.dtype}
            return value

        return jax.grad(loss, argnums=(0, 1))(logits, coefficients)

    logits_gradient, coefficient_gradient = gradients(q.logits.astype(dtype), coefficients)
    assert logits_gradient.dtype == dtype
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(coefficient_gradient))


# Learning


def learn(estimator, coefficients, f, q, steps, draws=32, rate=0.02):
    """Adam on the coefficients' gradient, at fixed logits."""
    optimiser = optax.adam(rate)
    repeated = q.broadcast_to((draws,))

    @jax.jit
    def run(coefficients, key):
        def step(state, key):
            coefficients, moments = state
            gradient = estimate(f, repeated, estimator, coefficients, key).coefficient_gradient
            updates, moments = optimiser.update(gradient, moments)
            return (optax.apply_updates(coefficients, updates), moments), None

        state = (coefficients, optimiser.init(coefficients))
        return jax.lax.scan(step, state, jax.random.split(key, steps))[0][0]

    return run(jax.tree.map(jnp.asarray, coefficients), jax.random.key(1))


def mean_variance(estimator, coefficients, f, q, draws=20_000):
    repeated = q.broadcast_to((draws,))
    noise = np.random.default_rng(6).random(estimator.noise_shape(repeated), dtype=np.float32)
    gradient = jax.jit(lambda c: estimate_at(estimator, f, repeated, c, noise).gradient)(coefficients)
    return float(jnp.mean(jnp.var(gradient, axis=0)))


@pytest.mark.parametrize(("variables", "factor"), [(1, 5.0), (10, 1.7)])
def test_rebar_learns_on_the_toy_problem(variables, factor):
    """Learned temperature and scale divide the variance by at least `factor`."""
    q, f, estimator = dcv.Bernoulli(logits=jnp.zeros(variables)), toy(variables).f, dcv.Rebar()
    start = estimator.coefficients()
    learned = learn(estimator, start, f, q, steps=400)
    assert mean_variance(estimator, learned, f, q) < mean_variance(estimator, start, f, q) / factor


def test_relax_learns_on_the_toy_problem():
    """The network, which starts at zero, divides the variance by at least 20, and that of learned REBAR by 10."""
    q, f = dcv.Bernoulli(logits=jnp.zeros(10)), toy(10).f
    r = RelaxNetwork(0, 10, KEY)
    r = eqx.tree_at(lambda r: r.to_output, r, jnp.zeros_like(r.to_output))
    relax, rebar = dcv.Relax(network=r, apply=lambda r, z: r(jnp.zeros((*z.shape[1:-1], 0)), z)), dcv.Rebar()
    start = mean_variance(relax, relax.coefficients(), f, q)
    assert start == pytest.approx(mean_variance(rebar, rebar.coefficients(), f, q))
    learned = mean_variance(relax, learn(relax, relax.coefficients(), f, q, steps=400), f, q)
    learned_rebar = mean_variance(rebar, learn(rebar, rebar.coefficients(), f, q, steps=400), f, q)
    assert learned < start / 20
    assert learned < learned_rebar / 10


# Diagnostics


def test_compare_takes_them_with_coefficients_of_their_own():
    q, f = dcv.Bernoulli(logits=jnp.array([0.3, -0.5])), network(2, 1).f
    relax, coefficients = make_relaxed("relax", q.event_shape)
    without = coefficients | {"network": jax.tree.map(np.zeros_like, coefficients["network"])}
    table = compare([dcv.RLOO(3), dcv.Rebar(), relax], f, q, KEY, draws=200, coefficients={"relax": without})
    assert [row.evaluations for row in table.rows] == [3, 3, 3]
    assert table["rebar"].coefficients == dcv.Rebar().coefficients()
    assert table["relax"].coefficients is without
    # With a network that is zero, RELAX is REBAR on the same random numbers.
    assert table["relax"].variance == pytest.approx(table["rebar"].variance, rel=1e-5)
    assert str(table).count("\n") == 3


def test_enumeration_refuses_them_and_names_what_draws():
    q = dcv.Bernoulli(logits=np.zeros(2))
    with pytest.raises(ValueError, match=r"Rebar.*variance\(\)"):
        exact_moments(dcv.Rebar(), network(2, 1).f, q, dcv.Rebar().coefficients())
    with pytest.raises(ValueError, match="linear"):
        optimal_coefficients(dcv.Rebar(), network(2, 1).f, q)


# What is refused


def test_relax_can_be_made_without_a_network_but_not_used():
    estimator = estimators.make("relax", samples=1)
    with pytest.raises(ValueError, match=r"network of Relax is None.*Relax\(samples, network=parameters, apply="):
        estimator.coefficients()
    with pytest.raises(ValueError, match="network of Relax is None"):
        estimate(network(3, 1).f, bernoulli(3), estimator, {}, KEY)
    with pytest.raises(ValueError, match="apply of Relax is None"):
        dataclasses.replace(estimator, network={}).coefficients()
    assert dataclasses.replace(estimator, network={}, apply=no_network).coefficients()["network"] == {}


def test_apply_must_be_a_function():
    with pytest.raises(TypeError, match="apply must be a function of the parameters and z, got dict"):
        dcv.Relax(network={}, apply={})


@pytest.mark.parametrize("kind", KINDS)
def test_f_of_a_wrong_shape_is_named(kind):
    q = bernoulli(2, 3)
    estimator, coefficients = make_relaxed(kind, q.event_shape)
    with pytest.raises(ValueError, match=r"f.* must return shape \(2, 2\)"):
        expect(lambda x: x if len(x) == 2 else x.sum(-1), q, estimator, coefficients, KEY)


def test_a_network_of_a_wrong_shape_is_named():
    q = bernoulli(2, 3)
    estimator = dcv.Relax(network={}, apply=lambda parameters, z: z)
    with pytest.raises(ValueError, match=r"apply must return shape \(2, 2\) .* got shape \(2, 2, 3\)"):
        expect(network(3, 1).f, q, estimator, estimator.coefficients(), KEY)


def test_estimators_are_compared_by_their_function_and_not_by_their_parameters():
    one, other = (dcv.Relax(network=jnp.ones(2), apply=no_network) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != dataclasses.replace(one, apply=lambda parameters, z: no_network(parameters, z))
    assert repr(one) == "Relax(samples=1)"
