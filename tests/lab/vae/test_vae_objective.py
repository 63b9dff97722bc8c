"""The model, the ELBO and the bounds against sums over all latents."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doublecv.estimators import fixed_coefficients
from doublecv.exact import exact_gradient
from doublecv.lab.train.step import loss, make_model, start_estimator
from doublecv.lab.vae.objective import bounds, elbo, log_weight
from tiny_images import tiny_dataset, tiny_settings

FAMILIES = [{}, {"latent": "categorical", "categories": 3}]


def spread(model, scale=1.5):
    """The same model with larger weights, so that q is far from uniform."""
    return jax.tree.map(lambda leaf: scale * leaf + 0.1, model)


def all_latents(q):
    values = np.asarray(q.variable_values())
    points = np.array(list(itertools.product(values, repeat=q.event_shape[0])))
    return jnp.broadcast_to(jnp.asarray(points)[:, None], (len(points), *q.batch_shape, *q.event_shape))


@pytest.mark.parametrize("family", FAMILIES, ids=["bernoulli", "categorical"])
def test_the_elbo_has_the_mean_and_gradient_of_its_closed_form(family, x64):
    settings = tiny_settings(**family)
    model = spread(make_model(settings, 6, jax.random.key(0)))
    y = jnp.array(np.random.RandomState(0).rand(4, 6) < 0.5, float)
    logits = model.encoder(y)
    q = model.posterior(logits)
    f, x = elbo(model, y, q), all_latents(q)

    def mean(logits, f):
        q = model.posterior(logits)
        return jnp.sum(jnp.exp(q.log_prob(x)) * f(x), axis=0)

    def closed_form(logits):
        return mean(logits, lambda x: model.log_likelihood(y, x)) + model.posterior(logits).entropy() + model.log_prior

    @jax.jit
    def everything(logits):
        true_gradient = jax.grad(lambda logits: closed_form(logits).sum())(logits)
        return mean(logits, f), closed_form(logits), true_gradient

    sampled, analytic, true_gradient = everything(logits)
    np.testing.assert_allclose(sampled, analytic, rtol=1e-6)
    score_gradient = exact_gradient(f, q)
    np.testing.assert_allclose(score_gradient.reshape(true_gradient.shape), true_gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES, ids=["bernoulli", "categorical"])
def test_bounds_over_a_set_are_those_of_the_exact_sums(family):
    settings = tiny_settings(likelihood="gaussian", **family)
    model = spread(make_model(settings, 6, jax.random.key(0)))
    images = tiny_dataset().train[:23]
    y = jnp.asarray(images, jnp.float32) * (2 / 255) - 1
    q = model.posterior(model.encoder(y))
    x = all_latents(q)
    log_joint = model.log_likelihood(y, x) + model.log_prior
    exact_elbo = float(jnp.mean(jnp.sum(jnp.exp(q.log_prob(x)) * (log_joint - q.log_prob(x)), axis=0)))
    exact_evidence = float(jnp.mean(jax.nn.logsumexp(log_joint, axis=0)))
    many = bounds(model, images, jax.random.key(1), 4000)
    assert many.elbo == pytest.approx(exact_elbo, abs=0.02)
    assert many.multi_sample == pytest.approx(exact_evidence, abs=0.02)
    assert exact_evidence - exact_elbo > 0.2
    few = bounds(model, images, jax.random.key(1), 1)
    assert few.multi_sample == pytest.approx(few.elbo, abs=1e-5)


def test_a_set_is_summed_whole_whatever_its_size():
    settings = tiny_settings(likelihood="gaussian")
    model = make_model(settings, 6, jax.random.key(0))
    model = jax.tree.map(jnp.zeros_like, model)
    images = np.random.RandomState(3).randint(0, 256, (2503, 6)).astype(np.uint8)
    y = images.astype(float) * (2 / 255) - 1
    variance = np.log(2)
    wanted = (-0.5 * (y**2 / variance + np.log(2 * np.pi * variance))).sum(1).mean()
    assert bounds(model, images, jax.random.key(1), 2).elbo == pytest.approx(wanted, rel=1e-6)


def test_the_models_are_those_of_the_paper():
    nonlinear = make_model(tiny_settings(network="nonlinear", latents=200), 784, jax.random.key(0))
    shapes = [leaf.shape for leaf in jax.tree.leaves(nonlinear) if leaf.ndim == 2]
    assert shapes == [(784, 200), (200, 200), (200, 200), (200, 200), (200, 200), (200, 784)]
    for leaf in jax.tree.leaves(nonlinear):
        limit = np.sqrt(6 / sum(leaf.shape)) if leaf.ndim == 2 else 0.0
        assert float(jnp.abs(leaf).max()) <= limit
        assert float(jnp.abs(leaf).max()) >= 0.99 * limit
    linear = make_model(tiny_settings(latents=200, likelihood="gaussian"), 784, jax.random.key(0))
    assert [leaf.shape for leaf in jax.tree.leaves(linear)] == [(784, 200), (200,), (200, 784), (784,), (784,)]
    assert (linear.raw_variance == -0.5).all()
    one_hot = make_model(tiny_settings(latents=4, latent="categorical", categories=5), 784, jax.random.key(0))
    assert one_hot.posterior(one_hot.encoder(jnp.zeros((2, 784)))).logits.shape == (2, 4, 5)


def test_two_layers_have_the_elbo_of_the_exact_sum(x64):
    settings = tiny_settings(network="two-layer", latents=2, likelihood="gaussian")
    model = spread(make_model(settings, 6, jax.random.key(0)))
    images = tiny_dataset().train[:23]
    y = jnp.asarray(images, jnp.float32) * (2 / 255) - 1
    q = model.posterior(model.encoder(y))
    bits = jnp.array(list(itertools.product([0.0, 1.0], repeat=4)))
    points = jnp.broadcast_to(bits[:, None], (16, 23, 4))
    x = points[..., :2], points[..., 2:]
    log_q = q.log_prob(x)
    np.testing.assert_allclose(jnp.exp(log_q).sum(0), 1, rtol=1e-6)
    np.testing.assert_allclose(model.log_prior, -2 * np.log(2))
    log_joint = model.log_likelihood(y, x) + model.log_prior
    exact = float(jnp.mean(jnp.sum(jnp.exp(log_q) * (log_joint - log_q), axis=0)))
    assert bounds(model, images, jax.random.key(1), 4000).elbo == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize(
    ("network", "name"),
    [
        ("linear", "rloo"),
        ("two-layer", "vimco-double-cv"),
        pytest.param("linear", "vimco", marks=pytest.mark.slow),
        pytest.param("linear", "vimco-double-cv", marks=pytest.mark.slow),
        pytest.param("two-layer", "rloo", marks=pytest.mark.slow),
        pytest.param("two-layer", "vimco", marks=pytest.mark.slow),
    ],
)
def test_the_bound_has_the_gradient_of_the_exact_sum(name, network):
    """The mean over many draws against the sum over all pairs of latents, in the logits and in all parameters."""
    settings = tiny_settings(
        network=network, latents=2, objective="iwae", bound_samples_train=2, estimator=name, samples=2
    )
    model = spread(make_model(settings, 6, jax.random.key(0)))
    y = jnp.array(np.random.RandomState(0).rand(2, 6) < 0.5, jnp.float32)
    size = 2 * (1 + (network == "two-layer"))
    bits = jnp.array(list(itertools.product([0.0, 1.0], repeat=size)))

    def exact(model, shift):
        q = model.posterior(model.encoder(y) + shift[:, :2], shift[:, 2:])
        points = jnp.broadcast_to(bits[:, None], (len(bits), 2, size))
        x = (points[..., :2], points[..., 2:]) if network == "two-layer" else points
        weight, log_q = log_weight(model, y, q, x), q.log_prob(x)
        of_pairs = jnp.logaddexp(weight[:, None], weight[None]) - jnp.log(2)
        return -jnp.sum(jnp.exp(log_q[:, None] + log_q[None]) * of_pairs, axis=(0, 1)).mean()

    shift = jnp.zeros((2, size))
    wanted = jax.jit(jax.grad(exact, argnums=(0, 1)))(model, shift)
    learned = start_estimator(settings, model).learned
    if name == "vimco-double-cv":
        learned = fixed_coefficients({"current": -0.7, "crossed": 0.4, "own": 0.2, "weight": 0.5})
    draws = jax.jit(jax.vmap(lambda key: jax.grad(loss, argnums=(1, 3))(settings, model, learned, shift, y, key)))(
        jax.random.split(jax.random.key(1), 4000)
    )
    for given, exactly in zip(*map(jax.tree.leaves, (draws, wanted)), strict=True):
        error = np.std(given, axis=0) / np.sqrt(len(given))
        assert np.all(np.abs(np.mean(given, axis=0) - exactly) < 5 * error + 1e-5)
