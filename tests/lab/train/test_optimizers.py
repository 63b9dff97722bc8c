"""Adam and the tracker of the variance against their definitions in NumPy."""

import jax.numpy as jnp
import numpy as np
import optax

from doublecv.lab.train import optimizers
from doublecv.lab.train.optimizers import adam, average


def test_adam_takes_the_steps_of_its_definition():
    random = np.random.RandomState(0)
    parameters = {"w": jnp.array(random.randn(3, 2), jnp.float32), "b": jnp.zeros(2)}
    optimizer = adam(0.01, first_decay=0.8)
    state = optimizer.init(parameters)
    p, m, v = np.asarray(parameters["w"], dtype=float), np.zeros((3, 2)), np.zeros((3, 2))
    for step in range(5):
        g = random.randn(3, 2)
        gradient = {"w": jnp.array(g, jnp.float32), "b": jnp.ones(2)}
        updates, state = optimizer.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        m, v = 0.8 * m + 0.2 * g, 0.999 * v + 0.001 * g**2
        rate = 0.01 * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.8 ** (step + 1))
        p = p - rate * m / (np.sqrt(v) + 1e-7)
        np.testing.assert_allclose(parameters["w"], p, rtol=2e-5)
    np.testing.assert_allclose(parameters["b"], -0.05, rtol=2e-4)


def test_a_scale_of_zero_moves_nothing():
    optimizer = adam(0.1)
    updates, state = optimizer.update(jnp.ones(3), optimizer.init(jnp.zeros(3)), scale=jnp.float32(0))
    assert not updates.any()
    assert state.steps == 1


def test_the_tracker_finds_the_variance_of_steady_noise():
    random = np.random.RandomState(1)
    steps, batch = 3000, 4
    encoder = (2 + 3 * random.randn(steps, 50)).astype(np.float32)
    logits = (1 + 0.5 * random.randn(steps, batch, 20)).astype(np.float32)
    tracker, square = optimizers.start_tracker({"w": jnp.zeros(50)}, 20), {"w": jnp.zeros(50)}
    for of_encoder, of_logits in zip(encoder, logits, strict=True):
        tracker = optimizers.update_tracker(tracker, {"w": of_encoder}, jnp.asarray(of_logits))
        square = average(0.999, square, {"w": of_encoder**2})
    found = optimizers.encoder_variance(tracker, square, jnp.int32(steps))
    np.testing.assert_allclose(found, 9, rtol=0.03)
    np.testing.assert_allclose(optimizers.logits_variance(tracker, jnp.int32(steps)), 0.25, rtol=0.03)


def test_the_tracker_is_debiased_from_the_first_step_on():
    tracker = optimizers.start_tracker(jnp.zeros(1), 2)
    tracker = optimizers.update_tracker(tracker, jnp.array([3.0]), jnp.array([[1.0, 5.0], [3.0, 5.0]]))
    np.testing.assert_allclose(optimizers.encoder_variance(tracker, jnp.array([9e-3]), jnp.int32(1)), 0, atol=5e-3)
    np.testing.assert_allclose(optimizers.logits_variance(tracker, jnp.int32(1)), 0.5, atol=5e-3)
