"""The errors of the JAX front-end, in the same words, and those that only PyTorch can make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
import doublecv.jax
import doublecv.torch
from doublecv.torch import Expectation, estimate

Q = dcv.Bernoulli(logits=torch.zeros(3, 4))
JAX_Q = dcv.Bernoulli(logits=jnp.zeros((3, 4)))
CATEGORICAL = dcv.Categorical(logits=torch.zeros(3, 2, 4))
JAX_CATEGORICAL = dcv.Categorical(logits=jnp.zeros((3, 2, 4)))


def f(x):
    return x.sum(-1)


def raised(call):
    with pytest.raises((TypeError, ValueError)) as information:
        call()
    return information.type, str(information.value)


MISTAKES = {
    "f that returns x": (lambda x: x, (Q, JAX_Q), dcv.RLOO(2), {}),
    "f that sums over all": (lambda x: x.sum(), (Q, JAX_Q), dcv.DoubleCV(2), {"alpha": 0.0}),
    "f that sums over the samples": (lambda x: x.sum((0, 2)), (Q, JAX_Q), dcv.RLOO(2), {}),
    "f that returns a number": (lambda x: 1.0, (Q, JAX_Q), dcv.RLOO(2), {}),
    "f of the wrong shape at the mean": (lambda x: x, (Q, JAX_Q), dcv.MuProp(2), {}),
    "f that returns a number at the mean": (lambda x: 1.0, (Q, JAX_Q), dcv.MuProp(2), {}),
    "an estimator by its name": (f, (Q, JAX_Q), "rloo", {}),
    "an estimator for Bernoulli": (f, (CATEGORICAL, JAX_CATEGORICAL), dcv.DisARM(2), {}),
    "no network": (f, (Q, JAX_Q), dcv.Relax(1), {"log_temperature": 0.0, "scale": 1.0}),
}
COEFFICIENTS = {
    "coefficients left out": (f, (Q, JAX_Q), dcv.DoubleCV(2), {}),
    "coefficients of another": (f, (Q, JAX_Q), dcv.RLOO(2), {"alpha": 0.0}),
    "coefficients that are no dict": (f, (Q, JAX_Q), dcv.DoubleCV(2), 0.0),
}


@pytest.mark.parametrize("mistake", [*MISTAKES, *COEFFICIENTS])
def test_estimate_raises_what_jax_raises(mistake):
    f, (q, jax_q), estimator, coefficients = (MISTAKES | COEFFICIENTS)[mistake]
    wanted = raised(lambda: doublecv.jax.estimate(f, jax_q, estimator, coefficients, jax.random.key(0)))
    assert raised(lambda: estimate(f, q, estimator, coefficients)) == wanted


@pytest.mark.parametrize("mistake", MISTAKES)
def test_expectation_raises_what_jax_raises(mistake):
    f, (q, jax_q), estimator, coefficients = MISTAKES[mistake]
    wanted = raised(lambda: doublecv.jax.expect(f, jax_q, estimator, coefficients, jax.random.key(0)))
    q = type(q)(logits=q.logits.clone().requires_grad_())
    assert raised(lambda: Expectation(estimator)(f, q)) == wanted


def test_relaxed_points_of_the_wrong_shape():
    estimator = dcv.Rebar(2)
    wanted = raised(
        lambda: doublecv.jax.estimate(lambda x: x, JAX_Q, estimator, estimator.coefficients(), jax.random.key(0))
    )
    assert raised(lambda: estimate(lambda x: x, Q, estimator, estimator.coefficients())) == wanted


def test_q_that_is_no_distribution():
    with pytest.raises(TypeError, match=r"q must be a doublecv.Bernoulli or doublecv.Categorical for RLOO, got Tensor"):
        Expectation(dcv.RLOO(2))(f, torch.zeros(3, 4))
    normal = torch.distributions.Normal(torch.zeros(3, 4), torch.ones(3, 4))
    with pytest.raises(TypeError, match=r"q must be a doublecv.Bernoulli or doublecv.Categorical for RLOO, got Normal"):
        Expectation(dcv.RLOO(2))(f, normal)


@pytest.mark.parametrize("logits", [np.zeros((3, 4)), jnp.zeros((3, 4))], ids=["numpy", "jax"])
def test_logits_of_another_library(logits):
    with pytest.raises(TypeError, match=r"logits of q must be a torch tensor, got (ndarray|ArrayImpl)"):
        Expectation(dcv.RLOO(2))(f, dcv.Bernoulli(logits=logits))


def test_independent_over_other_than_one_axis():
    base = torch.distributions.Bernoulli(logits=torch.zeros(2, 3, 4))
    for axes in (0, 2):
        with pytest.raises(ValueError, match=rf"got reinterpreted_batch_ndims={axes}; flatten the variables"):
            Expectation(dcv.RLOO(2))(f, torch.distributions.Independent(base, axes))


def test_noise():
    expectation = Expectation(dcv.RLOO(2))
    with pytest.raises(ValueError, match=r"noise must have shape \(2, 3, 4\) .*, got shape \(3, 4\)"):
        expectation(f, Q, noise=torch.zeros(3, 4))
    with pytest.raises(TypeError, match=r"noise must have a floating type, got torch.int64"):
        expectation(f, Q, noise=torch.zeros(2, 3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="noise and generator were both given"):
        expectation(f, Q, noise=torch.zeros(2, 3, 4), generator=torch.Generator())


def test_a_network_that_is_nothing_of_the_kind():
    with pytest.raises(TypeError, match=r"coefficient 'network' must be a number, a tensor, .* or an nn.Module, got "):
        Expectation(dcv.Relax(1, network=object(), apply=lambda network, z: z.sum(-1)))


def test_unknown_options():
    with pytest.raises(TypeError, match="expected_g"):
        Expectation(dcv.RStar(2))(f, Q, expected_g=lambda q: q.mean.sum(-1))


@pytest.mark.parametrize("estimator", [dcv.RLOO(2), dcv.DoubleCV(2), dcv.MuProp(2), dcv.Rebar(1)], ids=lambda e: e.name)
def test_differentiated_twice(estimator):
    logits = torch.zeros(3, 4, requires_grad=True)
    expectation = Expectation(estimator)
    model = torch.ones(4, requires_grad=True)
    loss = expectation(lambda x: (model * x).square().sum(-1), dcv.Bernoulli(logits=logits)).square().sum()
    gradients = torch.autograd.grad(loss, [logits, *expectation.parameters()], create_graph=True)
    for gradient in gradients:
        for variable in (logits, model, *expectation.parameters()):
            torch_error = raised(
                lambda gradient=gradient, variable=variable: torch.autograd.grad(
                    gradient.sum(), variable, retain_graph=True
                )
            )
            assert torch_error[0] is TypeError
            assert torch_error[1].startswith("Expectation was differentiated twice, but ")
    assert torch_error[1].split(";")[0].removeprefix("Expectation") == _jax_twice().split(";")[0].removeprefix("expect")


def _jax_twice():
    def gradient(logits):
        q = dcv.Bernoulli(logits=logits)
        return jax.grad(lambda q: doublecv.jax.expect(f, q, dcv.RLOO(2), {}, jax.random.key(0)).sum())(q).logits.sum()

    kind, message = raised(lambda: jax.grad(gradient)(jnp.zeros((3, 4))))
    assert kind is TypeError
    return message


def test_the_model_can_be_differentiated_twice():
    """What f closes over has an ordinary gradient, and so a second derivative."""
    scale = torch.tensor(3.0, requires_grad=True)
    logits = torch.zeros(3, 4, requires_grad=True)
    loss = Expectation(dcv.DoubleCV(2))(lambda x: scale**3 * (1 + x.sum(-1)), dcv.Bernoulli(logits=logits)).sum()
    (first,) = torch.autograd.grad(loss, scale, create_graph=True)
    (second,) = torch.autograd.grad(first, scale)
    torch.testing.assert_close(second, first * 2 / 3)


@pytest.mark.parametrize("estimator", [dcv.RLOO(2), dcv.DoubleCV(2)], ids=lambda e: e.name)
def test_what_is_changed_in_place_is_refused(estimator):
    """Samples, f and logits that changed between forward and backward would give a wrong gradient in silence."""
    logits = torch.zeros(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"in-?place"):
        Expectation(estimator)(lambda x: x.mul_(2).sum(-1), dcv.Bernoulli(logits=logits)).sum().backward()

    kept = []

    def f(x):
        kept.append(x.sum(-1))
        return kept[0]

    loss = Expectation(estimator)(f, dcv.Bernoulli(logits=logits)).sum()
    with torch.no_grad():
        kept[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()

    loss = Expectation(estimator)(lambda x: x.sum(-1), dcv.Bernoulli(logits=logits)).sum()
    with torch.no_grad():
        logits.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
