"""The errors of the JAX front-end, in the same words, and those that only PyTorch can make."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
import doublecv.jax
from doublecv import estimators
from doublecv.torch import Expectation, fold, optimal_coefficients, variance
from doublecv.torch import expectation as module

Q = dcv.Bernoulli(logits=torch.zeros(3, 4))
JAX_Q = dcv.Bernoulli(logits=jnp.zeros((3, 4)))
CATEGORICAL = dcv.Categorical(logits=torch.zeros(3, 2, 4))
JAX_CATEGORICAL = dcv.Categorical(logits=jnp.zeros((3, 2, 4)))


def f(x):
    return x.sum(-1)


def leaf(*shape):
    return torch.zeros(shape or (3, 4), requires_grad=True)


def raised(call):
    with pytest.raises((TypeError, ValueError)) as information:
        call()
    return information.type, str(information.value)


def raised_anywhere(call):
    """Return the error without the number of points: f may be evaluated at the samples or at the mean first."""
    kind, message = raised(call)
    return kind, re.sub(r"\(\d, 3", "(points, 3", message)


MISTAKES = {
    "f that returns x": (lambda x: x, (Q, JAX_Q), dcv.RLOO(2)),
    "f that sums over all": (lambda x: x.sum(), (Q, JAX_Q), dcv.DoubleCV(2, learning="gradient")),
    "f that sums over the samples": (lambda x: x.sum((0, 2)), (Q, JAX_Q), dcv.RLOO(2)),
    "f that returns a number": (lambda x: 1.0, (Q, JAX_Q), dcv.RLOO(2)),
    "f of the wrong shape at the mean": (lambda x: x, (Q, JAX_Q), dcv.MuProp(2)),
    "f that returns a pair": (lambda x: (f(x), x), (Q, JAX_Q), dcv.RLOO(2)),
    "f and q swapped": (Q, (f, f), dcv.RLOO(2)),
    "f that is a number": (1.0, (Q, JAX_Q), dcv.RLOO(2)),
    "an estimator for Bernoulli": (f, (CATEGORICAL, JAX_CATEGORICAL), dcv.DisARM(2)),
    "relaxed points of the wrong shape": (lambda x: x, (Q, JAX_Q), dcv.Rebar(2)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_words_are_those_of_jax(mistake):
    f, (q, jax_q), estimator = MISTAKES[mistake]
    in_jax = doublecv.jax.Expectation(estimator)
    jax_f = JAX_Q if f is Q else f
    wanted = raised_anywhere(lambda: in_jax.estimate(jax_f, jax_q, estimator.init(), jax.random.key(0)))
    assert raised_anywhere(lambda: in_jax(jax_f, jax_q, estimator.init(), jax.random.key(0))) == wanted
    assert raised_anywhere(lambda: Expectation(estimator).estimate(f, q)) == wanted
    with_gradient = type(q)(logits=q.logits.clone().requires_grad_()) if hasattr(q, "logits") else q
    assert raised_anywhere(lambda: Expectation(estimator)(f, with_gradient)) == wanted


def test_an_estimator_by_its_name():
    with pytest.raises(TypeError, match=r"estimator must be a doublecv estimator such as .*, got the name 'rloo'"):
        Expectation("rloo")


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


@pytest.mark.parametrize("values", [lambda x: x.detach().numpy().sum(-1), lambda x: jnp.zeros((2, 3))])
def test_an_f_that_returns_another_library(values):
    for call in (Expectation(dcv.RLOO(2)), Expectation(dcv.RLOO(2)).estimate):
        with pytest.raises(TypeError, match=r"f must return a torch tensor, got (ndarray|ArrayImpl); convert it with"):
            call(values, dcv.Bernoulli(logits=leaf()))


def test_independent_over_other_than_one_axis():
    base = torch.distributions.Bernoulli(logits=torch.zeros(2, 3, 4))
    for axes in (0, 2):
        with pytest.raises(ValueError, match=rf"got reinterpreted_batch_ndims={axes}; flatten the variables"):
            Expectation(dcv.RLOO(2))(f, torch.distributions.Independent(base, axes))


def test_indices_in_place_of_one_hot_vectors():
    with pytest.raises(TypeError, match=r"which draws indices; take doublecv\.Categorical"):
        Expectation(dcv.RLOO(2))(f, torch.distributions.Categorical(logits=torch.zeros(3, 4)))


def test_other_arguments():
    expectation = Expectation(dcv.RLOO(2))
    with pytest.raises(TypeError, match=r"generator must be a torch.Generator, .*, got int"):
        expectation(f, Q, generator=0)
    with pytest.raises(TypeError, match=r"context must be a torch tensor \[\*batch, features\], got list"):
        expectation(f, dcv.Bernoulli(leaf()), context=[1.0])
    with pytest.raises(TypeError, match=r"q must be a doublecv.Bernoulli or .* for RLOO, got NoneType"):
        expectation.init(None)
    with pytest.raises(TypeError, match=r"data must be torch tensors, got float; close over anything else in f"):
        expectation(fold(lambda z, y: z.sum(-1), 3.0), Q)
    with pytest.raises(
        TypeError, match=r"estimator must be .*, got the name 'rloo'; make it by doublecv.make\('rloo', samples=4\)"
    ):
        variance(f, Q, "rloo")
    with pytest.raises(TypeError, match="the gradient of f in x is zero everywhere, but double-cv"):
        optimal_coefficients(lambda x: (x > 0.5).float().sum(-1), Q, dcv.DoubleCV(2))


def test_noise():
    expectation = Expectation(dcv.RLOO(2))
    with pytest.raises(ValueError, match=r"noise must have shape \(2, 3, 4\) .*, got shape \(3, 4\)"):
        expectation(f, Q, noise=torch.zeros(3, 4))
    with pytest.raises(TypeError, match=r"noise must have a floating type, got torch.int64"):
        expectation(f, Q, noise=torch.zeros(2, 3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="noise and generator were both given"):
        expectation(f, Q, noise=torch.zeros(2, 3, 4), generator=torch.Generator())


def test_sizes_that_come_from_q():
    expectation = Expectation(dcv.LearnedSurrogate(dcv.RLOO(2)))
    with pytest.raises(
        RuntimeError, match=r"the sizes of the state of LearnedSurrogate come from q; call expectation.i"
    ):
        expectation(f, Q)
    with pytest.raises(ValueError, match="pullback was given, but quadratic-double-cv learns"):
        Expectation(dcv.QuadraticDoubleCV(2))(f, Q, pullback=lambda g: g)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "functional_call"])
def test_the_transforms_of_torch_func(transform):
    expectation = Expectation(dcv.RLOO(2))

    def value(logits):
        return expectation(f, dcv.Bernoulli(logits=logits)).sum()

    calls = {
        "grad": lambda: torch.func.grad(value)(torch.zeros(3, 4)),
        "vmap": lambda: torch.func.vmap(value)(torch.zeros(2, 3, 4)),
        "jvp": lambda: torch.func.jvp(value, (torch.zeros(3, 4),), (torch.ones(3, 4),)),
        "functional_call": lambda: torch.func.grad(
            lambda p: torch.func.functional_call(expectation, p, (f, dcv.Bernoulli(logits=p["logits"]))).sum()
        )({"logits": torch.zeros(3, 4)}),
    }
    with pytest.raises(RuntimeError, match=r"Expectation does not pass through the transforms of torch.func"):
        calls[transform]()


NO_GRADIENT = {
    "a threshold": lambda x: (x > 0.5).float().sum(-1),
    "detach": lambda x: x.detach().sum(-1),
    "an embedding": lambda x: torch.nn.functional.embedding(x.long(), torch.tensor([[1.0], [3.0]])).sum((-1, -2)),
    "rounding": lambda x: x.round().sum(-1),
    "no dependence": lambda x: torch.ones(x.shape[:-1]),
    "a parameter of its own": lambda x: torch.nn.Parameter(torch.ones(())).expand(x.shape[:-1]),
}
NEEDS_GRADIENT = ["double-cv", "quadratic-double-cv", "rodeo", "muprop", "rebar"]


@pytest.mark.parametrize("case", NO_GRADIENT)
@pytest.mark.parametrize("name", NEEDS_GRADIENT)
def test_a_gradient_that_is_identically_zero(name, case):
    expectation = Expectation(estimators.make(name, samples=2))
    for entrance in (expectation, expectation.estimate):
        with pytest.raises(
            TypeError, match=rf"the gradient of f in x is zero everywhere, but {name} needs it.*rloo, disarm"
        ):
            entrance(NO_GRADIENT[case], dcv.Bernoulli(leaf()))
    Expectation(dcv.RLOO(2))(NO_GRADIENT[case], dcv.Bernoulli(leaf())).sum().backward()


@pytest.mark.parametrize("name", NEEDS_GRADIENT)
def test_a_gradient_that_is_zero_at_these_points(name):
    """f may be constant in one step, or flat at the corners: it is differentiable, so this is no mistake."""
    logits, expectation = leaf(), Expectation(estimators.make(name, samples=2))
    for flat in (lambda x: 0 * x.sum(-1), lambda x: (x**2 * (3 - 2 * x)).sum(-1)):
        expectation(flat, dcv.Bernoulli(logits)).sum().backward()
        assert logits.grad.isfinite().all()


def test_a_custom_function_without_a_gradient_is_found_in_the_backward_pass():
    class NoGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum(-1)

        @staticmethod
        def backward(ctx, cotangent):
            return None

    value = Expectation(dcv.DoubleCV(2))(NoGradient.apply, dcv.Bernoulli(leaf())).sum()
    with pytest.raises(TypeError, match="the gradient of f in x is zero everywhere, but double-cv"):
        value.backward()


def test_a_loss_without_weight_is_not_taken_for_a_missing_gradient():
    logits = leaf()
    (0 * Expectation(dcv.DoubleCV(2, learning="gradient"))(lambda x: x.sum(-1), dcv.Bernoulli(logits)).sum()).backward()
    assert not logits.grad.any()


@pytest.mark.parametrize(
    "estimator", [dcv.RLOO(2), dcv.DoubleCV(2, learning="gradient"), dcv.MuProp(2), dcv.Rebar(1)], ids=str
)
def test_differentiated_twice(estimator):
    logits, model = leaf(), torch.ones(4, requires_grad=True)
    expectation = Expectation(estimator)
    loss = expectation(lambda x: (model * x).square().sum(-1), dcv.Bernoulli(logits=logits)).square().sum()
    gradients = torch.autograd.grad(loss, [logits, *expectation.parameters()], create_graph=True)
    for gradient in gradients:
        for variable in (logits, model, *expectation.parameters()):
            kind, message = raised(
                lambda gradient=gradient, variable=variable: torch.autograd.grad(
                    gradient.sum(), variable, retain_graph=True
                )
            )
            assert kind is TypeError
            assert message.startswith("the expectation was differentiated twice, but the derivative of a gradient")


def test_the_model_can_be_differentiated_twice():
    """What f closes over has an ordinary gradient, and so a second derivative."""
    scale = torch.tensor(3.0, requires_grad=True)
    loss = Expectation(dcv.DoubleCV(2, learning="gradient"))(
        lambda x: scale**3 * (1 + x.sum(-1)), dcv.Bernoulli(leaf())
    ).sum()
    (first,) = torch.autograd.grad(loss, scale, create_graph=True)
    (second,) = torch.autograd.grad(first, scale)
    torch.testing.assert_close(second, first * 2 / 3)


@pytest.mark.parametrize("estimator", [dcv.RLOO(2), dcv.DoubleCV(2, learning="gradient")], ids=str)
def test_what_is_changed_in_place_after_the_call_is_refused(estimator):
    """f and logits that changed between forward and backward would give a wrong gradient silently."""
    logits, kept = leaf(), []

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


def test_parameters_that_never_move_cause_one_warning(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 5)
    expectation, logits = Expectation(dcv.DoubleCV(2, learning="gradient")), leaf()

    def step():
        expectation(lambda x: torch.sin(x).sum(-1), dcv.Bernoulli(logits=logits)).mean().backward()

    for _ in range(5):
        step()
    with pytest.warns(
        UserWarning, match=r"parameters of Expectation\(DoubleCV\) .* hand expectation.parameters\(\) to"
    ):
        step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            step()


def test_parameters_that_move_or_are_frozen_cause_no_warning(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 5)
    logits = leaf()
    for frozen in (False, True):
        expectation = Expectation(dcv.DoubleCV(2, learning="gradient")).requires_grad_(not frozen)
        optimizer = torch.optim.Adam([logits, *expectation.parameters()])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(10):
                expectation(lambda x: torch.sin(x).sum(-1), dcv.Bernoulli(logits=logits)).mean().backward()
                optimizer.step()
