"""Expectation as a module and as a part of a loss: what gets a gradient, from how many passes, and how often."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch_setups import Decoder, every_estimator, make_coefficients, make_estimator, make_expectation

import doublecv as dcv
from doublecv.torch import Expectation, estimate
from problems import VARIABLES, make_logits, make_problem


def make_q(family, batch=(4,), dtype=torch.float64):
    return family(logits=torch.tensor(make_logits(family, batch=batch), dtype=dtype).requires_grad_())


def make_noise(estimator, q, seed=0):
    return torch.rand(estimator.noise_shape(q), dtype=q.logits.dtype, generator=torch.Generator().manual_seed(seed))


def make_y(batch=(4,), pixels=6, seed=0):
    return torch.rand(*batch, pixels, generator=torch.Generator().manual_seed(seed)).round().double()


def gradients_of(module):
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


def assert_equal(actual, wanted):
    torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_the_model_gets_the_gradient_of_plain_backpropagation(name, family):
    decoder, y = Decoder(VARIABLES[family]), make_y()
    _, estimator = make_estimator(name, 2, make_problem("network", family), family)
    q = make_q(family)
    noise = make_noise(estimator, q)
    make_expectation(estimator)(lambda x: decoder.loss(x, y), q, noise=noise).sum().backward()
    actual = gradients_of(decoder)

    decoder.zero_grad()
    decoder.loss(estimator.draw(q.detach(), noise), y).mean(0).sum().backward()
    assert_equal(actual, gradients_of(decoder))


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_one_forward_and_one_backward_pass(name, family):
    decoder, y = Decoder(VARIABLES[family]), make_y()
    _, estimator = make_estimator(name, 2, make_problem("network", family), family)
    layer, passes, points = decoder.layers[2], {"forward": 0, "backward": 0}, []

    def forward_hook(module, arguments, output):
        passes["forward"] += 1
        points.append(arguments[0].shape[0])

    def backward_hook(module, gradients_in, gradients_out):
        passes["backward"] += 1

    layer.register_forward_hook(forward_hook)
    layer.register_full_backward_hook(backward_hook)
    loss = make_expectation(estimator)(lambda x: decoder.loss(x, y), make_q(family)).sum()
    assert sum(points) == estimator.evaluations
    # The mean of q and the relaxed points are points besides the samples, and have passes of their own.
    besides = estimator.needs_mean + (estimator.relaxed_points > 0)
    assert passes["forward"] == 1 + besides
    loss_passes = passes["backward"]
    loss.backward()
    if besides == 0:
        assert passes == {"forward": 1, "backward": 1}
    assert passes["forward"] == 1 + besides
    if not estimator.relaxed_points:
        assert passes["backward"] - loss_passes == 1


def test_double_cv_adds_the_input_gradient_and_no_pass():
    """The graph of f for Double CV reaches the samples; that for RLOO ends at the first layer."""
    decoder, y = Decoder((3,)), make_y()
    inputs_need_gradient = {}
    for estimator in (dcv.RLOO(2), dcv.DoubleCV(2)):
        handle = decoder.layers[0].register_forward_pre_hook(
            lambda _, arguments, name=estimator.name: inputs_need_gradient.update({name: arguments[0].requires_grad})
        )
        make_expectation(estimator)(lambda x: decoder.loss(x, y), make_q(dcv.Bernoulli))
        handle.remove()
    assert inputs_need_gradient == {"rloo": False, "double-cv": True}


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_several_backward_passes_on_a_retained_graph(name, family):
    decoder, y = Decoder(VARIABLES[family]), make_y()
    _, estimator = make_estimator(name, 2, make_problem("network", family), family)
    q, expectation = make_q(family), make_expectation(estimator)
    values = expectation(lambda x: decoder.loss(x, y), q)
    everything = [q.logits, *decoder.parameters(), *expectation.parameters()]
    first = torch.autograd.grad(values.sum(), everything, retain_graph=True)
    second = torch.autograd.grad(values.sum(), everything, retain_graph=True)
    assert_equal(second, first)
    # Other weights in another pass: the gradient is linear in them, and the coefficients' in their absolute values.
    third = torch.autograd.grad((-3 * values).sum(), everything)
    model = 1 + len(list(decoder.parameters()))
    assert_equal(third[:model], tuple(-3 * gradient for gradient in first[:model]))
    assert_equal(third[model:], tuple(3 * gradient for gradient in first[model:]))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(values.sum(), everything)


@pytest.mark.parametrize("name", ["rloo", "double-cv", "muprop", "relax"])
def test_gradient_accumulation(name):
    """Two halves of a batch, each with half the loss, accumulate to what the whole batch gives."""
    decoder, y = Decoder((3,)), make_y()
    _, estimator = make_estimator(name, 2, make_problem("network", dcv.Bernoulli), dcv.Bernoulli)
    q, expectation = make_q(dcv.Bernoulli), make_expectation(estimator)
    noise = make_noise(estimator, q)
    batch_axis = noise.ndim - 2
    both = nn.ModuleDict({"decoder": decoder, "expectation": expectation})
    for part in (slice(0, 2), slice(2, 4)):
        half = dcv.Bernoulli(logits=q.logits[part])
        half_noise = noise.narrow(batch_axis, part.start, 2)
        (expectation(lambda x, y=y[part]: decoder.loss(x, y), half, noise=half_noise).mean() / 2).backward()
    accumulated = gradients_of(both), q.logits.grad.clone()

    both.zero_grad()
    q.logits.grad = None
    expectation(lambda x: decoder.loss(x, y), q, noise=noise).mean().backward()
    assert_equal(accumulated, (gradients_of(both), q.logits.grad))


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_any_number_of_batch_axes(name, family, batch):
    """Every batch element gets what it gets alone."""
    problem = make_problem("network", family)
    _, estimator = make_estimator(name, 2, problem, family)
    expectation, q = make_expectation(estimator), make_q(family, batch)
    noise = make_noise(estimator, q)
    values = expectation(problem.f, q, noise=noise)
    assert values.shape == batch
    values.sum().backward()
    assert q.logits.grad.shape == q.logits.shape
    per_category = noise.shape[-family.event_axes :] == VARIABLES[family]
    axis = noise.ndim - len(batch) - (family.event_axes if per_category else 1)
    place = tuple(length - 1 for length in batch)
    alone = family(logits=q.logits.detach()[place].clone().requires_grad_())
    expectation(problem.f, alone, noise=noise[(*(slice(None),) * axis, *place)]).backward()
    assert_equal(q.logits.grad[place], alone.logits.grad)


@pytest.mark.parametrize("name", ["rloo", "double-cv", "muprop", "rebar"])
def test_an_empty_batch(name):
    _, estimator = make_estimator(name, 2, None, dcv.Bernoulli)
    expectation, q = make_expectation(estimator), make_q(dcv.Bernoulli, batch=(0,))
    expectation(lambda x: x.sum(-1), q).sum().backward()
    assert q.logits.grad.shape == (0, 3)
    assert all(parameter.grad == 0 for parameter in expectation.parameters())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["rloo", "double-cv", "muprop", "rebar", "relax"])
def test_no_graph_without_gradients(context, name):
    problem = make_problem("network", dcv.Bernoulli)
    calls = []

    def f(x):
        calls.append(x)
        return problem.f(x)

    _, estimator = make_estimator(name, 2, problem, dcv.Bernoulli)
    q, expectation = make_q(dcv.Bernoulli), make_expectation(estimator)
    with context():
        value = expectation(f, q, noise=make_noise(estimator, q))
    assert not value.requires_grad
    assert value.grad_fn is None
    assert len(calls) == 1, "nothing besides the samples is evaluated where no gradient is asked for"
    assert not calls[0].requires_grad
    assert_equal(value, problem.f(estimator.draw(q.detach(), make_noise(estimator, q))).mean(0))


def test_estimate_has_no_graph_and_needs_none():
    problem = make_problem("network", dcv.Bernoulli)
    decoder, y = Decoder((3,)), make_y()
    for name in ("rloo", "double-cv", "muprop", "rebar", "relax"):
        _, estimator = make_estimator(name, 2, problem, dcv.Bernoulli)
        q = make_q(dcv.Bernoulli)
        noise = make_noise(estimator, q)

        def run(estimator=estimator, q=q, noise=noise):
            return estimate(lambda x: decoder.loss(x, y), q, estimator, make_coefficients(estimator), noise=noise)

        result = run()
        tensors = [result.value, result.gradient, *(getattr(result.evaluation, f) for f in dcv.Evaluation.fields)]
        assert not any(tensor.requires_grad for tensor in tensors if tensor is not None)
        assert all(parameter.grad is None for parameter in decoder.parameters())
        with torch.no_grad():
            assert_equal(run().gradient, result.gradient)


@pytest.mark.parametrize("name", ["rloo", "double-cv", "disarm", "muprop", "rebar"])
def test_f_without_gradients(name):
    """f may be any code: the logits get their gradient all the same, with a gradient of f of 0."""
    _, estimator = make_estimator(name, 2, None, dcv.Bernoulli)
    q, expectation = make_q(dcv.Bernoulli), make_expectation(estimator)
    noise = make_noise(estimator, q)

    def f(x):
        return torch.as_tensor((x.detach().numpy() @ [1.0, 2.0, 4.0]) ** 2)

    expectation(f, q, noise=noise).sum().backward()
    x = estimator.draw(q.detach(), noise)
    zero = torch.zeros_like(x)
    at_mean = (f(q.mean), zero[0]) if estimator.needs_mean else (None, None)
    control = (0.8 * f(_relaxed(estimator, q.detach(), noise, x)), torch.zeros(4, 4, 3).double())
    evaluation = dcv.Evaluation(x, f(x), zero, *at_mean, *(control if estimator.relaxed_points else (None, None)))
    assert_equal(q.logits.grad, estimator.gradient(q.detach(), evaluation, make_coefficients(estimator)))
    assert q.logits.grad.abs().max() > 0.1


def _relaxed(estimator, q, noise, x):
    if not estimator.relaxed_points:
        return x
    seen = []

    def record(points):
        seen.append(points)
        return points.sum(-1)

    estimator.control(record, q.broadcast_to((4, *q.batch_shape)), noise, x, make_coefficients(estimator))
    return seen[0]


def test_f_that_counts_in_integers():
    q = make_q(dcv.Bernoulli, dtype=torch.float32)
    value = Expectation(dcv.RLOO(2))(lambda x: (x > 0.5).sum(-1), q)
    assert value.dtype == torch.float32
    value.sum().backward()
    assert q.logits.grad.abs().sum() > 0


def test_f_that_depends_on_the_logits_adds_its_ordinary_gradient():
    q = make_q(dcv.Bernoulli)
    expectation = make_expectation(dcv.DoubleCV(2))
    noise = make_noise(expectation.estimator, q)

    def gradient(f):
        return torch.autograd.grad(expectation(f, q, noise=noise).sum(), q.logits)[0]

    def f(x, q):
        return x.sum(-1) + q.log_prob(x)

    x = expectation.estimator.draw(q.detach(), noise)
    ordinary = q.score(x).mean(0)
    assert_equal(gradient(lambda x: f(x, q)), gradient(lambda x: f(x, q.detach())) + ordinary)


def test_frozen_coefficients_and_frozen_logits():
    problem = make_problem("network", dcv.Bernoulli)
    for estimator in (dcv.DoubleCV(2), dcv.Rebar(2)):
        expectation, q = make_expectation(estimator), make_q(dcv.Bernoulli)
        noise = make_noise(estimator, q)
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


def test_coefficients_are_parameters():
    expectation = Expectation(dcv.DoubleCV(2))
    assert list(expectation.state_dict()) == ["alpha"]
    assert "DoubleCV(samples=2" in repr(expectation)
    assert expectation.double().alpha.dtype == torch.float64
    expectation.load_state_dict({"alpha": torch.tensor(-0.5)})
    assert copy.deepcopy(expectation).alpha.item() == -0.5
    assert list(Expectation(dcv.RLOO(2)).parameters()) == []


def test_the_network_of_relax_is_a_part_of_the_module():
    _, estimator = make_estimator("relax", 1, None, dcv.Bernoulli)
    expectation = Expectation(estimator)
    assert set(expectation.state_dict()) == {"log_temperature", "scale", "network.inner", "network.outer"}
    assert expectation.network is estimator.network
    assert expectation.to(torch.float32).network.inner.dtype == torch.float32


def test_a_network_given_as_a_dict_of_arrays():
    """The form that NumPy and JAX take gives the same numbers as a module."""
    problem = make_problem("network", dcv.Bernoulli)
    as_dict, as_module = make_estimator("relax", 2, problem, dcv.Bernoulli, dtype="float32")
    q = make_q(dcv.Bernoulli)
    noise = make_noise(as_dict, q)
    results = []
    for estimator in (as_dict, as_module):
        expectation = make_expectation(estimator)
        expectation(problem.f, q, noise=noise).sum().backward()
        explicit = estimate(problem.f, q, estimator, estimator.coefficients(), noise=noise)
        results.append((gradients_of(expectation), explicit.gradient, explicit.coefficient_gradient))
    assert_equal(*results)


def test_options_that_change_from_call_to_call():
    problem = make_problem("network", dcv.Bernoulli)
    q, noise = make_q(dcv.Bernoulli), make_noise(dcv.RStar(2), make_q(dcv.Bernoulli))
    expectation = Expectation(dcv.RStar(2))
    expectation(problem.f, q, noise=noise, expected_f=problem.expected_f).sum().backward()
    wanted = estimate(problem.f, q, dcv.RStar(2, expected_f=problem.expected_f), {}, noise=noise)
    assert_equal(q.logits.grad, wanted.gradient)

    _, relax = make_estimator("relax", 1, problem, dcv.Bernoulli)
    expectation, y = make_expectation(relax), torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    noise = make_noise(relax, q)
    expectation(problem.f, q, noise=noise, apply=lambda network, z: y * network(z)).sum().backward()
    scaled = gradients_of(expectation)["network.outer"]
    expectation.zero_grad()
    expectation(problem.f, q, noise=noise).sum().backward()
    assert not torch.allclose(scaled, expectation.network.outer.grad)


@pytest.mark.parametrize(
    "estimator", [dcv.Reinforce(2, learned_baseline=True), dcv.DoubleCV(2), dcv.Rebar(2)], ids=lambda e: e.name
)
def test_the_coefficients_get_the_derivative_of_the_mean_square(estimator):
    problem, q = make_problem("network", dcv.Bernoulli), make_q(dcv.Bernoulli)
    coefficients, noise, step = make_coefficients(estimator), make_noise(estimator, q), 1e-5

    def result(**changed):
        return estimate(problem.f, q, estimator, coefficients | changed, noise=noise)

    for name, derivative in result().coefficient_gradient.items():
        higher, lower = (
            result(**{name: coefficients[name] + sign * step}).gradient.square().mean() for sign in (1, -1)
        )
        assert derivative.item() == pytest.approx(((higher - lower) / (2 * step)).item(), rel=1e-6)
        assert abs(derivative) > 1e-3


def test_learned_alpha_descends_to_the_best_one():
    """Descent along the coefficients' gradient lowers the variance of what any optimiser is handed."""
    problem = make_problem("quadratic", dcv.Bernoulli)
    q, expectation = make_q(dcv.Bernoulli), Expectation(dcv.DoubleCV(2)).double()
    best = dcv.diagnostics.optimal_alpha(dcv.DoubleCV(2), problem.f, q.detach())
    optimizer = torch.optim.SGD(expectation.parameters(), lr=0.02)
    generator, tail = torch.Generator().manual_seed(0), []
    for step in range(1500):
        optimizer.zero_grad()
        # A loss that is maximised: the coefficients' gradient must not turn around with it.
        (-expectation(problem.f, q, generator=generator).mean()).backward()
        optimizer.step()
        if step >= 500:
            tail.append(expectation.alpha.item())
    assert sum(tail) / len(tail) == pytest.approx(best, abs=0.05)


def test_generator_and_global_seed():
    problem = make_problem("network", dcv.Bernoulli)
    q, expectation = make_q(dcv.Bernoulli), make_expectation(dcv.DoubleCV(2))

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
        estimate(
            problem.f, q, dcv.DoubleCV(2), expectation.coefficients(), generator=torch.Generator().manual_seed(1)
        ).value,
    )


def alive():
    """How many tensors and nodes of ours exist."""
    return sum(
        issubclass(type(item), torch.Tensor) or type(item).__name__ in ("_SampleBackward", "_MeanBackward", "Rule")
        for item in gc.get_objects()
    )


@pytest.mark.parametrize("name", ["rloo", "double-cv", "muprop", "relax"])
def test_nothing_is_left_after_a_thousand_steps(name):
    """Without the garbage collector, so that a cycle of references would show."""
    decoder, y = Decoder((3,)), make_y()
    _, estimator = make_estimator(name, 2, None, dcv.Bernoulli)
    expectation, logits = make_expectation(estimator), make_q(dcv.Bernoulli).logits

    def step():
        expectation(lambda x: decoder.loss(x, y), dcv.Bernoulli(logits=logits)).mean().backward()

    step()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for _ in range(1000):
            step()
        assert alive() == before
    finally:
        gc.enable()


def test_backward_frees_the_samples_even_if_the_loss_is_kept():
    kept = []

    def f(x):
        kept.append(weakref.ref(x))
        return x.sum(-1)

    loss = Expectation(dcv.RLOO(2))(f, make_q(dcv.Bernoulli)).mean()
    assert kept[0]() is not None
    loss.backward()
    assert kept[0]() is None
