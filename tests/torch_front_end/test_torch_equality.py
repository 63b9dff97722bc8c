"""On the same noise, torch gives what the formulas give in NumPy and what the JAX front-end gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch_setups import every_estimator, make_coefficients, make_estimator, make_expectation

import doublecv as dcv
import doublecv.jax
import doublecv.torch
from problems import make_logits, make_problem

TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
WEIGHTS = np.array([0.5, -1.5, 0.0, 2.0])
"""The loss's weights: a batch element may be maximised, and it may not count."""


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


class Setup:
    def __init__(self, name, family, dtype):
        self.dtype = dtype
        self.problem = make_problem("network", family)
        self.estimator, self.torch_estimator = make_estimator(name, 2, self.problem, family, dtype)
        self.logits = make_logits(family, batch=(4,)).astype(dtype)
        self.q = family(logits=self.logits)
        self.jax_q = family(logits=jnp.asarray(self.logits))
        self.torch_q = family(logits=torch.tensor(self.logits, requires_grad=True))
        self.key = jax.random.key(3)
        self.noise = np.array(jax.random.uniform(self.key, self.estimator.noise_shape(self.q), dtype))
        self.torch_noise = torch.tensor(self.noise)

    def close(self, actual, wanted):
        tolerance = TOLERANCE[self.dtype]
        actual = actual.detach().numpy() if isinstance(actual, torch.Tensor) else np.asarray(actual)
        assert actual.dtype == np.dtype(self.dtype)
        np.testing.assert_allclose(actual, np.asarray(wanted), rtol=tolerance, atol=tolerance)

    def trees_close(self, actual, wanted):
        assert actual.keys() == wanted.keys()
        for name, value in wanted.items():
            if isinstance(value, dict):
                self.trees_close(actual[name], value)
            else:
                self.close(actual[name], value)


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_estimate_equals_the_formulas_in_numpy(name, family, dtype):
    setup = Setup(name, family, dtype)
    expectation = make_expectation(setup.torch_estimator, getattr(torch, dtype))
    result = doublecv.torch.estimate(
        setup.problem.f, setup.torch_q, setup.torch_estimator, expectation.coefficients(), noise=setup.torch_noise
    )
    x = setup.estimator.draw(setup.q, setup.noise)
    setup.close(result.evaluation.x, x)
    setup.close(result.value, setup.problem.f(x).mean(axis=0))
    optional = {"df": setup.problem.df(x)}
    if setup.estimator.needs_mean:
        optional |= {"f_mean": setup.problem.f(setup.q.mean), "df_mean": setup.problem.df(setup.q.mean)}
    if setup.estimator.relaxed_points:
        # NumPy cannot differentiate the control variate; the comparison with JAX checks that part.
        optional |= {field: getattr(result.evaluation, field).numpy() for field in ("control", "dcontrol")}
    evaluation = dcv.Evaluation(x, setup.problem.f(x), **optional)
    gradient = setup.estimator.gradient(setup.q, evaluation, make_coefficients(setup.estimator))
    setup.close(result.gradient, gradient)


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_estimate_equals_jax(name, family, dtype):
    setup = Setup(name, family, dtype)
    expectation = make_expectation(setup.torch_estimator, getattr(torch, dtype))
    actual = doublecv.torch.estimate(
        setup.problem.f, setup.torch_q, setup.torch_estimator, expectation.coefficients(), noise=setup.torch_noise
    )
    coefficients = jax.tree.map(jnp.asarray, make_coefficients(setup.estimator))
    wanted = doublecv.jax.estimate(setup.problem.f, setup.jax_q, setup.estimator, coefficients, setup.key)
    setup.close(actual.value, wanted.value)
    setup.close(actual.gradient, wanted.gradient)
    setup.trees_close(actual.coefficient_gradient, wanted.coefficient_gradient)
    for field in dcv.Evaluation.fields:
        if (value := getattr(wanted.evaluation, field)) is not None:
            setup.close(getattr(actual.evaluation, field), value)


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_backward_equals_jax_with_any_weights_in_the_loss(name, family, dtype):
    setup = Setup(name, family, dtype)
    expectation = make_expectation(setup.torch_estimator, getattr(torch, dtype))
    weights = WEIGHTS.astype(dtype)
    before = {name: average.clone() for name, average in expectation.named_buffers()}
    values = expectation.train()(setup.problem.f, setup.torch_q, noise=setup.torch_noise)
    (values * torch.tensor(weights)).sum().backward()

    def loss(logits, coefficients):
        q = family(logits=logits)
        values = doublecv.jax.expect(setup.problem.f, q, setup.estimator, coefficients, setup.key)
        return (values * weights).sum(), values

    coefficients = jax.tree.map(jnp.asarray, make_coefficients(setup.estimator))
    gradient, wanted = jax.grad(loss, argnums=(0, 1), has_aux=True)(setup.jax_q.logits, coefficients)
    setup.close(values, wanted)
    setup.close(setup.torch_q.logits.grad, gradient[0])
    flat = {".".join(key.key for key in path): leaf for path, leaf in jax.tree.leaves_with_path(gradient[1])}
    gradients = {name: parameter.grad for name, parameter in expectation.named_parameters()}
    for name, average in expectation.named_buffers():
        # Running averages move by themselves, with rate 0.01.
        setup.close(average, before[name].numpy() - 0.01 * np.asarray(flat.pop(name)))
        assert not torch.equal(average, before[name])
    setup.trees_close(gradients, flat)


@pytest.mark.parametrize("name", ["double-cv", "rebar", "relax"])
def test_pullback_equals_jax(x64, name):
    dtype = "float64"
    setup = Setup(name, dcv.Bernoulli, dtype)
    matrix = np.random.default_rng(6).normal(size=(2, 3)).astype(dtype)
    features = np.random.default_rng(7).normal(size=(4, 2)).astype(dtype)
    weights = WEIGHTS.astype(dtype)

    parameters = torch.tensor(matrix, requires_grad=True)
    logits = torch.tanh(torch.tensor(features) @ parameters)
    expectation = make_expectation(setup.torch_estimator, getattr(torch, dtype))
    values = expectation(
        setup.problem.f,
        dcv.Bernoulli(logits=logits),
        noise=setup.torch_noise,
        pullback=lambda g: torch.autograd.grad(logits, parameters, g, create_graph=True),
    )
    (values * torch.tensor(weights)).sum().backward()

    def loss(matrix, coefficients):
        logits, pullback = jax.vjp(lambda matrix: jnp.tanh(features @ matrix), matrix)
        q = dcv.Bernoulli(logits=logits)
        values = doublecv.jax.expect(setup.problem.f, q, setup.estimator, coefficients, setup.key, pullback=pullback)
        return (values * weights).sum()

    coefficients = jax.tree.map(jnp.asarray, make_coefficients(setup.estimator))
    wanted = jax.grad(loss, argnums=(0, 1))(jnp.asarray(matrix), coefficients)
    setup.close(parameters.grad, wanted[0])
    flat = {".".join(key.key for key in path): leaf for path, leaf in jax.tree.leaves_with_path(wanted[1])}
    setup.trees_close({name: parameter.grad for name, parameter in expectation.named_parameters()}, flat)
