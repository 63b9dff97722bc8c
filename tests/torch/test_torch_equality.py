"""On the same noise, torch gives what the formulas give in NumPy and what the JAX front-end gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch_setups import every_estimator, make_all

import doublecv as dcv
import doublecv.jax
from doublecv.estimators import Evaluation
from doublecv.estimators.evaluation import FIELDS
from problems import make_problem

WEIGHTS = np.array([0.5, -1.5, 0.0, 2.0])
"""The loss's weights: a batch element may be maximized, and it may not count."""

pytestmark = pytest.mark.usefixtures("x64")


class Setup:
    """The same problem, noise and learned state in torch, NumPy and JAX."""

    def __init__(self, name, family):
        self.problem, self.family = make_problem("network", family), family
        self.expectation, self.torch_q, self.torch_context = make_all(name, family)
        self.estimator = self.expectation.estimator
        self.logits = self.torch_q.logits.detach().numpy()
        self.context = None if self.torch_context is None else self.torch_context.numpy()
        state = {key: value.detach().clone().numpy() for key, value in self.expectation.state_dict().items()}
        self.start = self.estimator.init(family(logits=self.logits), self.context)
        self.learned = self.start._replace(
            numbers={key: state[key] for key in self.start.numbers},
            averages={key: state[key] for key in self.start.averages},
        )
        self.key = jax.random.key(3)
        self.noise = np.array(jax.random.uniform(self.key, self.estimator.noise_shape(family(logits=self.logits))))
        self.options = {"noise": torch.tensor(self.noise), "context": self.torch_context}


def close(actual, wanted):
    actual = actual.detach().numpy() if isinstance(actual, torch.Tensor) else np.asarray(actual)
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, np.asarray(wanted), rtol=1e-10, atol=1e-12)


def trees_close(actual, wanted):
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        close(actual[name], value)


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_estimate_equals_the_formulas_in_numpy(name, family):
    setup = Setup(name, family)
    problem, estimator, q = setup.problem, setup.estimator, family(logits=setup.logits)
    result = setup.expectation.estimate(problem.f, setup.torch_q, **setup.options)
    x = estimator.draw(q, setup.noise)
    close(result.evaluation.x, x)
    close(result.value, problem.f(x).mean(axis=0))
    # NumPy cannot differentiate the control variate; the comparison with JAX checks that part.
    relaxed = {
        field: None if (tensor := getattr(result.evaluation, field)) is None else tensor.numpy()
        for field in ("control", "dcontrol")
    }
    mean = (problem.f(q.mean), problem.df(q.mean)) if estimator.needs.mean else (None, None)
    expected_f = problem.expected_f(q) if estimator.needs.expected_f else None
    evaluation = Evaluation(x, problem.f(x), problem.df(x), *mean, expected_f, **relaxed)
    close(result.gradient, estimator.apply(q, evaluation, setup.learned, None, setup.context).gradient)


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_backward_and_estimate_equal_jax_with_any_weights_in_the_loss(name, family):
    setup = Setup(name, family)
    problem, expectation = setup.problem, setup.expectation
    explicit = expectation.estimate(problem.f, setup.torch_q, **setup.options)
    values = expectation.train()(problem.f, setup.torch_q, **setup.options)
    (values * torch.tensor(WEIGHTS)).sum().backward()
    in_jax = doublecv.jax.Expectation(setup.estimator)
    learned = jax.tree.map(jnp.asarray, setup.learned)

    @jax.jit
    def run(logits, learned):
        def loss(logits, learned):
            values = in_jax(problem.f, family(logits=logits), learned, setup.key, context=setup.context)
            return (values * WEIGHTS).sum(), values

        result = in_jax.estimate(problem.f, family(logits=logits), learned, setup.key, context=setup.context)
        gradient, values = jax.grad(loss, argnums=(0, 1), has_aux=True)(logits, learned)
        state = doublecv.jax.State(learned, in_jax.optimizer.init(learned.numbers))
        return gradient, values, in_jax.update(gradient[1], state).learned.averages, result

    (of_logits, of_learned), wanted, averages, result = run(jnp.asarray(setup.logits), learned)
    close(values, wanted)
    close(setup.torch_q.logits.grad, of_logits)
    trees_close({name: parameter.grad for name, parameter in expectation.named_parameters()}, of_learned.numbers)
    trees_close(dict(expectation.named_buffers()), averages)
    for key, before in setup.learned.averages.items():
        assert key.endswith("fallen") or np.any(np.asarray(averages[key]) != before), key
    close(explicit.value, result.value)
    close(explicit.gradient, result.gradient)
    trees_close(explicit.learned_gradient.numbers, result.learned_gradient.numbers)
    trees_close(explicit.learned_gradient.statistics, result.learned_gradient.statistics)
    for field in FIELDS:
        if (value := getattr(result.evaluation, field)) is not None:
            close(getattr(explicit.evaluation, field), value)


@pytest.mark.parametrize("name", ["double-cv", "rebar", "relax"])
def test_pullback_equals_jax(name):
    setup = Setup(name, dcv.Bernoulli)
    matrix = np.random.default_rng(6).normal(size=(2, 3))
    features = np.random.default_rng(7).normal(size=(4, 2))
    parameters = torch.tensor(matrix, requires_grad=True)
    logits = torch.tanh(torch.tensor(features) @ parameters)
    values = setup.expectation(
        setup.problem.f,
        dcv.Bernoulli(logits=logits),
        pullback=lambda g: torch.autograd.grad(logits, parameters, g, create_graph=True),
        **setup.options,
    )
    (values * torch.tensor(WEIGHTS)).sum().backward()
    in_jax = doublecv.jax.Expectation(setup.estimator)

    def loss(matrix, learned):
        logits, pullback = jax.vjp(lambda matrix: jnp.tanh(features @ matrix), matrix)
        q, options = dcv.Bernoulli(logits=logits), {"pullback": pullback, "context": setup.context}
        return (in_jax(setup.problem.f, q, learned, setup.key, **options) * WEIGHTS).sum()

    learned = jax.tree.map(jnp.asarray, setup.learned)
    wanted = jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(matrix), learned)
    close(parameters.grad, wanted[0])
    trees_close({name: p.grad for name, p in setup.expectation.named_parameters()}, wanted[1].numbers)
