"""Estimators' variances at the parameters of a model, against the enumeration of all outcomes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doublecv.diagnostics.meter import mean_variance
from doublecv.estimators import Learned, fixed_coefficients, make
from doublecv.exact import exact_moments
from doublecv.lab.train.step import make_model
from doublecv.lab.vae.likelihoods import observe
from doublecv.lab.vae.objective import elbo
from doublecv.lab.variance.measure import measure_gradient
from tiny_images import tiny_dataset, tiny_settings

SETTINGS = tiny_settings(likelihood="gaussian")
MODEL = jax.tree.map(lambda leaf: 2 * leaf + 0.1, make_model(SETTINGS, 6, jax.random.key(0)))
Y = observe(jax.random.key(1), jnp.asarray(tiny_dataset().train[:5]), "gaussian")


def drawn_variance(name, draws, learned=None):
    keys = jax.random.key(1), jax.random.key(2)
    settings = tiny_settings(likelihood="gaussian", estimator=name)
    return float(mean_variance(jax.jit(lambda: measure_gradient(settings, MODEL, Y, learned, *keys, draws))()))


def exact_variance(name, **coefficients):
    """Return the exact variance, for each of the values of the coefficients if they are arrays."""
    q = MODEL.posterior(MODEL.encoder(Y))

    def variance(coefficients):
        learned = fixed_coefficients({})._replace(numbers=coefficients) if coefficients else None
        return jnp.mean(exact_moments(elbo(MODEL, Y, q), q, make(name, 2), learned).variance)

    return np.asarray(jax.jit(jax.vmap(variance) if coefficients else variance)(coefficients))


def test_variances_are_those_of_all_outcomes():
    rloo, disarm, double_cv = (drawn_variance(name, 2000) for name in ("rloo", "disarm", "double-cv"))
    assert rloo == pytest.approx(exact_variance("rloo"), rel=0.1)
    assert disarm == pytest.approx(exact_variance("disarm"), rel=0.1)
    # The best coefficients are used.
    best = exact_variance("double-cv", alpha=np.linspace(-2, 0, 21)).min()
    assert double_cv == pytest.approx(best, rel=0.1)
    assert double_cv < 0.95 * rloo


def test_a_learned_state_is_used():
    rloo = drawn_variance("rloo", 300)
    at_zero = drawn_variance("double-cv", 300, Learned({"alpha": jnp.float32(0)}, {}, {}))
    far = drawn_variance("double-cv", 300, Learned({"alpha": jnp.float32(9)}, {}, {}))
    assert at_zero == pytest.approx(rloo, rel=1e-4)
    assert far > 2 * rloo
