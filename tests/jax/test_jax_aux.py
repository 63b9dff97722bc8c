"""Auxiliary output in JAX: metrics, gradients through it, and the state of flax modules in and out; `fold`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import doublecv as dcv
from doublecv import estimators
from doublecv.jax import Expectation, fold
from problems import BINARY, make_estimator, make_learned

KEY = jax.random.key(1)
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
W = jnp.asarray(np.random.default_rng(1).normal(size=(4, 2)), jnp.float32)
NAMES = ("rloo", "double-cv", "muprop", "quadratic-double-cv", "rebar")


def f_with_aux(w):
    def f(x):
        hidden = jnp.tanh(x @ w)
        return hidden.sum(-1), {"hidden": hidden, "count": jnp.asarray(x.sum(), jnp.int32), "nothing": None}

    return f


def setup(name):
    estimator = make_estimator(name)
    learned = make_learned(estimator, dcv.Bernoulli(LOGITS))
    return Expectation(estimator), jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), learned)


@pytest.mark.parametrize("name", NAMES)
def test_aux_comes_back_and_has_the_gradient_of_an_ordinary_function(name):
    expectation, learned = setup(name)

    @jax.jit
    def run(w, logits):
        def loss(w, logits):
            value, aux = expectation(f_with_aux(w), dcv.Bernoulli(logits), learned, KEY, has_aux=True)
            return value.mean() + 3 * (aux["hidden"].mean(0) ** 2).sum(), (value, aux)

        explicit = expectation.estimate(f_with_aux(w), dcv.Bernoulli(logits), learned, KEY, has_aux=True)
        x = explicit.evaluation.x

        def ordinary(w):
            values, aux = f_with_aux(w)(x)
            return values.mean() + 3 * (aux["hidden"].mean(0) ** 2).sum()

        gradients, (value, aux) = jax.grad(loss, argnums=(0, 1), has_aux=True)(w, logits)
        return gradients, value, aux, explicit, jax.grad(ordinary)(w)

    (of_w, of_logits), value, aux, explicit, wanted = run(W, LOGITS)
    np.testing.assert_allclose(value, explicit.value, rtol=1e-6)
    assert aux["hidden"].shape == (expectation.estimator.samples, 3, 2)
    assert aux["count"] == explicit.evaluation.x.sum() == explicit.aux["count"]
    np.testing.assert_allclose(aux["hidden"], explicit.aux["hidden"], rtol=1e-6)
    np.testing.assert_allclose(of_w, wanted, rtol=1e-4, atol=1e-6)
    # The samples are constants for the auxiliary output: it must not reach the estimate.
    np.testing.assert_allclose(of_logits, explicit.gradient / 3, rtol=1e-4, atol=1e-6)


class Model(nnx.Module):
    """A decoder with batch normalization and dropout."""

    def __init__(self, rngs):
        self.inner = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.outer = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(self.dropout(nnx.relu(self.norm(self.inner(x)))))[..., 0]


@pytest.mark.parametrize("name", ["rloo", "quadratic-double-cv"])
def test_flax_modules_with_batch_normalization_and_dropout(name):
    """The state goes into f as a value and comes out as auxiliary output; every step has another dropout mask."""
    graph, parameters, state = nnx.split(Model(nnx.Rngs(0)), nnx.Param, ...)
    expectation, learned = setup(name)

    @jax.jit
    def step(parameters, state, logits, key):
        def loss(parameters, logits):
            def f(x):
                model = nnx.merge(graph, parameters, state, copy=True)
                values = model(x)
                return values, (nnx.state(model, nnx.Not(nnx.Param)), values)

            value, (state_after, values) = expectation(f, dcv.Bernoulli(logits), learned, key, has_aux=True)
            return value.mean(), (state_after, values)

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(parameters, logits)

    (of_parameters, of_logits), (after, first) = step(parameters, state, LOGITS, KEY)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    before_mean, after_mean = state["norm"]["mean"][...], after["norm"]["mean"][...]
    assert np.any(np.asarray(before_mean) != np.asarray(after_mean))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((of_parameters, of_logits)))
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(of_parameters))
    _, (_, second) = step(parameters, after, LOGITS, KEY)
    assert np.any(np.asarray(first) != np.asarray(second)), "the same samples, and another dropout mask"


def test_a_closure_that_leaks_is_explained():
    model, (expectation, learned) = Model(nnx.Rngs(0)), setup("rloo")

    def loss(logits):
        return expectation(model, dcv.Bernoulli(logits), learned, KEY).mean()

    with pytest.raises(
        TypeError, match=r"f changes state that lives outside of it .* has_aux=True; for flax, call nnx"
    ):
        jax.grad(loss)(LOGITS)


def test_fold_repeats_the_data_and_folds_the_samples_into_the_batch():
    expectation, learned = setup("double-cv")
    data, labels, seen = jnp.arange(6.0).reshape(3, 2), jnp.arange(3), []

    def per_example(z, y, label):
        seen.append((z.shape, y["data"].shape, label.shape))
        return jnp.tanh(z @ W * y["data"]).sum(-1) + label, z

    def gradient(f):
        def loss(logits):
            value, aux = expectation(f, dcv.Bernoulli(logits), learned, KEY, has_aux=True)
            return value.sum(), aux

        return jax.jit(jax.grad(loss, has_aux=True))(LOGITS)

    folded, aux = gradient(fold(per_example, {"data": data}, labels))
    assert seen[0] == ((6, 4), (6, 2), (6,))
    assert aux.shape == (6, 4)
    wanted, _ = gradient(lambda x: (jnp.tanh(x @ W * data).sum(-1) + labels, x))
    np.testing.assert_allclose(folded, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", BINARY)
def test_init_returns_something_usable_for_every_name(name):
    expectation = Expectation(estimators.make(name, samples=4))
    state = expectation.init(dcv.Bernoulli(LOGITS))
    jax.eval_shape(
        lambda learned: expectation.estimate(lambda x: (x**2).sum(-1), dcv.Bernoulli(LOGITS), learned, KEY).gradient,
        state.learned,
    )
