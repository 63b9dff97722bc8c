"""Diagnostics of distributions that are drawn in several blocks, in both front-ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
import doublecv.jax
import doublecv.torch

WEIGHTS = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
HEAD = np.array([1.0, -2.0], np.float32)


def layers(weights, zeros):
    return dcv.Layers(dcv.Bernoulli(logits=zeros), lambda lower: dcv.Bernoulli(logits=lower @ weights))


def f(x):
    lower, upper = x
    head = jnp.asarray(HEAD) if isinstance(lower, jax.Array) else torch.tensor(HEAD)
    return (lower.sum(-1) - upper @ head) ** 2


Q_JAX = layers(jnp.asarray(WEIGHTS), jnp.zeros((2, 3)))
Q_TORCH = layers(torch.tensor(WEIGHTS), torch.zeros(2, 3))


def exact_variance_of_rloo():
    """Over all pairs of paths, of the gradient in numbers that are added to the logits."""
    bits = np.array(np.meshgrid(*[[0.0, 1.0]] * 5, indexing="ij")).reshape(5, -1).T
    logits = np.concatenate([np.zeros((32, 3)), bits[:, :3] @ WEIGHTS], axis=1)
    mean = 1 / (1 + np.exp(-logits))
    probability = np.where(bits == 1, mean, 1 - mean).prod(1)
    value = (bits[:, :3].sum(1) - bits[:, 3:] @ HEAD) ** 2
    score = bits - mean
    gradient = 0.5 * (value[:, None] - value)[..., None] * (score[:, None] - score)
    pairs = probability[:, None] * probability
    first = np.einsum("ab,abi->i", pairs, gradient)
    return float(np.mean(np.einsum("ab,abi->i", pairs, gradient**2) - first**2))


def measured(front_end, estimator, learned=None, draws=3000):
    if front_end is doublecv.jax:
        return doublecv.jax.variance(f, Q_JAX, estimator, learned, key=jax.random.key(0), draws=draws)
    generator = torch.Generator().manual_seed(0)
    return doublecv.torch.variance(f, Q_TORCH, estimator, learned, generator=generator, draws=draws // 2)


@pytest.mark.parametrize("front_end", [doublecv.jax, doublecv.torch], ids=["jax", "torch"])
def test_the_variance_is_that_of_all_pairs_of_paths(front_end):
    variance, error = measured(front_end, dcv.RLOO(2))
    assert abs(variance - exact_variance_of_rloo()) < 4 * error < 0.3 * variance


def test_compare_in_jax():
    table = doublecv.jax.compare(
        f, Q_JAX, ["rloo", "double-cv", "quadratic-double-cv"], samples=2, key=jax.random.key(1), draws=500, rounds=1
    )
    assert [row.state for row in table.rows] == ["-", "best", "best"]
    assert table["quadratic-double-cv"].variance < 0.7 * table["double-cv"].variance < 0.7 * table["rloo"].variance
    assert all(row.seconds > 0 for row in table.rows)


def test_compare_in_torch():
    weights = torch.tensor(WEIGHTS, requires_grad=True)
    q = layers(weights, torch.zeros(2, 3, requires_grad=True))
    table = doublecv.torch.compare(
        f,
        q,
        ["rloo", "quadratic-double-cv"],
        samples=2,
        generator=torch.Generator().manual_seed(1),
        draws=300,
        rounds=1,
    )
    assert table["quadratic-double-cv"].variance < 0.6 * table["rloo"].variance
    assert weights.grad is None
    assert all(row.seconds > 0 for row in table.rows)


def test_products_and_sequences_are_measured():
    product = dcv.Product(
        gate=dcv.Bernoulli(logits=jnp.zeros((2, 2))), choice=dcv.Categorical(logits=jnp.zeros((2, 1, 3)))
    )

    def of_product(x):
        return (x["gate"].sum(-1) + (x["choice"] * jnp.arange(3.0)).sum((-1, -2))) ** 2

    causal = jnp.triu(jnp.ones((4, 4)), 1)
    sequence = dcv.Autoregressive(lambda x: x @ causal - 1, 4, batch_shape=(2,))
    for q, function in ((product, of_product), (sequence, lambda x: jnp.sin(x @ jnp.arange(4.0)))):
        table = doublecv.jax.compare(
            function, q, ["rloo", "quadratic-double-cv"], samples=2, key=jax.random.key(0), draws=300, rounds=0
        )
        assert table["quadratic-double-cv"].variance < 0.95 * table["rloo"].variance


@pytest.mark.parametrize("front_end", [doublecv.jax, doublecv.torch], ids=["jax", "torch"])
def test_check_accepts_f_and_finds_one_that_mixes(front_end):
    options = {"key": jax.random.key(0)} if front_end is doublecv.jax else {}
    torch.manual_seed(0)
    q = Q_JAX if front_end is doublecv.jax else Q_TORCH
    # At points where both layers cancel, f has no gradient.
    assert front_end.check(f, q, dcv.DoubleCV(2, learning="gradient"), **options).has_gradient
    with pytest.raises(ValueError, match="f mixes batch elements"):
        front_end.check(lambda x: f(x) - f(x).mean(1)[:, None], q, **options)


@pytest.mark.parametrize("front_end", [doublecv.jax, doublecv.torch], ids=["jax", "torch"])
@pytest.mark.parametrize("name", ["disarm", "reinmax"])
def test_estimators_for_independent_variables_are_refused(front_end, name):
    options = {"key": jax.random.key(0)} if front_end is doublecv.jax else {}
    with pytest.raises(TypeError, match="take one of Reinforce, RLOO, DoubleCV"):
        front_end.compare(f, Q_JAX if options else Q_TORCH, ["rloo", name], samples=2, **options)


def test_paths_are_not_enumerated():
    with pytest.raises(TypeError, match="give a key"):
        doublecv.jax.optimal_coefficients(f, Q_JAX, dcv.DoubleCV(2, learning="gradient"))
    with pytest.raises(TypeError, match="give draws"):
        doublecv.torch.optimal_coefficients(f, Q_TORCH, dcv.DoubleCV(2, learning="gradient"))
