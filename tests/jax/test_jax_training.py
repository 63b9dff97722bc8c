"""The same unchanged loop trains every registered estimator, in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.jax import Expectation
from problems import BINARY, samples_for

STEPS, RATE = 150, 0.1
TARGET = np.random.default_rng(0).integers(0, 2, size=(4, 3)).astype(np.float32)
"""The bits that the encoder should learn to give, for each of four inputs."""


def train(name, steps=STEPS, seed=0):
    """Return the exact loss after training; nothing here depends on the estimator but its name."""
    expectation = Expectation(estimators.make(name, samples=samples_for(name)))
    y = jnp.eye(4)
    params = {"encoder": jnp.zeros((4, 3)), "decoder": jnp.zeros(3)}
    target = jnp.asarray(TARGET)

    def encode(params, y):
        return dcv.Bernoulli(logits=y @ params["encoder"])

    def f_of(params):
        def f(x):
            shifted = x + 0.1 * jnp.tanh(params["decoder"])
            return ((shifted - target) ** 2).sum(-1) + (shifted[..., 0] - shifted[..., 1]) ** 2

        return f

    def loss(params, learned, key, y):
        value, aux = expectation(
            lambda x: (f_of(params)(x), x.mean()), encode(params, y), learned, key, context=y, has_aux=True
        )
        return value.mean(), aux

    optimizer = optax.adam(RATE)

    @jax.jit
    def run(params, state, keys):
        def step(carry, key):
            params, optimizer_state, state = carry
            (grads, learned_grads), _ = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, state.learned, key, y)
            updates, optimizer_state = optimizer.update(grads, optimizer_state)
            state = expectation.update(learned_grads, state)
            return (optax.apply_updates(params, updates), optimizer_state, state), None

        return jax.lax.scan(step, (params, optimizer.init(params), state), keys)[0]

    state = expectation.init(encode(params, y), context=y)
    params, _, state = run(params, state, jax.random.split(jax.random.key(seed), steps))
    finite = all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(state))
    assert finite, "the state of the estimator is not finite"
    return float(dcv.exact_mean(f_of(params), encode(params, y)).mean())


FAST = ["double-cv", "rebar", "surrogate-quadratic-double-cv"]


@pytest.fixture(scope="module")
def rloo():
    return train("rloo")


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in BINARY if n != "rloo"]
)
def test_the_loop_trains_every_estimator(name, rloo):
    """The loss ends close to RLOO's, which falls from above 1 towards 0.

    REINFORCE, REBAR and RELAX end 0.03 to 0.06 above it over five seeds: they have no leave-one-out baseline, or learn
    their control variate only during these steps.
    """
    assert rloo < 0.15
    assert train(name) < rloo + 0.1
