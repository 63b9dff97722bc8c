"""Bounds with several samples: exact unbiasedness by enumeration, and both front-ends."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
import doublecv.jax
import doublecv.torch
from doublecv.arrays import log_mean_exp
from doublecv.estimators import Evaluation, fixed_coefficients
from doublecv.paths import Block, Path
from test_paths import CHAINS, Chain, random_coefficients

NAMES = dcv.MultiSampleBound(2).needs.coefficients
WEIGHTS = np.random.default_rng(2).normal(size=(3, 3))


def _bias(chain, estimator, learned):
    """The largest error of the estimator's mean over all outcomes of S paths."""
    q, evaluation, probabilities = chain.outcomes(estimator.samples)
    values = log_mean_exp(evaluation.f, axis=0)
    g = estimator.apply(q, evaluation, learned).gradient
    samples = range(estimator.samples)
    mean = sum(chain.pull_back(probabilities, evaluation.x[k], g[k]) for k in samples)
    # With q held constant in log w, the gradient through log q is minus the score, with the normalized weights.
    weight = values - estimator.held * np.exp(evaluation.f - values) / estimator.samples
    weight = np.broadcast_to(weight, evaluation.f.shape)
    score = q.score(evaluation.x)
    exact = sum(chain.pull_back(probabilities * weight[k], evaluation.x[k], score[k]) for k in samples)
    return np.abs(mean - exact).max()


@pytest.mark.parametrize("chain", ["one-block", "three-bits", "two-layers", "bits-and-categories"])
@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("held", [True, False])
def test_unbiased_over_all_outcomes(chain, samples, control, held):
    estimator = dcv.MultiSampleBound(samples, control=control, held=held)
    chain = Chain((Block(3),) if chain == "one-block" else CHAINS[chain])
    assert _bias(chain, estimator, random_coefficients(estimator)) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_every_control_variate_is_unbiased(name):
    one = fixed_coefficients({other: 2.0 * (other == name) for other in NAMES})
    assert _bias(Chain(CHAINS["bits-and-categories"]), dcv.MultiSampleBound(3), one) < 1e-10


def test_the_baseline_of_the_weights_is_unbiased():
    estimator = dcv.MultiSampleBound(3, held=True)
    one = fixed_coefficients({name: 2.0 * (name == "weight") for name in estimator.needs.coefficients})
    assert _bias(Chain(CHAINS["bits-and-categories"]), estimator, one) < 1e-10


def test_held_logits_and_differentiated_ones_give_the_same_gradient(x64):
    logits, weights = jnp.array([[0.3, -0.8, 0.1]]), jnp.asarray(WEIGHTS)

    def gradient(held):
        expectation = doublecv.jax.Expectation(dcv.MultiSampleBound(4, control=False, held=held))

        def loss(logits):
            q = dcv.Bernoulli(logits=logits)
            inside = q.detach() if held else q
            f = lambda x: jnp.tanh(x @ weights).sum(-1) - inside.log_prob(x)  # noqa: E731, as users write it
            return expectation(f, q, expectation.init(q).learned, jax.random.key(0)).sum()

        return jax.jit(jax.grad(loss))(logits)

    np.testing.assert_allclose(gradient(True), gradient(False), atol=1e-12)


def test_moments_are_learned_on_paths():
    estimator = dcv.MultiSampleBound(3, held=True)
    q, evaluation, _ = Chain(CHAINS["three-bits"]).outcomes(3)
    learned = estimator.init()
    applied = estimator.apply(q, evaluation, learned)
    assert {name: np.shape(value) for name, value in applied.statistics.items()} == {
        name: np.shape(value) for name, value in learned.statistics.items()
    }
    for _ in range(20):
        statistics = estimator.apply(q, evaluation, learned).statistics
        learned = learned._replace(averages=estimator.advance(learned.averages, statistics))
    assert all(value != 0 for value in estimator.coefficients(learned).values())


def test_without_the_correction_it_is_biased(monkeypatch):
    monkeypatch.setattr(Path, "covariance_product", lambda self, v: np.zeros_like(v))
    one = fixed_coefficients({other: 2.0 * (other == "current") for other in NAMES})
    assert _bias(Chain(CHAINS["three-bits"]), dcv.MultiSampleBound(2), one) > 1e-3


def test_a_product_is_the_sum_over_its_samples():
    generator = np.random.default_rng(0)
    logits, x = generator.normal(size=(4, 3)), (generator.uniform(size=(3, 4, 3)) < 0.5).astype(float)
    evaluation = Evaluation(x, generator.normal(size=(3, 4)), generator.normal(size=(3, 4, 3)))
    estimator = dcv.MultiSampleBound(3)
    learned = random_coefficients(estimator)
    on_path = estimator.apply(Path(np.broadcast_to(logits, x.shape), (Block(3),)), evaluation, learned).gradient
    of_product = estimator.apply(dcv.Bernoulli(logits=logits), evaluation, learned).gradient
    np.testing.assert_allclose(of_product, on_path.sum(0), atol=1e-12)


def test_vanishing_weights_do_no_harm():
    generator = np.random.default_rng(1)
    x = (generator.uniform(size=(3, 4, 3)) < 0.5).astype(float)
    log_weight = np.array([[0.0, -3e4, -2000.0, 800.0], [1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 5.0, -800.0]])
    evaluation = Evaluation(x, log_weight, generator.normal(size=x.shape))
    estimator = dcv.MultiSampleBound(3)
    estimate = estimator.apply(dcv.Bernoulli(logits=np.zeros((4, 3))), evaluation, random_coefficients(estimator))
    assert np.all(np.isfinite(estimate.gradient))


def _exact(logits, theta):
    """The gradient of the bound in the logits and in a parameter of log w, over all outcomes of two samples."""
    points = jnp.array(list(product((0.0, 1.0), repeat=3)))

    def objective(logits, theta):
        q = dcv.Bernoulli(logits=logits)
        log_weight = theta * jnp.tanh(points @ WEIGHTS).sum(-1) - q.log_prob(points)
        p = jnp.exp(q.log_prob(points))
        pairs = log_mean_exp(jnp.stack(jnp.broadcast_arrays(log_weight[:, None], log_weight)), 0)
        return p @ pairs @ p

    return jax.jit(jax.grad(objective, argnums=(0, 1)))(logits, theta)


def test_jax_is_unbiased_in_logits_and_parameters(x64):
    logits, theta, draws = jnp.array([0.3, -0.8, 0.1]), jnp.array(1.3), 20_000
    expectation = doublecv.jax.Expectation(dcv.MultiSampleBound(2, learning="gradient"))
    learned = jax.tree.map(jnp.asarray, fixed_coefficients({"current": -0.7, "crossed": 0.3, "own": 0.2}))

    def loss(logits, theta):
        q = dcv.Bernoulli(logits=jnp.broadcast_to(logits, (draws, 3)))

        def log_weight(x):
            return theta * jnp.tanh(x @ WEIGHTS).sum(-1) - q.log_prob(x)

        return expectation(log_weight, q, learned, jax.random.key(0)).mean()

    found = jax.jit(jax.grad(loss, argnums=(0, 1)))(logits, theta)
    for given, wanted in zip(found, _exact(logits, theta), strict=True):
        np.testing.assert_allclose(given, wanted, atol=0.02)


@pytest.mark.parametrize("control", [True, False])
def test_torch_agrees_with_jax(control, x64):
    generator = np.random.default_rng(3)
    estimator = dcv.MultiSampleBound(4, control=control, learning="gradient")
    numbers = {"current": -0.7, "crossed": 0.3, "own": 0.2} if control else {}
    logits, noise = generator.normal(size=(5, 3)), generator.uniform(size=(4, 5, 3))
    module = doublecv.torch.Expectation(estimator).double()
    for name, value in numbers.items():
        getattr(module, name).data.fill_(value)
    tensor, theta = torch.tensor(logits, requires_grad=True), torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    q = dcv.Bernoulli(logits=tensor)
    value = module(
        lambda x: theta * torch.tanh(x @ torch.tensor(WEIGHTS)).sum(-1) - q.log_prob(x), q, noise=torch.tensor(noise)
    )
    value.sum().backward()

    x = dcv.Bernoulli(logits=logits).sample(noise)

    def log_weight(x, logits, theta):
        return theta * jnp.tanh(x @ WEIGHTS).sum(-1) - dcv.Bernoulli(logits=logits).log_prob(x)

    @jax.jit
    def bound(logits, theta):
        return log_mean_exp(log_weight(x, logits, theta), 0)

    np.testing.assert_allclose(value.detach(), bound(logits, 1.3), rtol=1e-10)
    df = jax.jit(jax.grad(lambda x: log_weight(x, logits, 1.3).sum()))(jnp.asarray(x))
    evaluation = Evaluation(x, np.asarray(log_weight(x, logits, 1.3)), np.asarray(df))
    through_samples = estimator.apply(dcv.Bernoulli(logits=logits), evaluation, fixed_coefficients(numbers)).gradient
    direct = jax.jit(jax.grad(lambda logits, theta: bound(logits, theta).sum(), argnums=(0, 1)))(logits, 1.3)
    np.testing.assert_allclose(tensor.grad, through_samples + direct[0], atol=1e-10)
    np.testing.assert_allclose(theta.grad, direct[1], rtol=1e-8)


def test_the_control_variates_reduce_the_variance():
    """On the learned moments of earlier steps, in JAX."""
    expectation = doublecv.jax.Expectation(dcv.MultiSampleBound(2))
    logits = jnp.zeros((64, 10))
    q = dcv.Bernoulli(logits=logits)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(10, 10)) / 3, jnp.float32)

    def log_weight(x):
        return jnp.tanh(x @ weights).sum(-1)

    @jax.jit
    def step(state, key):
        estimate = expectation.estimate(log_weight, q, state.learned, key)
        plain = doublecv.jax.Expectation(dcv.MultiSampleBound(2, control=False))
        other = plain.estimate(log_weight, q, plain.init(q).learned, key)
        return expectation.update(estimate.learned_gradient, state), (estimate.gradient, other.gradient)

    _, (ours, vimco) = jax.lax.scan(step, expectation.init(q), jax.random.split(jax.random.key(0), 200))
    assert ours[100:].var(axis=(0, 1)).sum() < 0.8 * vimco[100:].var(axis=(0, 1)).sum()
