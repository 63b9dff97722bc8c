"""Estimators' variances at the same parameters and on the same batch, against the enumeration of all outcomes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_images import tiny_dataset, tiny_settings

from doublecv.estimators import Learned, fixed_coefficients, make
from doublecv.exact import exact_moments
from doublecv.lab.train.comparison import make_comparison
from doublecv.lab.train.step import make_model
from doublecv.lab.vae.batches import observe
from doublecv.lab.vae.objective import elbo

NAMES = ("rloo", "double-cv", "disarm", "relax")
NOTHING = Learned({}, {}, {})


def exact_variance(f, q, name, **coefficients):
    learned = fixed_coefficients(coefficients) if coefficients else None
    return float(np.mean(exact_moments(f, q, make(name, 2), learned).variance))


def test_variances_are_those_of_all_outcomes():
    settings = tiny_settings(compare_variance=NAMES, compare_draws=2000, estimator="rloo", likelihood="gaussian")
    model = jax.tree.map(lambda leaf: 2 * leaf + 0.1, make_model(settings, 6, jax.random.key(0)))
    images = jnp.asarray(tiny_dataset().train[:5])
    found = make_comparison(settings)(model, NOTHING, images, jax.random.key(1))
    assert set(found) == set(NAMES)
    y = observe(jax.random.key(1), images, "gaussian")
    q = model.posterior(model.encoder(y))
    f = elbo(model, y, q, "sampled").f
    assert float(found["rloo"]) == pytest.approx(exact_variance(f, q, "rloo"), rel=0.1)
    assert float(found["disarm"]) == pytest.approx(exact_variance(f, q, "disarm"), rel=0.1)
    # Of the other estimators that are linear in coefficients, the best coefficients are used.
    best = min(exact_variance(f, q, "double-cv", alpha=alpha) for alpha in np.linspace(-2, 0, 21))
    assert float(found["double-cv"]) == pytest.approx(best, rel=0.1)
    assert found["double-cv"] < 0.95 * found["rloo"]
    assert found["relax"] > 0


def test_the_trained_estimator_is_measured_with_its_own_state():
    settings = tiny_settings(compare_variance=("double-cv", "rloo"), compare_draws=300, estimator="double-cv")
    model = make_model(settings, 6, jax.random.key(0))
    images = jnp.asarray(tiny_dataset().train[:5])
    comparison = make_comparison(settings)
    at_zero = comparison(model, Learned({"alpha": jnp.float32(0)}, {}, {}), images, jax.random.key(1))
    far = comparison(model, Learned({"alpha": jnp.float32(9)}, {}, {}), images, jax.random.key(1))
    assert float(at_zero["double-cv"]) == pytest.approx(float(at_zero["rloo"]), rel=1e-4)
    assert float(far["rloo"]) == float(at_zero["rloo"])
    assert far["double-cv"] > 2 * far["rloo"]
