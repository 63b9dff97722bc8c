"""The concrete relaxation: z agrees with the hard sample, z~ has the law of z given x, and nothing is ever NaN."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv.estimators.concrete import Concrete, conditional_sample, relax, relaxed_sample, softplus
from doublecv.estimators.couplings import Independent
from doublecv.estimators.evaluation import Evaluation
from noise_quadrature import estimate_at, value_at
from relaxed import make_relaxed

SHAPES = {dcv.Bernoulli: (3,), dcv.Categorical: (2, 3)}
FAMILIES = tuple(SHAPES)


def uniform(shape, seed=0):
    return np.random.default_rng(seed).uniform(size=shape)


def distribution(family, scale=1.5):
    return family(logits=scale * np.random.default_rng(1).normal(size=SHAPES[family]))


def hard(q, z):
    """The hard threshold of z."""
    if isinstance(q, dcv.Bernoulli):
        return (z > 0).astype(float)
    return (z == z.max(-1, keepdims=True)).astype(float)


@pytest.mark.parametrize("family", FAMILIES)
def test_z_and_conditional_z_both_have_the_sample_as_threshold(family):
    q = distribution(family)
    noise = uniform(Concrete().noise_shape(q, 500))
    x = Concrete().draw(q, noise)
    assert x.shape == (500, *q.event_shape)
    assert np.array_equal(hard(q, relaxed_sample(q, noise[0])), x)
    assert np.array_equal(hard(q, conditional_sample(q, noise[1], x)), x)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_relaxed_point_nears_the_hard_sample_as_the_temperature_falls(family):
    q = distribution(family)
    noise = uniform(Concrete().noise_shape(q, 50))
    x, z = Concrete().draw(q, noise), relaxed_sample(q, noise[0])
    far, near, nearest = (np.abs(relax(q, z, t) - x).max() for t in (0.0, -3.0, -9.0))
    assert far > near > nearest
    assert nearest < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_samples_have_the_mean_of_q(family):
    q = distribution(family)
    x = Concrete().draw(q, uniform(Concrete().noise_shape(q, 100_000)))
    assert np.all(np.abs(x.mean(0) - q.mean) < 4.5 * np.sqrt(q.mean * (1 - q.mean) / 100_000))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_hard_samples_are_independent(family):
    q = distribution(family)
    joint, independent = (coupling.joint(q, 2) for coupling in (Concrete(), Independent()))
    assert joint.patterns == independent.patterns
    assert np.array_equal(joint.probabilities, independent.probabilities)


def test_the_conditional_sample_of_bernoulli_is_z_at_noise_within_the_sample_s_interval():
    logits, v = np.linspace(-6, 6, 25), uniform((200, 25))
    q = dcv.Bernoulli(logits=logits)
    ones, zeros = np.ones_like(v), np.zeros_like(v)
    assert np.allclose(conditional_sample(q, v, ones), relaxed_sample(q, q.mean * v), atol=1e-9)
    assert np.allclose(conditional_sample(q, v, zeros), relaxed_sample(q, q.mean + (1 - q.mean) * v), atol=1e-9)


@pytest.mark.parametrize("category", range(3))
def test_the_conditional_sample_of_categorical_has_the_law_of_z_given_x(category):
    q = dcv.Categorical(logits=np.array([[0.7, -1.0, 0.2]]))
    noise = uniform((2, 200_000, 1, 3))
    x = Concrete().draw(q, noise)
    chosen = x[:, 0, category] == 1
    z = relaxed_sample(q, noise[0])[chosen][:, 0]
    given_x = conditional_sample(q, noise[1], x)[chosen][:, 0]
    # Means, variances and one mixed moment of three numbers each, on bounded functions of z.
    moments = [np.tanh(sample / 2) for sample in (z, given_x)]
    moments = [np.column_stack([m, m**2, m[:, :1] * m[:, 1:], m[:, 1] * m[:, 2]]) for m in moments]
    error = np.sqrt(sum(m.var(0) for m in moments) / chosen.sum())
    assert np.max(np.abs(moments[0].mean(0) - moments[1].mean(0)) / error) < 4.5


@pytest.mark.parametrize("family", FAMILIES)
def test_the_conditional_sample_is_differentiated_in_the_logits(x64, family):
    q = distribution(family)
    noise = uniform(Concrete().noise_shape(q, 4))
    x = Concrete().draw(q, noise)
    direction = uniform(q.event_shape, seed=2)

    @jax.jit
    def moved(step):
        return conditional_sample(family(logits=jnp.asarray(q.logits + step * direction)), noise[1], x)

    _, derivative = jax.jit(lambda step: jax.jvp(moved, (step,), (1.0,)))(0.0)
    assert np.allclose(derivative, (moved(1e-6) - moved(-1e-6)) / 2e-6, atol=1e-8)
    assert np.max(np.abs(derivative)) > 0.1


def test_softplus_has_the_derivatives_of_softplus_also_at_0(x64):
    a = np.array([-800.0, -40.0, -1.0, 0.0, 1.0, 40.0, 800.0])
    sigmoid = np.asarray(jax.nn.sigmoid(a))
    leaf = torch.tensor(a, requires_grad=True)
    (first_on_torch,) = torch.autograd.grad(softplus(leaf).sum(), leaf, create_graph=True)
    (second_on_torch,) = torch.autograd.grad(first_on_torch.sum(), leaf)
    assert np.allclose(softplus(a), np.logaddexp(a, 0), rtol=1e-14)
    for first in (jax.jit(jax.vmap(jax.grad(softplus)))(a), first_on_torch.detach()):
        assert np.allclose(first, sigmoid, atol=1e-15)
    for second in (jax.jit(jax.vmap(jax.grad(jax.grad(softplus))))(a), second_on_torch):
        assert np.allclose(second, sigmoid * (1 - sigmoid), atol=1e-15)


@pytest.mark.parametrize("family", FAMILIES)
def test_numpy_jax_and_torch_have_the_same_control_variate_and_gradient(x64, family):
    q = distribution(family)
    estimator, learned = make_relaxed("rebar", q, samples=2, log_temperature=-0.7)
    noise = uniform(estimator.noise_shape(q))
    axes = tuple(range(-family.event_axes, 0))

    def f(x):
        return (x**3).sum(axes)

    on_jax = family(logits=jnp.asarray(q.logits))
    result = jax.jit(lambda noise: estimate_at(estimator, f, on_jax, learned, noise))(noise)

    x = estimator.draw(q, noise)
    assert np.array_equal(x, result.evaluation.x)
    control = estimator.control(f, q.broadcast_to((4,)), noise, x, learned.numbers, None)
    assert np.allclose(control, result.evaluation.control, rtol=1e-12)

    logits = torch.tensor(np.stack([q.logits] * 4), requires_grad=True)
    numbers = {name: torch.tensor(value, requires_grad=True) for name, value in learned.numbers.items()}
    on_torch = family(logits=torch.tensor(q.logits))
    drawn = estimator.draw(on_torch, torch.tensor(noise))
    control = estimator.control(f, family(logits=logits), torch.tensor(noise), drawn, numbers, None)
    (dcontrol,) = torch.autograd.grad(control.sum(), logits, create_graph=True)
    evaluation = Evaluation(drawn, f(drawn), control=control, dcontrol=dcontrol)
    gradient = estimator.apply(on_torch, evaluation, learned._replace(numbers=numbers)).gradient
    assert np.allclose(gradient.detach(), result.gradient, rtol=1e-10, atol=1e-12)
    for name, value in numbers.items():
        (given,) = torch.autograd.grad((gradient**2).mean(), value, retain_graph=True)
        assert np.allclose(given, result.learned_gradient.numbers[name], rtol=1e-9)


# No NaN

ENDS = np.array([0.0, 2.0**-24, 2.0**-23, 0.5, 1 - 2.0**-23, 1 - 2.0**-24], dtype=np.float32)
"""What uniform noise in float32 can be at its ends, for generators with 23 and with 24 bits."""

EXTREMES = [-np.inf, -1e4, -50.0, -1.0, 0.0, 1.0, 50.0, 1e4, np.inf]


def extreme_noise(estimator, q):
    """Every combination of two ends as u and v, and more at random."""
    generator = np.random.default_rng(3)
    noise = generator.choice(ENDS, size=estimator.noise_shape(q))
    pairs = np.stack(np.meshgrid(ENDS, ENDS, indexing="ij")).reshape(2, -1)
    noise[:, :, : pairs.shape[1]] = pairs.reshape(2, 1, -1, *(1,) * (noise.ndim - 3))
    return noise


def extreme_logits(family):
    if family is dcv.Bernoulli:
        logits = np.array(EXTREMES)[:, None]
    else:
        logits = np.array([[[a, b, 0.0]] for a in EXTREMES for b in (-50.0, 0.0, 50.0)])
    return np.broadcast_to(logits[None], (64, *logits.shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("rebar", dcv.Categorical),
        ("relax", dcv.Bernoulli),
        pytest.param("rebar", dcv.Bernoulli, marks=pytest.mark.slow),
        pytest.param("relax", dcv.Categorical, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_nan_at_the_ends_of_logits_noise_and_temperature(family, kind):
    q = family(logits=jnp.asarray(extreme_logits(family)))
    estimator, learned = make_relaxed(kind, q)
    noise = extreme_noise(estimator, q)
    w = jnp.ones(q.event_shape)

    def f(w):
        return lambda x: jnp.sum(w * (x - 0.499) ** 2, axis=tuple(range(-family.event_axes, 0)))

    @jax.jit
    def everything(logits, learned, w):
        def loss(logits, learned, w):
            return value_at(estimator, f(w), family(logits=logits), learned, noise).mean()

        return estimate_at(estimator, f(w), q, learned, noise), jax.grad(loss, (0, 1, 2))(logits, learned, w)

    for temperature in (0.01, 0.1, 1.0):
        numbers = learned.numbers | {"log_temperature": np.asarray(math.log(temperature))}
        results = everything(q.logits, jax.tree.map(jnp.float32, learned._replace(numbers=numbers)), w)
        assert results[0].gradient.dtype == jnp.float32
        # The estimate also holds q, whose logits are infinite here.
        for leaf in jax.tree.leaves((results[0]._replace(q=None), results[1])):
            assert np.all(np.isfinite(leaf))


@pytest.mark.parametrize("family", FAMILIES)
def test_second_derivatives_on_torch_are_finite_at_the_ends(family):
    logits = torch.tensor(extreme_logits(family))
    estimator, _ = make_relaxed("rebar", family(logits=logits))
    q = family(logits=logits)
    noise = torch.tensor(extreme_noise(estimator, q))
    x = estimator.draw(q, noise)
    log_temperature = torch.tensor(math.log(0.01), requires_grad=True)
    repeated = torch.stack([logits] * 2).requires_grad_()
    control = estimator.control(
        lambda x: ((x - 0.499) ** 2).sum(tuple(range(-family.event_axes, 0))),
        family(logits=repeated),
        noise,
        x,
        {"log_temperature": log_temperature, "scale": 1.0},
        None,
    )
    (dcontrol,) = torch.autograd.grad(control.sum(), repeated, create_graph=True)
    (second,) = torch.autograd.grad((dcontrol**2).sum(), log_temperature)
    for values in (control, dcontrol, second):
        assert torch.all(torch.isfinite(values))


def test_noise_at_the_ends_gives_one_hot_samples():
    q = dcv.Categorical(logits=jnp.zeros((1, 3), jnp.float32))
    draw = jax.jit(lambda u: Concrete().draw(q, jnp.stack([u, u])))
    for end in ENDS:
        assert float(draw(np.full((1, 1, 3), end)).sum()) == 1
