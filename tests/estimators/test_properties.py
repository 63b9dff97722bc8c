"""What holds for any numbers: properties of the formulas on random evaluations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import doublecv as dcv
from doublecv import estimators
from doublecv.estimators import Antithetic, Evaluation
from problems import BINARY, make_context, make_estimator, make_learned

OF_SAMPLES = [n for n in BINARY if n != "r-star" and not estimators.make(n, samples=4).needs.relaxed_points]
LINEAR_IN_F = [n for n in OF_SAMPLES if n != "rodeo" and "quadratic" not in n]
EXCHANGEABLE = [n for n in OF_SAMPLES if not isinstance(estimators.make(n, samples=4).needs.coupling, Antithetic)]


def random_case(name, seed, family=dcv.Bernoulli, samples=4, batch=(3,)):
    generator = np.random.default_rng(seed)
    event = (5,) if family is dcv.Bernoulli else (2, 3)
    estimator = make_estimator(name, samples)
    q = family(logits=generator.normal(size=(*batch, *event)) * 3)
    x = estimator.draw(q, generator.uniform(size=estimator.noise_shape(q)))
    evaluation = Evaluation(
        x,
        generator.normal(size=(samples, *batch)),
        generator.normal(size=x.shape),
        generator.normal(size=batch),
        generator.normal(size=q.logits.shape),
    )
    context = make_context(batch) if estimator.needs.context else None
    return estimator, q, evaluation, make_learned(estimator, q, context, generator.normal()), context


def gradient(estimator, q, evaluation, learned, context):
    return estimator.apply(q, evaluation, learned, None, context).gradient


def changed(evaluation, **functions):
    fields = {field: getattr(evaluation, field) for field in ("x", "f", "df", "f_mean", "df_mean")}
    return Evaluation(**(fields | {field: function(fields[field]) for field, function in functions.items()}))


@pytest.mark.parametrize("name", LINEAR_IN_F)
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(-100, 100))
def test_scaling_f_scales_the_estimate(name, seed, scale):
    estimator, q, evaluation, *learned = random_case(name, seed)
    scaled = changed(evaluation, **dict.fromkeys(("f", "df", "f_mean", "df_mean"), lambda array: scale * array))
    plain = gradient(estimator, q, evaluation, *learned)
    np.testing.assert_allclose(gradient(estimator, q, scaled, *learned), scale * plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EXCHANGEABLE)
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(4)))
def test_the_order_of_the_samples_does_not_matter(name, seed, order):
    estimator, q, evaluation, *learned = random_case(name, seed)
    shuffled = changed(evaluation, **dict.fromkeys(("x", "f", "df"), lambda array: array[list(order)]))
    plain = gradient(estimator, q, evaluation, *learned)
    np.testing.assert_allclose(gradient(estimator, q, shuffled, *learned), plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["rloo", "double-cv", "double-cv-mean", "disarm", "arms"])
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(-1e3, 1e3))
def test_a_constant_added_to_f_changes_nothing(name, seed, shift):
    estimator, q, evaluation, *learned = random_case(name, seed)
    shifted = changed(evaluation, f=lambda f: f + shift)
    plain = gradient(estimator, q, evaluation, *learned)
    np.testing.assert_allclose(gradient(estimator, q, shifted, *learned), plain, atol=1e-9)


@pytest.mark.parametrize("name", ["reinforce", "rloo", "double-cv", "double-cv-mean", "muprop"])
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_gradient_of_a_one_hot_variable_sums_to_zero(name, seed):
    """Shifting all logits of a variable changes no probability."""
    estimator, q, evaluation, *learned = random_case(name, seed, dcv.Categorical)
    np.testing.assert_allclose(gradient(estimator, q, evaluation, *learned).sum(-1), 0, atol=1e-10)


@pytest.mark.parametrize("name", LINEAR_IN_F)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_batch_elements_do_not_touch_each_other(name, seed):
    estimator, q, evaluation, *learned = random_case(name, seed)
    whole = gradient(estimator, q, evaluation, *learned)
    first = changed(
        evaluation,
        **dict.fromkeys(("x", "f", "df"), lambda array: array[:, :1]),
        **dict.fromkeys(("f_mean", "df_mean"), lambda array: array[:1]),
    )
    alone = gradient(estimator, dcv.Bernoulli(logits=q.logits[:1]), first, *learned)
    np.testing.assert_allclose(alone, whole[:1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("library", ["jax", "torch"])
@pytest.mark.parametrize("name", OF_SAMPLES)
def test_the_same_numbers_in_every_array_library(name, library, x64):
    import jax
    import jax.numpy as jnp
    import torch

    convert = {"jax": jnp.asarray, "torch": torch.as_tensor}[library]
    estimator, q, evaluation, *learned = random_case(name, 0)
    noise = np.random.default_rng(1).uniform(size=estimator.noise_shape(q))
    converted_q = dcv.Bernoulli(logits=convert(q.logits))
    converted = changed(evaluation, **dict.fromkeys(("x", "f", "df", "f_mean", "df_mean"), convert))

    def both(q, noise, evaluation, learned, context):
        return estimator.draw(q, noise), gradient(estimator, q, evaluation, learned, context)

    run = jax.jit(both) if library == "jax" else both
    x, got = run(converted_q, convert(noise), converted, *jax.tree.map(convert, learned))
    np.testing.assert_array_equal(np.asarray(x), estimator.draw(q, noise))
    np.testing.assert_allclose(np.asarray(got), gradient(estimator, q, evaluation, *learned), rtol=1e-11, atol=1e-13)
