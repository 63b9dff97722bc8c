"""What a step costs, read off the compiled program: matrix products and flops, not seconds."""

import re

import jax
import jax.numpy as jnp
import pytest

import doublecv as dcv
from doublecv.jax import Expectation

KEY = jax.random.key(0)
BATCH, VARIABLES, HIDDEN, PIXELS, SAMPLES = 20, 10, 100, 300, 4


def compiled(estimator, use_input_gradient=False):
    """The gradient of an expectation of a two-layer network, in the network, the logits and the learned state."""
    shapes = {"first": (VARIABLES, HIDDEN), "second": (HIDDEN, PIXELS)}
    parameters = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    logits = jax.ShapeDtypeStruct((BATCH, VARIABLES), jnp.float32)
    shift = jax.ShapeDtypeStruct((SAMPLES, BATCH, VARIABLES), jnp.float32)

    expectation = Expectation(estimator)

    def loss(parameters, logits, learned, shift, key):
        def f(x):
            x = x + shift if use_input_gradient else x
            return jnp.sum(jnp.tanh(jnp.tanh(x @ parameters["first"]) @ parameters["second"]), -1)

        return expectation(f, dcv.Bernoulli(logits), learned, key).mean()

    argnums = (0, 1, 2, 3) if use_input_gradient else (0, 1, 2)
    return optimized(jax.grad(loss, argnums=argnums), parameters, logits, estimator.init(), shift, KEY)


def optimized(function, *arguments):
    """The program as users get it; the rest of the suite compiles in haste."""
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        return jax.jit(function).lower(*arguments).compile()
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


def matrix_products(program):
    """The shapes of the results of all matrix products."""
    return sorted(re.findall(r"= f32\[([\d,]*)\]\S* dot\(", program.as_text()))


def flops(program):
    return program.cost_analysis()["flops"]


@pytest.fixture(scope="module")
def rloo():
    return compiled(dcv.RLOO(SAMPLES))


@pytest.fixture(scope="module")
def double_cv():
    return compiled(dcv.DoubleCV(SAMPLES, learning="gradient"))


def test_double_cv_adds_the_input_gradient_of_the_first_layer_and_no_other_product(rloo, double_cv):
    """RLOO has no use for the gradient of f in x, so XLA prunes its one product; all others are shared."""
    added = list(matrix_products(double_cv))
    for shape in matrix_products(rloo):
        added.remove(shape)
    assert len(matrix_products(rloo)) == 5
    assert added == [f"{SAMPLES * BATCH},{VARIABLES}"]


@pytest.mark.slow
def test_double_cv_has_as_many_products_as_rloo_where_the_input_gradient_is_wanted_anyway(double_cv):
    """As it is in a model with parameters below x: then the zero cost of the paper holds to the letter."""
    rloo = compiled(dcv.RLOO(SAMPLES), use_input_gradient=True)
    both = compiled(dcv.DoubleCV(SAMPLES, learning="gradient"), use_input_gradient=True)
    assert matrix_products(both) == matrix_products(rloo) == matrix_products(double_cv)
    assert flops(both) < 1.02 * flops(rloo)


def test_double_cv_takes_at_most_two_percent_more_flops(rloo, double_cv):
    assert flops(rloo) < flops(double_cv) < 1.02 * flops(rloo)


@pytest.mark.parametrize(
    "estimator", [dcv.DisARM(SAMPLES), pytest.param(dcv.ARMS(SAMPLES), marks=pytest.mark.slow)], ids=str
)
def test_coupled_samples_cost_no_product(estimator, rloo):
    program = compiled(estimator)
    assert matrix_products(program) == matrix_products(rloo)


def test_the_count_sees_a_second_backward_pass(double_cv):
    """The check can fail: with f differentiated apart from the model, there are products more."""

    def loss(parameters, x):
        def f(x):
            return jnp.sum(jnp.tanh(jnp.tanh(x @ parameters["first"]) @ parameters["second"]), -1)

        values, pullback = jax.vjp(f, x)
        return values.mean() + jax.lax.stop_gradient(jnp.sum(pullback(jnp.ones_like(values))[0] ** 2))

    shapes = {"first": (VARIABLES, HIDDEN), "second": (HIDDEN, PIXELS)}
    parameters = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((SAMPLES, BATCH, VARIABLES), jnp.float32)
    program = optimized(jax.value_and_grad(loss), parameters, x)
    assert len(matrix_products(program)) > len(matrix_products(double_cv))
