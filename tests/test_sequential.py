"""Product, Layers and Autoregressive in both front-ends: what f sees, the law of the samples, gradients and errors."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
import doublecv.jax
import doublecv.torch
from doublecv.estimators.judgement import least_variance
from doublecv.jax.drawing import uniform as jax_uniform
from doublecv.torch.drawing import uniform as torch_uniform

GENERATOR = np.random.default_rng(0)
FIRST, SECOND, TO_SECOND = GENERATOR.normal(size=2), GENERATOR.normal(size=(2, 3)), GENERATOR.normal(size=(2, 2, 3))
CAUSAL = np.triu(GENERATOR.normal(size=(3, 3)), 1)
START = GENERATOR.normal(size=3)
CAUSAL_CATEGORIES = GENERATOR.normal(size=(2, 3, 2, 3))
CAUSAL_CATEGORIES[1] = CAUSAL_CATEGORIES[:, :, 0] = 0


def two_layers(first, second, weights, batch):
    """Two bits, and two categorical variables whose logits depend on them."""
    broadcast = jnp.broadcast_to if isinstance(first, jax.Array) else torch.broadcast_to
    einsum = jnp.einsum if isinstance(first, jax.Array) else torch.einsum
    return dcv.Layers(
        dcv.Bernoulli(logits=broadcast(first, (batch, 2))),
        lambda bits: dcv.Categorical(logits=second + einsum("...d,dvc->...vc", bits, weights)),
    )


def value_of_layers(x):
    bits, categories = x
    values = GENERATOR_VALUES if isinstance(bits, jax.Array) else torch.tensor(np.asarray(GENERATOR_VALUES))
    interaction = (categories * values).sum((-1, -2)) * (1 + bits[..., 0] - 2 * bits[..., 1])
    return interaction + bits.sum(-1) ** 2


GENERATOR_VALUES = jnp.array([[0.5, -1.0, 2.0], [1.0, 0.3, -0.7]])


@pytest.fixture(scope="module")
def exact():
    """The gradient of the mean in all three parameters, over all values of both layers."""
    with jax.enable_x64(True):
        bits = jnp.array(list(product((0.0, 1.0), repeat=2)))
        categories = jnp.array(np.eye(3)[list(product(range(3), repeat=2))])

        b, c = bits.repeat(9, axis=0), jnp.tile(categories, (4, 1, 1))

        def mean(first, second, weights):
            q = two_layers(first, second, weights, 36)
            return jnp.exp(q.log_prob((b, c))) @ value_of_layers((b, c))

        arguments = (jnp.asarray(FIRST), jnp.asarray(SECOND), jnp.asarray(TO_SECOND))
        return jax.jit(jax.grad(mean, argnums=(0, 1, 2)))(*arguments)


ESTIMATORS = [dcv.RLOO(3), dcv.DoubleCV(3, learning="gradient"), dcv.QuadraticDoubleCV(3, learning="gradient")]
DRAWS = 30_000


def fixed(estimator):
    """Coefficients at which every control variate counts."""
    names = estimator.needs.coefficients
    return dict(zip(names, np.linspace(-0.5, 0.4, len(names)), strict=True))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_layers_are_unbiased_in_jax(estimator, exact):
    expectation = doublecv.jax.Expectation(estimator)
    q = two_layers(jnp.asarray(FIRST), jnp.asarray(SECOND), jnp.asarray(TO_SECOND), DRAWS)
    learned = expectation.init(q).learned
    learned = learned._replace(numbers={name: jnp.asarray(value) for name, value in fixed(estimator).items()})

    def loss(first, second, weights):
        q = two_layers(first, second, weights, DRAWS)
        return expectation(value_of_layers, q, learned, jax.random.key(1)).mean()

    found = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*map(jnp.asarray, (FIRST, SECOND, TO_SECOND)))
    for given, wanted in zip(found, exact, strict=True):
        np.testing.assert_allclose(given, wanted, atol=0.04)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_layers_are_unbiased_in_torch(estimator, exact):
    expectation = doublecv.torch.Expectation(estimator).double()
    for name, value in fixed(estimator).items():
        getattr(expectation, name).data.fill_(value)
    parameters = [torch.tensor(array, requires_grad=True) for array in (FIRST, SECOND, TO_SECOND)]
    generator = torch.Generator().manual_seed(0)
    expectation(value_of_layers, two_layers(*parameters, DRAWS), generator=generator).mean().backward()
    for parameter, wanted in zip(parameters, exact, strict=True):
        np.testing.assert_allclose(parameter.grad, wanted, atol=0.04)


def causal_bits(x):
    weights = CAUSAL if isinstance(x, np.ndarray | jax.Array) else torch.tensor(CAUSAL, dtype=x.dtype)
    return x @ weights + (START if isinstance(x, np.ndarray | jax.Array) else torch.tensor(START, dtype=x.dtype))


def causal_categories(x):
    return jnp.einsum("...tc,tcud->...ud", x, jnp.asarray(CAUSAL_CATEGORIES, x.dtype))


def test_sequences_have_the_law_of_the_model():
    draws = 20_000
    q = dcv.Autoregressive(causal_bits, 3, batch_shape=(draws,))
    visits = [q.visit(2, jax_uniform(jax.random.key(0))), q.visit(2, torch_uniform(torch.Generator().manual_seed(0)))]
    points = np.array(list(product((0.0, 1.0), repeat=3)))
    probabilities = np.exp(dcv.Autoregressive(causal_bits, 3).log_prob(points))
    np.testing.assert_allclose(probabilities.sum(), 1)
    for visit in visits:
        x = np.asarray(visit.x)
        np.testing.assert_allclose(visit.q.logits, np.asarray(causal_bits(x)), atol=1e-5)
        for point, probability in zip(points, probabilities, strict=True):
            frequency = (x == point).all(-1).mean(-1)
            assert np.all(np.abs(frequency - probability) < 5 * np.sqrt(probability / draws))


def test_sequences_of_categories_are_one_hot():
    q = dcv.Autoregressive(causal_categories, 2, 3, batch_shape=(4,))
    visit = q.visit(5, jax_uniform(jax.random.key(0)))
    assert visit.x.shape == (5, 4, 6)
    assert visit.structure(visit.x).shape == (5, 4, 2, 3)
    np.testing.assert_array_equal(visit.structure(visit.x).sum(-1), 1)
    np.testing.assert_allclose(visit.q.log_prob(visit.x), q.log_prob(visit.structure(visit.x)), rtol=1e-5)


def test_a_sampler_takes_the_place_of_the_steps():
    steps, drawn = [], []

    def logits_of(x):
        steps.append(x.shape)
        return causal_bits(x)

    def sampler(noise):
        drawn.append(noise.shape)
        return (noise < 0.5).astype(noise.dtype)

    visit = dcv.Autoregressive(logits_of, 3, sampler=sampler).visit(4, jax_uniform(jax.random.key(0)))
    assert drawn == [(4, 3)]
    assert steps == [(4, 3)]
    assert visit.x.shape == (4, 3)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_sequences_learn_in_jax(estimator):
    """The gradient is that of the formula at the visited logits, pulled back through the model."""
    expectation = doublecv.jax.Expectation(estimator)
    weights = jnp.asarray(np.tril(np.random.default_rng(1).normal(size=(3, 3)), -1).T, jnp.float32)

    def q_of(weights):
        return dcv.Autoregressive(lambda x: x @ (weights * jnp.triu(jnp.ones((3, 3)), 1)), 3, batch_shape=(6,))

    def f(x):
        return jnp.sin(x @ jnp.array([1.0, 2.0, 4.0]))

    state = expectation.init(q_of(weights))
    learned = state.learned._replace(numbers={name: jnp.asarray(v) for name, v in fixed(estimator).items()})
    key = jax.random.key(3)

    @jax.jit
    def both(weights, learned):
        def loss(weights, learned):
            return expectation(f, q_of(weights), learned, key).sum()

        given, of_learned = jax.grad(loss, argnums=(0, 1))(weights, learned)
        visit = q_of(weights).visit(3, jax_uniform(key))
        df = jax.grad(lambda x: f(x).sum())(visit.x)
        g = estimator.apply(visit.q, dcv.estimators.Evaluation(visit.x, f(visit.x), df), learned).gradient
        expectation.update(of_learned, state)
        return given, jnp.einsum("kbt,kbu->tu", visit.x, g) * jnp.triu(jnp.ones((3, 3)), 1)

    given, wanted = both(weights, learned)
    np.testing.assert_allclose(given, wanted, atol=1e-5)


@pytest.mark.parametrize("samples", [2, 3])
def test_moments_are_learned_on_paths(samples):
    """The coefficients that earlier steps justify are nearly the best ones, far below RLOO at the same samples."""
    generator, estimator = np.random.default_rng(0), dcv.QuadraticDoubleCV(samples)
    weights, head = generator.normal(size=(6, 20)) / 6**0.5, generator.normal(size=20)
    causal, start = np.triu(generator.normal(size=(6, 6)), 1) / 6**0.5, generator.normal(size=6) / 2
    q = dcv.Autoregressive(lambda x: x @ causal + start, 6, batch_shape=(20,))
    learned = estimator.init()
    ours, parts = [], []
    for _ in range(160):
        visit = q.visit(samples, lambda shape, like: generator.uniform(size=shape))
        hidden = np.tanh(2 * visit.x @ weights)
        df = 2 * ((1 - hidden**2) * head) @ weights.T
        evaluation = dcv.estimators.Evaluation(visit.x, hidden @ head, df)
        applied = estimator.apply(visit.q, evaluation, learned)
        ours.append(applied.gradient.sum(0))
        parts.append(estimator.parts(visit.q, evaluation).stack(estimator.needs.coefficients).sum(1))
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
    late, others = np.stack(ours[80:]), np.stack(parts[80:], axis=1)
    flat = others.reshape(len(others), -1)
    best = others[0] + np.tensordot(least_variance(flat @ flat.T), others[1:], 1)
    variances = [gradients.var(axis=(0, 1)).sum() for gradients in (late, best, others[0])]
    assert variances[0] < 1.15 * variances[1]
    assert variances[0] < 0.25 * variances[2]


def mixed(xp, batch):
    return dcv.Product(
        gate=dcv.Bernoulli(logits=xp.zeros((batch, 2))), choice=dcv.Categorical(logits=xp.zeros((batch, 1, 3)))
    )


@pytest.mark.parametrize("xp", [jnp, torch], ids=["jax", "torch"])
def test_a_product_gives_f_a_dictionary(xp):
    seen = {}

    def f(x):
        seen.update({name: tuple(part.shape) for name, part in x.items()})
        return x["gate"].sum(-1) + (x["choice"][..., 0, :] ** 2).sum(-1)

    if xp is jnp:
        expectation = doublecv.jax.Expectation(dcv.DoubleCV(4, learning="gradient"))
        learned = expectation.init(mixed(jnp, 5)).learned
        value = expectation(f, mixed(jnp, 5), learned, jax.random.key(0))
    else:
        value = doublecv.torch.Expectation(dcv.DoubleCV(4, learning="gradient"))(f, mixed(torch, 5))
    assert tuple(value.shape) == (5,)
    assert seen == {"gate": (4, 5, 2), "choice": (4, 5, 1, 3)}


def test_a_product_inside_of_layers():
    q = dcv.Layers(mixed(jnp, 5), lambda first: dcv.Bernoulli(logits=first["gate"] - first["choice"][..., 0, :2]))
    expectation = doublecv.jax.Expectation(dcv.QuadraticDoubleCV(2))
    learned = expectation.init(q).learned

    def f(x):
        return x[0]["gate"].sum(-1) * x[1].sum(-1) + x[0]["choice"][..., 0, 1]

    gradient = jax.jit(lambda key: expectation.estimate(f, q, learned, key).gradient)(jax.random.key(0))
    assert gradient.shape == (2, 5, 7)
    assert np.all(np.isfinite(gradient))


def test_a_product_has_entropy_and_divergence():
    q = mixed(np, 4)
    np.testing.assert_allclose(q.entropy(), 2 * np.log(2) + np.log(3))
    np.testing.assert_allclose(q.kl(q), 0, atol=1e-12)
    with pytest.raises(TypeError, match=r"other must be a Product with the names .*, got Bernoulli"):
        q.kl(dcv.Bernoulli(logits=np.zeros(2)))


def test_held_logits_get_no_gradient():
    def loss(first):
        q = two_layers(first, jnp.asarray(SECOND), jnp.asarray(TO_SECOND), 1)
        x = jnp.ones((1, 2)), jnp.asarray(np.eye(3)[[[0, 1]]])
        return q.detach().log_prob(x).sum()

    assert np.all(np.asarray(jax.grad(loss)(jnp.asarray(FIRST))) == 0)
    sequence = dcv.Autoregressive(lambda x: x @ jnp.asarray(CAUSAL) + START, 3).detach()
    np.testing.assert_allclose(sequence.log_prob(jnp.ones(3)), dcv.Autoregressive(causal_bits, 3).log_prob(jnp.ones(3)))


@pytest.mark.parametrize(
    ("logits_of", "position"), [(lambda x: x, 0), (lambda x: x[..., [1, 0, 2]] * 0 + x[..., [0, 2, 0]], 0)]
)
def test_a_leak_is_named(logits_of, position):
    with pytest.raises(ValueError, match=f"not causal: its logits at position {position} change"):
        doublecv.jax.Expectation(dcv.RLOO(2)).init(dcv.Autoregressive(logits_of, 3))
    with pytest.raises(ValueError, match="not causal"):
        doublecv.torch.Expectation(dcv.RLOO(2))(lambda x: x.sum(-1), dcv.Autoregressive(logits_of, 3))


def test_a_leak_of_the_last_position_is_named():
    def logits_of(x):
        return jnp.concatenate([x[..., :-1] * 0, x[..., -1:]], axis=-1)

    with pytest.raises(ValueError, match="logits at position 39 change with the values at position 39"):
        doublecv.jax.Expectation(dcv.RLOO(2)).init(dcv.Autoregressive(logits_of, 40, batch_shape=(2,)))


def test_a_leak_of_one_position_among_many_is_named():
    leak = jnp.triu(jnp.ones((200, 200)), 1).at[117, 117].set(1)
    with pytest.raises(ValueError, match="logits at position 117 change with the values at position 117"):
        doublecv.jax.Expectation(dcv.RLOO(2)).init(dcv.Autoregressive(lambda x: x @ leak, 200))


def test_arrays_of_the_other_framework_are_named():
    with pytest.raises(TypeError, match=r"torch tensor; use doublecv\.torch"):
        doublecv.jax.Expectation(dcv.RLOO(2)).init(dcv.Layers(dcv.Bernoulli(logits=torch.zeros(2, 3))))
    with pytest.raises(TypeError, match=r"use doublecv\.jax for JAX arrays"):
        doublecv.torch.Expectation(dcv.RLOO(2))(lambda x: x[0].sum(-1), dcv.Layers(dcv.Bernoulli(jnp.zeros((2, 3)))))


def test_causal_models_pass():
    doublecv.jax.Expectation(dcv.RLOO(2)).init(dcv.Autoregressive(causal_bits, 3, batch_shape=(2,)))
    doublecv.jax.Expectation(dcv.RLOO(2)).init(dcv.Autoregressive(causal_categories, 2, 3))
    doublecv.torch.Expectation(dcv.RLOO(2)).init(dcv.Autoregressive(causal_bits, 3))


@pytest.mark.parametrize("front_end", [doublecv.jax, doublecv.torch], ids=["jax", "torch"])
def test_estimators_that_need_independence_refuse(front_end):
    q = dcv.Autoregressive(causal_bits, 3)
    with pytest.raises(TypeError, match="take one of Reinforce, RLOO, DoubleCV, HalfDoubleCV, QuadraticDoubleCV"):
        front_end.Expectation(dcv.DisARM(2)).init(q)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dcv.Product(), "at least one distribution"),
        (lambda: dcv.Product(a=3), "a must be a Bernoulli or a Categorical, got int"),
        (lambda: dcv.Product(a=dcv.Bernoulli(np.zeros((2, 3))), b=dcv.Bernoulli(np.zeros(3))), "same batch axes"),
        (lambda: dcv.Layers(np.zeros(3)), "first must be a Bernoulli"),
        (lambda: dcv.Layers(dcv.Bernoulli(np.zeros(3)), 4), "got int for layer 2"),
        (lambda: dcv.Autoregressive(3, 4), "logits_of must be a function"),
        (lambda: dcv.Autoregressive(causal_bits, 0), "length must be a positive integer, got 0"),
        (lambda: dcv.Autoregressive(causal_bits, 3, 0), "categories must be a positive integer, got 0"),
    ],
)
def test_errors_of_descriptions(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    ("q", "message"),
    [
        (dcv.Layers(dcv.Bernoulli(logits=jnp.zeros((5, 2))), lambda x: x), "function of layer 2 must return"),
        (
            dcv.Layers(dcv.Bernoulli(logits=jnp.zeros((5, 2))), lambda x: dcv.Bernoulli(logits=jnp.zeros((5, 3)))),
            r"layer 2 must have the batch axes \(2, 5\)",
        ),
        (dcv.Autoregressive(lambda x: x[..., 0], 3), r"with the shape of its argument, \(2, 3\), got \(2,\)"),
        (dcv.Autoregressive(causal_bits, 3, sampler=lambda noise: noise[..., :1]), "sampler must return shape"),
    ],
)
def test_errors_of_functions(q, message):
    expectation = doublecv.jax.Expectation(dcv.RLOO(2))
    learned = expectation.init(dcv.Bernoulli(logits=jnp.zeros(3))).learned
    with pytest.raises((TypeError, ValueError), match=message):
        expectation(lambda x: jnp.zeros((2, 5)), q, learned, jax.random.key(0))
