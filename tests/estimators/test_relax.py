"""RELAX's network, learning on the toy problem, the transformations of JAX, and what is refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import doublecv as dcv
from doublecv.exact import exact_moments
from doublecv.jax import Expectation
from noise_quadrature import estimate_at, value_at
from problems import network, toy
from relaxed import KINDS, make_relaxed

KEY = jax.random.key(0)


def bernoulli(*shape):
    return dcv.Bernoulli(logits=jnp.asarray(np.random.default_rng(0).normal(size=shape)))


def test_a_network_that_is_zero_is_rebar(x64):
    q, f = bernoulli(2, 3), network(3, 1).f
    rebar, relax = dcv.Rebar(2), dcv.Relax(2)
    learned = relax.init(q)
    silent = learned._replace(numbers=learned.numbers | {"to_output": np.zeros(137)})
    noise = np.random.default_rng(1).uniform(size=rebar.noise_shape(q))

    @jax.jit
    def gradients(noise):
        return [estimate_at(e, f, q, state, noise).gradient for e, state in ((rebar, rebar.init()), (relax, silent))]

    one, other = gradients(noise)
    np.testing.assert_allclose(one, other, rtol=1e-14)


@pytest.mark.parametrize("q", [bernoulli(4, 3), dcv.Categorical(logits=jnp.zeros((4, 2, 3)))])
def test_the_network_reads_the_context_and_z(q):
    estimator, context = dcv.Relax(1), np.random.default_rng(2).normal(size=(4, 5))
    numbers = estimator.init(q, context).numbers
    size = int(np.prod(q.event_shape))
    z = np.random.default_rng(3).normal(size=(2, *q.logits.shape))
    joined = np.concatenate([np.broadcast_to(context, (2, 4, 5)), z.reshape(2, 4, size)], axis=-1)
    weights = np.concatenate([numbers["from_context"], numbers["from_point"]])
    hidden = joined @ weights + numbers["hidden_bias"]
    assert hidden.shape[-1] == 137
    wanted = np.where(hidden > 0, hidden, 0.3 * hidden) @ numbers["to_output"] + numbers["output_bias"]
    points = type(q)(logits=np.zeros(z.shape))
    np.testing.assert_allclose(estimator._network(points, z, numbers, context), wanted, rtol=1e-12)
    limit = math.sqrt(6 / (5 + size + 137))
    assert 0.9 * limit < np.abs(weights).max() <= limit


def test_the_seed_gives_other_weights():
    q = bernoulli(2, 3)
    one, same, other = (dcv.Relax(1, seed=seed).init(q).numbers["from_point"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.all(one != other)


@pytest.mark.parametrize("family", [dcv.Bernoulli, pytest.param(dcv.Categorical, marks=pytest.mark.slow)])
def test_jit_vmap_and_scan_agree(family):
    """A model whose control variate reads y, with the norm pulled back, for four sets of data."""
    event = (3,) if family is dcv.Bernoulli else (2, 3)
    generator = np.random.default_rng(5)
    base = jnp.asarray(generator.normal(size=(2, *event)), jnp.float32)
    y = generator.normal(size=(4, 2, 3)).astype(np.float32)
    estimator = dcv.Relax(2, units=6)
    learned = jax.tree.map(jnp.float32, estimator.init(family(logits=base), y[0]))
    noise = generator.random(size=(4, *estimator.noise_shape(family(logits=base))), dtype=np.float32)

    def loss(encoder, w, learned, noise, y):
        # Integers and masks that are traced, as a model has them, are closed over by f and by the encoder.
        order = jnp.argsort(y[0])

        def encode(encoder):
            return base * jnp.tanh(encoder) * jnp.where(y.mean() > 0, 1.0, 2.0)

        def f(x):
            shuffled = jnp.where(y[0] > 0, x, 0.5 * x)[..., order]
            return jnp.sum(jnp.tanh(w * shuffled), axis=tuple(range(-family.event_axes, 0)))

        logits, pullback = jax.vjp(encode, encoder)
        return value_at(estimator, f, family(logits=logits), learned, noise, pullback=pullback, context=y).mean()

    gradients, state = jax.grad(loss, argnums=(0, 1, 2)), (jnp.linspace(0.5, 1.5, 3), jnp.asarray(1.2), learned)
    one_by_one = jax.jit(gradients)
    each = [one_by_one(*state, noise[i], y[i]) for i in range(4)]
    wanted = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    vmapped = jax.jit(jax.vmap(gradients, in_axes=(None, None, None, 0, 0)))(*state, noise, y)
    _, scanned = jax.jit(lambda state, data: jax.lax.scan(lambda s, d: (s, gradients(*s, *d)), state, data))(
        state, (noise, y)
    )
    for given in (vmapped, scanned):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), given, wanted)
    assert np.any(np.asarray(wanted[2].numbers["from_context"]) != 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.slow), jnp.float32])
def test_the_gradient_has_the_type_of_the_logits_and_of_the_numbers(kind, dtype):
    q = bernoulli(2, 3)
    estimator, learned = make_relaxed(kind, q)
    learned, points = jax.tree.map(jnp.float32, learned), []

    def loss(logits, learned):
        def f(x):
            points.append(x.dtype)
            return jnp.sum(x**2, axis=-1)

        return Expectation(estimator)(f, dcv.Bernoulli(logits=logits), learned, KEY).mean()

    of_logits, of_learned = jax.jit(jax.grad(loss, argnums=(0, 1)))(q.logits.astype(dtype), learned)
    assert set(points) == {jnp.dtype(dtype)}
    assert of_logits.dtype == dtype
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(of_learned))


def learn(estimator, f, q, steps, draws=32, rate=0.02):
    """Return the learned state after steps at fixed logits."""
    expectation = Expectation(estimator, optax.adam(rate))
    repeated = q.broadcast_to((draws,))

    @jax.jit
    def run(state, key):
        def step(state, key):
            return expectation.update(
                expectation.estimate(f, repeated, state.learned, key).learned_gradient, state
            ), None

        return jax.lax.scan(step, state, jax.random.split(key, steps))[0]

    return run(expectation.init(q), jax.random.key(1)).learned


def mean_variance(estimator, learned, f, q, draws=20_000):
    repeated = q.broadcast_to((draws,))
    noise = np.random.default_rng(6).random(estimator.noise_shape(repeated), dtype=np.float32)
    gradient = jax.jit(lambda state: estimate_at(estimator, f, repeated, state, noise).gradient)(learned)
    return float(jnp.mean(jnp.var(gradient, axis=0)))


@pytest.mark.parametrize(("variables", "factor"), [(1, 5.0), pytest.param(10, 1.7, marks=pytest.mark.slow)])
def test_rebar_learns_on_the_toy_problem(variables, factor):
    """Learned temperature and scale divide the variance by at least `factor`."""
    q, f, estimator = dcv.Bernoulli(logits=jnp.zeros(variables)), toy(variables).f, dcv.Rebar()
    learned = learn(estimator, f, q, steps=400)
    assert mean_variance(estimator, learned, f, q) < mean_variance(estimator, estimator.init(), f, q) / factor


@pytest.mark.slow
def test_relax_learns_on_the_toy_problem():
    """The network divides the variance of learned REBAR by at least 5."""
    q, f = dcv.Bernoulli(logits=jnp.zeros(10)), toy(10).f
    relax, rebar = dcv.Relax(), dcv.Rebar()
    learned = mean_variance(relax, learn(relax, f, q, steps=600), f, q)
    assert learned < mean_variance(rebar, learn(rebar, f, q, steps=400), f, q) / 5


def test_enumeration_refuses_them():
    q = dcv.Bernoulli(logits=np.zeros(2))
    with pytest.raises(ValueError, match=r"got Rebar, which also draws continuous points .* variance over draws"):
        exact_moments(network(2, 1).f, q, dcv.Rebar())


def test_relax_without_sizes_is_refused():
    with pytest.raises(ValueError, match="q is None, but the learned state of Relax has sizes that come from q"):
        dcv.Relax(1).init()
    for units in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="units must be an integer of at least 1, got"):
            dcv.Relax(1, units=units)


@pytest.mark.parametrize("kind", KINDS)
def test_f_of_a_wrong_shape_is_named(kind):
    q = bernoulli(2, 3)
    estimator, learned = make_relaxed(kind, q)
    with pytest.raises(ValueError, match=r"f.* must return shape \(2, 2\)"):
        Expectation(estimator)(lambda x: x if len(x) == 2 else x.sum(-1), q, learned, KEY)


def test_one_sample_is_the_default():
    assert dcv.Rebar().samples == dcv.Relax().samples == 1
