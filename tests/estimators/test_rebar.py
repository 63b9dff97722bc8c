"""REBAR, and what RELAX has in common with it: unbiasedness, learned' gradients, the model's gradient, costs."""

import math

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.exact import exact_gradient
from doublecv.jax import Expectation
from noise_quadrature import estimate_at, full_mean, quadrature_mean, value_at
from problems import network
from relaxed import (
    KINDS,
    ConditionalHeld,
    ConditionTurned,
    OnePercentMore,
    SameRelaxation,
    SmoothRelax,
    leaking_value_at,
    make_relaxed,
)

FAMILIES = {dcv.Bernoulli: (2, 3), dcv.Categorical: (2, 2, 3)}
"""The shapes of the logits, with a batch of 2, for what needs no integral."""


SMOOTH = {"rebar": dcv.Rebar, "relax": SmoothRelax}
CASES = [("rebar", dcv.Bernoulli), ("relax", dcv.Bernoulli), ("relax", dcv.Categorical)]


def logits_of(family):
    return jnp.asarray(np.random.default_rng(0).normal(size=FAMILIES[family]))


def problem_of(family):
    return network(int(np.prod(FAMILIES[family][1:])), family.event_axes)


# Unbiasedness


def bias(mean, f, q):
    return np.max(np.abs(mean - exact_gradient(f, type(q)(logits=np.asarray(q.logits)))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("logits", "temperature", "step"), [([0.8], 0.1, 0.06), ([-1.3, 0.4], 0.5, 0.25)], ids=["D=1", "D=2"]
)
def test_unbiased_by_quadrature_for_bernoulli(x64, kind, logits, temperature, step):
    q = dcv.Bernoulli(logits=jnp.array(logits))
    f = network(len(logits), 1).f
    estimator, learned = make_relaxed(kind, q, cls=SMOOTH[kind], log_temperature=math.log(temperature), scale=0.8)
    assert bias(quadrature_mean(estimator, f, q, learned, step=step), f, q) < 1e-6


@pytest.mark.parametrize("logits", [[0.8], [-1.3, 0.4]], ids=["D=1", "D=2"])
def test_unbiased_by_quadrature_over_all_the_noise_together(x64, logits):
    q = dcv.Bernoulli(logits=jnp.array(logits))
    f = network(len(logits), 1).f
    estimator, learned = make_relaxed("rebar", q, log_temperature=0.0, scale=0.8)
    assert bias(full_mean(estimator, f, q, learned, order=8), f, q) < 1e-6


@pytest.mark.parametrize(
    ("kind", "logits", "temperature", "step"),
    [("relax", [[0.7, -0.6]], 0.5, 0.15), ("rebar", [[0.3, -0.8, 0.5]], 2.0, 0.4)],
    ids=["relax, C=2", "rebar, C=3"],
)
def test_unbiased_by_quadrature_for_categorical(x64, kind, logits, temperature, step):
    q = dcv.Categorical(logits=jnp.array(logits))
    f = network(len(logits[0]), 2).f
    estimator, learned = make_relaxed(kind, q, cls=SMOOTH[kind], log_temperature=math.log(temperature), scale=0.8)
    assert bias(quadrature_mean(estimator, f, q, learned, step, reach=20.0), f, q) < 1e-6


@pytest.mark.parametrize("mutant", [ConditionalHeld, ConditionTurned, SameRelaxation])
@pytest.mark.parametrize(
    "q",
    [
        dcv.Bernoulli(logits=np.array([0.8])),
        pytest.param(dcv.Categorical(logits=np.array([[0.7, -0.6]])), marks=pytest.mark.slow),
    ],
    ids=["Bernoulli", "Categorical"],
)
def test_quadrature_catches_a_broken_estimator(x64, mutant, q):
    q = type(q)(logits=jnp.asarray(q.logits))
    f = network(q.logits.size, q.event_axes).f
    estimator, learned = make_relaxed("rebar", q, cls=mutant, log_temperature=0.0)
    assert bias(quadrature_mean(estimator, f, q, learned, step=0.3), f, q) > 1e-2


def z_scores(estimator, learned, f, q, draws=300_000, chunk=20_000):
    """How far the mean of the draws is from the exact gradient, in standard errors, and the relative standard error.

    The first score is that of the component along the exact gradient, on which a bias that is a factor shows.
    """
    exact = exact_gradient(f, q).reshape(-1)
    along = exact / np.sum(exact**2)
    repeated = type(q)(logits=jnp.asarray(q.logits)).broadcast_to((chunk,))
    generator = np.random.default_rng(7)

    @jax.jit
    def gradients(noise):
        return estimate_at(estimator, f, repeated, learned, noise).gradient

    def sums():
        noise = generator.random(estimator.noise_shape(repeated), dtype=np.float32)
        g = np.asarray(gradients(noise), dtype=float).reshape(chunk, -1)
        values = np.column_stack([g @ along, g])
        return np.stack([values.sum(0), (values**2).sum(0)])

    mean, square = sum(sums() for _ in range(draws // chunk)) / draws
    error = np.sqrt((square - mean**2) / draws)
    return np.abs(mean - np.concatenate([[1.0], exact])) / error, error[0]


MANY = {
    dcv.Bernoulli: (0.7 * np.random.default_rng(0).normal(size=10), 10),
    dcv.Categorical: (0.7 * np.random.default_rng(0).normal(size=(3, 4)), 12),
}


@pytest.mark.parametrize(("kind", "family"), CASES)
def test_unbiased_by_z_test(kind, family):
    logits, size = MANY[family]
    q = family(logits=logits)
    estimator, learned = make_relaxed(kind, q, samples=2, log_temperature=math.log(0.4), scale=0.9)
    scores, relative_error = z_scores(estimator, learned, network(size, family.event_axes).f, q)
    # RELAX starts with a random network, which adds variance.
    assert relative_error < (0.002 if kind == "rebar" else 0.003)
    assert scores.max() < 4


@pytest.mark.parametrize(("mutant", "family"), [(OnePercentMore, dcv.Bernoulli), (ConditionalHeld, dcv.Bernoulli)])
def test_the_z_test_catches_a_broken_estimator(mutant, family):
    logits, size = MANY[family]
    q = family(logits=logits)
    estimator, learned = make_relaxed("rebar", q, samples=2, cls=mutant, log_temperature=math.log(0.4), scale=0.9)
    scores, _ = z_scores(estimator, learned, network(size, family.event_axes).f, q)
    assert scores[0] > 4


# Several samples


@pytest.mark.parametrize(
    ("kind", "family"),
    [("relax", dcv.Categorical), pytest.param("relax", dcv.Bernoulli, marks=pytest.mark.slow)],
)
def test_the_estimate_of_several_samples_is_the_mean_of_estimates_of_one(x64, kind, family):
    q = family(logits=logits_of(family))
    several, learned = make_relaxed(kind, q, samples=3)
    single, _ = make_relaxed(kind, q)
    noise = np.random.default_rng(1).uniform(size=several.noise_shape(q))
    f = problem_of(family).f

    @jax.jit
    def gradients(noise):
        one_by_one = [estimate_at(single, f, q, learned, noise[:, k : k + 1]).gradient for k in range(3)]
        return estimate_at(several, f, q, learned, noise).gradient, jnp.stack(one_by_one)

    together, one_by_one = gradients(noise)
    assert np.allclose(together, one_by_one.mean(0), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 3])
def test_f_is_evaluated_at_three_points_a_sample(kind, samples):
    q = dcv.Bernoulli(logits=logits_of(dcv.Bernoulli))
    estimator, learned = make_relaxed(kind, q, samples)
    points = []

    def f(x):
        points.append(x.shape[0])
        return jnp.sum(x**2, axis=-1)

    expectation = Expectation(estimator)
    jax.eval_shape(lambda key: expectation.estimate(f, q, learned, key).gradient, jax.random.key(0))
    assert sum(points) == estimator.evaluations == 3 * samples


def test_one_sample_is_the_default():
    assert dcv.Rebar().samples == dcv.Relax().samples == 1
    assert estimators.make("rebar", samples=2) == dcv.Rebar(2)


def test_the_numbers_start_at_temperature_a_tenth_and_scale_one():
    numbers = dcv.Rebar().init().numbers
    assert math.exp(numbers["log_temperature"]) == pytest.approx(0.1)
    assert numbers["scale"] == 1


def test_the_scale_of_zero_is_reinforce(x64):
    q = dcv.Bernoulli(logits=logits_of(dcv.Bernoulli))
    estimator, learned = make_relaxed("rebar", q, samples=2, scale=0.0)
    noise = np.random.default_rng(1).uniform(size=estimator.noise_shape(q))
    result = jax.jit(lambda noise: estimate_at(estimator, problem_of(dcv.Bernoulli).f, q, learned, noise))(noise)
    assert np.allclose(result.gradient, dcv.Reinforce(samples=2).apply(q, result.evaluation).gradient, atol=1e-12)


# The gradient of the learned


@pytest.mark.parametrize(
    ("kind", "family", "pulled_back"),
    [
        ("rebar", dcv.Bernoulli, False),
        ("rebar", dcv.Bernoulli, True),
        ("relax", dcv.Categorical, True),
        pytest.param("relax", dcv.Bernoulli, False, marks=pytest.mark.slow),
        pytest.param("relax", dcv.Bernoulli, True, marks=pytest.mark.slow),
        pytest.param("relax", dcv.Categorical, False, marks=pytest.mark.slow),
    ],
)
def test_the_learned_gradient_is_that_of_the_squared_norm(x64, kind, family, pulled_back):
    f = problem_of(family).f
    q = family(logits=logits_of(family))
    estimator, learned = make_relaxed(kind, q, samples=2, log_temperature=-0.5, scale=0.7)
    noise = np.random.default_rng(3).uniform(size=estimator.noise_shape(q))
    flat, unflatten = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.asarray, learned))
    encoder = jnp.linspace(0.5, 1.5, FAMILIES[family][-1])

    def encode(encoder):
        return logits_of(family) * jnp.tanh(encoder) + encoder[0]

    def squared_norm(flat):
        logits, pullback = jax.vjp(encode, encoder)
        gradient = estimate_at(estimator, f, family(logits=logits), unflatten(flat), noise).gradient
        return jnp.sum(pullback(gradient / 2)[0] ** 2) if pulled_back else jnp.mean(gradient**2)

    def with_estimate(flat):
        logits, pullback = jax.vjp(encode, encoder)
        q = family(logits=logits)
        options = {"pullback": pullback} if pulled_back else {}
        return estimate_at(estimator, f, q, unflatten(flat), noise, **options).learned_gradient

    def with_expect(flat):
        def loss(encoder, learned):
            logits, pullback = jax.vjp(encode, encoder)
            options = {"pullback": pullback} if pulled_back else {}
            return value_at(estimator, f, family(logits=logits), learned, noise, **options).mean()

        return jax.grad(loss, argnums=(0, 1))(encoder, unflatten(flat))[1]

    step = 1e-5 * jnp.eye(flat.size)
    forward, backward = jnp.split(jax.jit(jax.vmap(squared_norm))(jnp.concatenate([flat + step, flat - step])), 2)
    wanted = (forward - backward) / 2e-5
    assert np.mean(np.abs(wanted) > 1e-6) > 0.8
    for given in jax.jit(lambda flat: (with_estimate(flat), with_expect(flat)))(flat):
        assert jax.tree.structure(given) == jax.tree.structure(learned)
        assert np.allclose(jax.flatten_util.ravel_pytree(given)[0], wanted, rtol=1e-6, atol=1e-9)


# The model's own gradient


def loss_gradients(expectation, kind, family):
    """The gradients that `expectation` gives to the model and the logits, and those that they should get.

    The model's is that of the plain mean of f over the same hard samples, the logits' that of `estimate`.
    """
    logits, problem = logits_of(family), problem_of(family)
    estimator, learned = make_relaxed(kind, family(logits=logits), samples=2)
    noise = np.random.default_rng(4).uniform(size=estimator.noise_shape(family(logits=logits)))

    def f(w):
        return lambda x: problem.f(w * x) + jnp.sum(w)

    @jax.jit
    def gradients(w, logits):
        def loss(w, logits):
            return expectation(estimator, f(w), family(logits=logits), learned, noise).sum()

        result = estimate_at(estimator, f(w), family(logits=logits), learned, noise)
        plain = jax.grad(lambda w: f(w)(result.evaluation.x).mean(0).sum())(w)
        return jax.grad(loss, argnums=(0, 1))(w, logits), (plain, result.gradient)

    return gradients(jnp.asarray(np.random.default_rng(2).normal(size=logits.shape[1:])), logits)


@pytest.mark.parametrize(("kind", "family"), CASES)
def test_the_model_gets_the_gradient_of_f_at_the_hard_samples_only(x64, kind, family):
    given, wanted = loss_gradients(value_at, kind, family)
    for one, other in zip(given, wanted, strict=True):
        assert np.allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("family", [dcv.Bernoulli, pytest.param(dcv.Categorical, marks=pytest.mark.slow)])
def test_a_leak_of_the_control_variate_into_the_model_is_caught(x64, family):
    (model, logits), (plain, estimated) = loss_gradients(leaking_value_at, "rebar", family)
    assert not np.allclose(model, plain, rtol=1e-2)
    assert np.allclose(logits, estimated, rtol=1e-12, atol=1e-14)
