"""Estimators' variances at the same parameters and on the same batch, against the diagnostics of the library."""

import jax
import jax.numpy as jnp
import pytest
from doublecv.diagnostics import compare
from tiny_images import tiny_dataset, tiny_settings

from doublecv import estimators
from doublecv.lab.train.comparison import make_comparison
from doublecv.lab.train.step import make_model, start_coefficients
from doublecv.lab.vae.batches import observe
from doublecv.lab.vae.objective import elbo

NAMES = ("rloo", "double-cv", "disarm", "relax")


def test_variances_are_those_of_the_diagnostics():
    settings = tiny_settings(compare_variance=NAMES, compare_draws=1000, estimator="rloo", likelihood="gaussian")
    model = jax.tree.map(lambda leaf: 2 * leaf + 0.1, make_model(settings, 6, jax.random.key(0)))
    images = jnp.asarray(tiny_dataset().train[:5])
    key = jax.random.key(1)
    found = make_comparison(settings)(model, start_coefficients(settings, model, key), images, key)
    assert set(found) == set(NAMES)
    y = observe(key, images, "gaussian")
    q = model.posterior(model.encoder(y))
    f = elbo(model, y, q, "sampled").f
    known = [estimators.make(name, 2) for name in NAMES if name != "relax"]
    wanted = compare(known, f, q, jax.random.key(2), 1000)
    for row in wanted.rows:
        assert float(found[row.name]) == pytest.approx(row.variance, abs=6 * row.standard_error)
    assert found["double-cv"] < 0.95 * found["rloo"]
    assert found["relax"] > 0


def test_the_trained_estimator_is_measured_with_its_own_coefficients():
    settings = tiny_settings(compare_variance=("double-cv", "rloo"), compare_draws=300, estimator="double-cv")
    model = make_model(settings, 6, jax.random.key(0))
    images = jnp.asarray(tiny_dataset().train[:5])
    comparison = make_comparison(settings)
    at_zero = comparison(model, {"alpha": jnp.float32(0)}, images, jax.random.key(1))
    far = comparison(model, {"alpha": jnp.float32(9)}, images, jax.random.key(1))
    assert float(at_zero["double-cv"]) == pytest.approx(float(at_zero["rloo"]), rel=1e-4)
    assert float(far["rloo"]) == float(at_zero["rloo"])
    assert far["double-cv"] > 2 * far["rloo"]
