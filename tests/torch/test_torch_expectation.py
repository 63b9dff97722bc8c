"""Expectation as a module and as a part of a loss: what gets a gradient, from how many passes, and how often."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch_setups import (
    every_estimator,
    make_all,
    make_decoder,
    make_expectation,
    make_noise,
    make_q,
    make_y,
)

import doublecv as dcv
from doublecv.estimators import Evaluation
from doublecv.estimators.evaluation import FIELDS
from doublecv.torch import Expectation
from problems import best_coefficients, make_problem

KINDS = ("rloo", "double-cv", "muprop", "rebar", "relax", "quadratic-double-cv")


def gradients_of(module):
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


def assert_equal(actual, wanted):
    torch.testing.assert_close(actual, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_the_model_gets_the_gradient_of_plain_backpropagation(name, family):
    decoder, y = make_decoder(family), make_y()
    expectation, q, context = make_all(name, family)
    noise = make_noise(expectation.estimator, q)
    expectation(lambda x: decoder.loss(x, y), q, noise=noise, context=context).sum().backward()
    actual = gradients_of(decoder)

    decoder.zero_grad()
    decoder.loss(expectation.estimator.draw(q.detach(), noise), y).mean(0).sum().backward()
    assert_equal(actual, gradients_of(decoder))


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_one_forward_and_one_backward_pass(name, family):
    """From the second call on; the first one also checks that nothing else reaches the samples."""
    decoder, y = make_decoder(family), make_y()
    expectation, q, context = make_all(name, family)
    needs = expectation.estimator.needs
    expectation(lambda x: decoder.loss(x, y), q, context=context).sum().backward()
    layer, passes, points = decoder.layers[2], {"forward": 0, "backward": 0}, []

    def forward_hook(module, arguments, output):
        passes["forward"] += 1
        points.append(arguments[0].shape[0])

    def backward_hook(module, gradients_in, gradients_out):
        passes["backward"] += 1

    layer.register_forward_hook(forward_hook)
    layer.register_full_backward_hook(backward_hook)
    loss = expectation(lambda x: decoder.loss(x, y), q, context=context).sum()
    if needs.expected_f is False:
        assert sum(points) == expectation.estimator.evaluations
    # The mean of q, the relaxed points and the support have passes of their own.
    more = needs.mean + (needs.relaxed_points > 0) + (needs.expected_f is not False)
    assert passes["forward"] == 1 + more
    before = passes["backward"]
    loss.backward()
    assert passes["forward"] == 1 + more
    if not needs.relaxed_points:
        assert passes["backward"] - before == 1


def test_double_cv_adds_the_input_gradient_and_no_pass():
    """The graph of f for Double CV reaches the samples; that for RLOO ends at the first layer."""
    decoder, y = make_decoder(dcv.Bernoulli), make_y()
    inputs_need_gradient = {}
    for name in ("rloo", "double-cv"):
        handle = decoder.layers[0].register_forward_pre_hook(
            lambda _, arguments, name=name: inputs_need_gradient.update({name: arguments[0].requires_grad})
        )
        expectation, q, _ = make_all(name, dcv.Bernoulli)
        expectation(lambda x: decoder.loss(x, y), q)
        handle.remove()
    assert inputs_need_gradient == {"rloo": False, "double-cv": True}


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_several_backward_passes_on_a_retained_graph(name, family):
    decoder, y = make_decoder(family), make_y()
    expectation, q, context = make_all(name, family)
    values = expectation(lambda x: decoder.loss(x, y), q, context=context)
    everything = [q.logits, *decoder.parameters(), *expectation.parameters()]
    first = torch.autograd.grad(values.sum(), everything, retain_graph=True, materialize_grads=True)
    second = torch.autograd.grad(values.sum(), everything, retain_graph=True, materialize_grads=True)
    assert_equal(second, first)
    # Other weights in another pass: the gradient is linear in them, and the numbers' in their absolute values.
    third = torch.autograd.grad((-3 * values).sum(), everything, materialize_grads=True)
    model = 1 + len(list(decoder.parameters()))
    assert_equal(third[:model], tuple(-3 * gradient for gradient in first[:model]))
    assert_equal(third[model:], tuple(3 * gradient for gradient in first[model:]))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(values.sum(), everything, allow_unused=True)


@pytest.mark.parametrize("name", ["rloo", "double-cv", "muprop", "relax"])
def test_gradient_accumulation(name):
    """Two halves of a batch, each with half the loss, accumulate to what the whole batch gives."""
    decoder, y = make_decoder(dcv.Bernoulli), make_y()
    expectation, q, context = make_all(name, dcv.Bernoulli)
    noise = make_noise(expectation.estimator, q)
    batch_axis = noise.ndim - 2
    both = nn.ModuleDict({"decoder": decoder, "expectation": expectation})
    for part in (slice(0, 2), slice(2, 4)):
        half, options = dcv.Bernoulli(logits=q.logits[part]), {"noise": noise.narrow(batch_axis, part.start, 2)}
        if context is not None:
            options["context"] = context[part]
        (expectation(lambda x, y=y[part]: decoder.loss(x, y), half, **options).mean() / 2).backward()
    accumulated = gradients_of(both), q.logits.grad.clone()

    both.zero_grad()
    q.logits.grad = None
    expectation(lambda x: decoder.loss(x, y), q, noise=noise, context=context).mean().backward()
    assert_equal(accumulated, (gradients_of(both), q.logits.grad))


@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_any_number_of_batch_axes(name, family, batch):
    """Every batch element gets what it gets by itself."""
    problem = make_problem("network", family)
    expectation, q, context = make_all(name, family, batch=batch)
    noise = make_noise(expectation.estimator, q)
    values = expectation(problem.f, q, noise=noise, context=context)
    assert values.shape == batch
    values.sum().backward()
    place = tuple(length - 1 for length in batch)
    alone = family(logits=q.logits.detach()[place].clone().requires_grad_())
    shape = expectation.estimator.noise_shape(alone)
    # The batch axes of the noise are those that the noise of one element lacks.
    axis = next(k for k in range(len(shape) + 1) if (*shape[:k], *batch, *shape[k:]) == tuple(noise.shape))
    own = None if context is None else context[place]
    expectation(problem.f, alone, noise=noise[(*(slice(None),) * axis, *place)], context=own).backward()
    assert_equal(q.logits.grad[place], alone.logits.grad)


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_batch(name):
    expectation, q, context = make_all(name, dcv.Bernoulli, batch=(0,))
    expectation(lambda x: x.sum(-1), q, context=context).sum().backward()
    assert q.logits.grad.shape == (0, 3)
    assert all(not parameter.grad.any() for parameter in expectation.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", KINDS)
def test_no_graph_without_gradients(mode, name):
    problem, calls = make_problem("network", dcv.Bernoulli), []

    def f(x):
        calls.append(x)
        return problem.f(x)

    expectation, q, context = make_all(name, dcv.Bernoulli)
    noise = make_noise(expectation.estimator, q)
    with mode():
        value = expectation(f, q, noise=noise, context=context)
    assert value.grad_fn is None
    assert len(calls) == 1, "only the samples are evaluated where no gradient is asked for"
    assert not calls[0].requires_grad
    assert_equal(value, problem.f(expectation.estimator.draw(q.detach(), noise)).mean(0))


@pytest.mark.parametrize("name", KINDS)
def test_estimate_has_no_graph_and_needs_none(name):
    decoder, y = make_decoder(dcv.Bernoulli), make_y()
    expectation, q, context = make_all(name, dcv.Bernoulli)
    options = {"noise": make_noise(expectation.estimator, q), "context": context}
    result = expectation.estimate(lambda x: decoder.loss(x, y), q, **options)
    tensors = [result.value, result.gradient, *(getattr(result.evaluation, field) for field in FIELDS)]
    assert not any(tensor.requires_grad for tensor in tensors if tensor is not None)
    assert all(parameter.grad is None for parameter in (*decoder.parameters(), *expectation.parameters()))
    with torch.no_grad():
        again = expectation.estimate(lambda x: decoder.loss(x, y), q, **options)
    assert_equal(again.gradient, result.gradient)


@pytest.mark.parametrize("name", ["rloo", "disarm", "arms"])
def test_f_without_gradients(name):
    """f may be any code under an estimator that does not need its gradient."""
    expectation, q, _ = make_all(name, dcv.Bernoulli)
    noise = make_noise(expectation.estimator, q)

    def f(x):
        return torch.as_tensor((x.detach().numpy() @ [1.0, 2.0, 4.0]) ** 2)

    expectation(f, q, noise=noise).sum().backward()
    x = expectation.estimator.draw(q.detach(), noise)
    assert_equal(q.logits.grad, expectation.estimator.apply(q.detach(), Evaluation(x, f(x))).gradient)
    assert q.logits.grad.abs().max() > 0.1


def test_f_that_counts_in_integers():
    q = make_q(dcv.Bernoulli, dtype=torch.float32)
    value = Expectation(dcv.RLOO(2))(lambda x: (x > 0.5).sum(-1), q)
    assert value.dtype == torch.float32
    value.sum().backward()
    assert q.logits.grad.abs().sum() > 0


def test_f_that_depends_on_the_logits_adds_its_ordinary_gradient():
    q = make_q(dcv.Bernoulli)
    expectation = make_expectation(dcv.DoubleCV(2, learning="gradient"), q)
    noise = make_noise(expectation.estimator, q)

    def gradient(f):
        return torch.autograd.grad(expectation(f, q, noise=noise).sum(), q.logits)[0]

    def f(x, q):
        return x.sum(-1) + q.log_prob(x)

    x = expectation.estimator.draw(q.detach(), noise)
    ordinary = q.score(x).mean(0)
    assert_equal(gradient(lambda x: f(x, q)), gradient(lambda x: f(x, q.detach())) + ordinary)


def test_frozen_numbers_and_frozen_logits():
    problem = make_problem("network", dcv.Bernoulli)
    for estimator in (dcv.DoubleCV(2, learning="gradient"), dcv.Rebar(2)):
        q = make_q(dcv.Bernoulli)
        expectation, noise = make_expectation(estimator, q), make_noise(estimator, q)
        expectation(problem.f, q, noise=noise).sum().backward()
        wanted = q.logits.grad.clone(), [parameter.grad.clone() for parameter in expectation.parameters()]

        expectation.requires_grad_(False).zero_grad()
        q.logits.grad = None
        expectation(problem.f, q, noise=noise).sum().backward()
        assert_equal(q.logits.grad, wanted[0])
        assert all(parameter.grad is None for parameter in expectation.parameters())

        expectation.requires_grad_(True)
        expectation(problem.f, q.detach(), noise=noise).sum().backward()
        assert_equal([parameter.grad for parameter in expectation.parameters()], wanted[1])


def test_numbers_are_parameters():
    expectation = Expectation(dcv.DoubleCV(2, learning="gradient"))
    assert list(expectation.state_dict()) == ["alpha"]
    assert "DoubleCV(samples=2" in repr(expectation)
    assert expectation.double().alpha.dtype == torch.float64
    expectation.load_state_dict({"alpha": torch.tensor(-0.5)})
    assert copy.deepcopy(expectation).alpha.item() == -0.5
    assert list(Expectation(dcv.RLOO(2)).parameters()) == []


def test_averages_are_buffers():
    expectation = Expectation(dcv.QuadraticDoubleCV(2))
    assert list(expectation.parameters()) == []
    assert dict(expectation.named_buffers()).keys() == dcv.QuadraticDoubleCV(2).init().averages.keys()


def test_the_network_of_relax_is_a_part_of_the_module():
    q = make_q(dcv.Bernoulli)
    expectation = Expectation(dcv.Relax(1, units=5)).init(q, context=torch.zeros(4, 2))
    assert set(expectation.state_dict()) == {
        *("log_temperature", "scale", "from_context", "from_point", "hidden_bias", "to_output", "output_bias")
    }
    assert expectation.to(torch.float32).from_context.shape == (2, 5)


@pytest.mark.parametrize(
    "estimator", [dcv.Reinforce(2, learned_baseline=True), dcv.DoubleCV(2, learning="gradient"), dcv.Rebar(2)], ids=str
)
def test_the_numbers_get_the_derivative_of_the_mean_square(estimator):
    problem, q = make_problem("network", dcv.Bernoulli), make_q(dcv.Bernoulli)
    expectation, noise, step = make_expectation(estimator, q), make_noise(estimator, q), 1e-5

    def mean_square(parameter, change):
        moved = copy.deepcopy(expectation)
        with torch.no_grad():
            getattr(moved, parameter).add_(change)
        return moved.estimate(problem.f, q, noise=noise).gradient.square().mean()

    found = expectation.estimate(problem.f, q, noise=noise).learned_gradient.numbers
    assert found
    for name, derivative in found.items():
        difference = (mean_square(name, step) - mean_square(name, -step)) / (2 * step)
        assert derivative.item() == pytest.approx(difference.item(), rel=1e-6)
        assert abs(derivative) > 1e-3


def test_learned_alpha_descends_to_the_best_one():
    """Descent along the gradient of alpha lowers the variance of what any optimizer is handed."""
    problem = make_problem("quadratic", dcv.Bernoulli)
    q, expectation = make_q(dcv.Bernoulli), Expectation(dcv.DoubleCV(2, learning="gradient")).double()
    numpy_q = dcv.Bernoulli(logits=q.logits.detach().numpy())
    best = float(best_coefficients(dcv.DoubleCV(2, learning="gradient"), problem, numpy_q).numbers["alpha"])
    optimizer = torch.optim.SGD(expectation.parameters(), lr=0.02)
    generator, tail = torch.Generator().manual_seed(0), []
    for step in range(1500):
        optimizer.zero_grad()
        # A loss that is maximized: the gradient of alpha must not turn around with it.
        (-expectation(problem.f, q, generator=generator).mean()).backward()
        optimizer.step()
        if step >= 500:
            tail.append(expectation.alpha.item())
    assert sum(tail) / len(tail) == pytest.approx(best, abs=0.05)


def test_generator_and_global_seed():
    problem = make_problem("network", dcv.Bernoulli)
    expectation, q, _ = make_all("double-cv", dcv.Bernoulli)

    def value(**arguments):
        return expectation(problem.f, q, **arguments).detach()

    state = torch.random.get_rng_state()
    first = value(generator=torch.Generator().manual_seed(1))
    assert torch.equal(state, torch.random.get_rng_state()), "a generator leaves the global one alone"
    assert torch.equal(first, value(generator=torch.Generator().manual_seed(1)))
    assert not torch.equal(first, value(generator=torch.Generator().manual_seed(2)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        seeded = value()
        assert not torch.equal(seeded, value())
        torch.manual_seed(3)
        assert torch.equal(seeded, value())
    assert torch.equal(
        value(generator=torch.Generator().manual_seed(1)),
        expectation.estimate(problem.f, q, generator=torch.Generator().manual_seed(1)).value,
    )


def alive():
    """How many tensors and nodes of ours exist."""
    return sum(
        issubclass(type(item), torch.Tensor) or type(item).__name__ in ("_SampleBackward", "_MeanBackward", "Rule")
        for item in gc.get_objects()
    )


@pytest.mark.parametrize(
    "name",
    [
        "double-cv",
        "relax",
        pytest.param("rloo", marks=pytest.mark.slow),
        pytest.param("muprop", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_after_many_steps(name):
    """Without the garbage collector, so that a cycle of references would show."""
    decoder, y = make_decoder(dcv.Bernoulli), make_y()
    expectation, q, context = make_all(name, dcv.Bernoulli)
    logits = q.logits

    def step():
        expectation(lambda x: decoder.loss(x, y), dcv.Bernoulli(logits=logits), context=context).mean().backward()

    step()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for _ in range(90):
            step()
        assert alive() == before
    finally:
        gc.enable()


def test_backward_frees_the_samples_even_if_the_loss_is_kept():
    """From the second call on; the first one keeps them, to check what reaches them."""
    expectation, q, _ = make_all("double-cv", dcv.Bernoulli)
    kept = []

    def f(x):
        kept.append(weakref.ref(x))
        return torch.sin(x).sum(-1)

    expectation(f, q).mean().backward()
    loss = expectation(f, q).mean()
    assert kept[1]() is not None
    loss.backward()
    assert kept[1]() is None
