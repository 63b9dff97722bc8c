"""Running averages are buffers that move by themselves; learned numbers are parameters."""

import io

import pytest
import torch

import doublecv as dcv
from doublecv.torch import Expectation, small
from doublecv.torch import expectation as module

LOGITS = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)


def f(x):
    return torch.sin(2 * x).sum(-1) ** 2


def make(estimator, **options):
    return Expectation(estimator).init(dcv.Bernoulli(LOGITS), **options).double()


def step(expectation, seed, scale=1.0, **options):
    logits = LOGITS.clone().requires_grad_()
    generator = torch.Generator().manual_seed(seed)
    (scale * expectation(f, dcv.Bernoulli(logits), generator=generator, **options).mean()).backward()
    return logits.grad


def buffers(expectation):
    return {name: value.clone() for name, value in expectation.named_buffers()}


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **tolerance)


def test_every_backward_pass_in_training_moves_them_by_the_statistics_of_the_step():
    expectation = make(dcv.QuadraticDoubleCV(2))
    result = expectation.estimate(f, dcv.Bernoulli(LOGITS), generator=torch.Generator().manual_seed(0))
    wanted = expectation.estimator.advance(buffers(expectation), result.learned_gradient.statistics)
    step(expectation, 0)
    assert_same(buffers(expectation), wanted)
    assert any(value.any() for value in wanted.values())


@pytest.mark.parametrize("largest", [small.LARGEST, 0], ids=["numpy", "torch"])
@pytest.mark.parametrize("estimator", [dcv.QuadraticDoubleCV(2), dcv.DoubleCV(2)], ids=lambda made: type(made).__name__)
def test_later_they_move_less_often(estimator, largest, monkeypatch):
    """And the estimate is that of the coefficients that they hold, in all of them."""
    monkeypatch.setattr(module, "ALWAYS", 4)
    monkeypatch.setattr(module, "EVERY", 3)
    monkeypatch.setattr(small, "LARGEST", largest)
    expectation = make(estimator)
    moved = []
    for seed in range(20):
        expectation.coefficients.copy_(torch.linspace(-0.3, 0.2, len(expectation.coefficients)))
        before = buffers(expectation)
        wanted = expectation.estimate(f, dcv.Bernoulli(LOGITS), generator=torch.Generator().manual_seed(seed)).gradient
        torch.testing.assert_close(step(expectation, seed), wanted / len(LOGITS))
        moved.append(not all(torch.equal(before[name], value) for name, value in buffers(expectation).items()))
    often, later = list(range(8)), [8, 10, *range(12, 20, 3)]
    assert [seed for seed in range(20) if moved[seed]] == often + later


def test_a_state_of_parameters_and_averages_only_is_taken():
    expectation = make(dcv.QuadraticDoubleCV(2))
    for seed in range(3):
        step(expectation, seed)
    other = make(dcv.QuadraticDoubleCV(2))
    other.load_state_dict(buffers(expectation))
    assert_same(buffers(other), buffers(expectation), rtol=0, atol=0)


def test_a_scaled_loss_moves_them_alike():
    plain, scaled = make(dcv.QuadraticDoubleCV(2)), make(dcv.QuadraticDoubleCV(2))
    step(plain, 0)
    step(scaled, 0, scale=-65536.0)
    assert_same(buffers(scaled), buffers(plain))


def test_in_evaluation_and_without_gradients_they_stay():
    expectation = make(dcv.DoubleCV(2, learning="moments"))
    step(expectation, 0)
    before = buffers(expectation)
    with torch.no_grad():
        expectation(f, dcv.Bernoulli(LOGITS))
    expectation.estimate(f, dcv.Bernoulli(LOGITS))
    step(expectation.eval(), 1)
    assert_same(buffers(expectation), before, rtol=0, atol=0)


def test_a_batch_that_overflowed_leaves_no_trace():
    expectation = make(dcv.QuadraticDoubleCV(2))
    step(expectation, 0)
    before = buffers(expectation)
    logits = LOGITS.clone().requires_grad_()
    expectation(lambda x: x.sum(-1) * torch.inf, dcv.Bernoulli(logits)).mean().backward()
    assert_same(buffers(expectation), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    "estimator",
    [dcv.QuadraticDoubleCV(2), dcv.LearnedSurrogate(dcv.QuadraticDoubleCV(2))],
    ids=["moments", "surrogate"],
)
@pytest.mark.parametrize("always", [1, 64], ids=["less and less often", "in every pass"])
def test_a_saved_and_loaded_module_resumes_with_the_same_bits(estimator, always, monkeypatch):
    monkeypatch.setattr(module, "ALWAYS", always)
    options = {"context": torch.ones(4, 2, dtype=torch.float64)} if estimator.needs.context else {}

    def start():
        expectation = make(estimator, **options)
        return expectation, torch.optim.Adam([torch.zeros(1, requires_grad=True), *expectation.parameters()], 0.01)

    def train(expectation, optimizer, seeds):
        for seed in seeds:
            gradient = step(expectation, seed, **options)
            optimizer.step()
            optimizer.zero_grad()
        return gradient

    complete = start()
    wanted = train(*complete, range(10))
    first = start()
    train(*first, range(3))
    saved = io.BytesIO()
    torch.save([part.state_dict() for part in first], saved)
    saved.seek(0)
    second = start()
    for part, state in zip(second, torch.load(saved, weights_only=True), strict=True):
        part.load_state_dict(state)
    assert torch.equal(train(*second, range(3, 10)), wanted)
    assert_same(second[0].state_dict(), complete[0].state_dict(), rtol=0, atol=0)


def test_the_model_gets_no_gradient_from_the_surrogate_nor_does_the_context():
    context = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    expectation = make(dcv.LearnedSurrogate(dcv.RLOO(2)), context=context)
    step(expectation, 0, context=context)
    assert context.grad is None
    assert all(parameter.grad is not None for parameter in expectation.parameters())


def test_one_adam_for_everything_leaves_the_averages_alone():
    """`expectation.parameters()` is what goes into the optimizer, and the averages are not in it."""
    one, other = make(dcv.QuadraticDoubleCV(2)), make(dcv.QuadraticDoubleCV(2))
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([weight, *one.parameters()], lr=1.0, weight_decay=0.5)
    for seed in range(5):
        for expectation in (one, other):
            step(expectation, seed)
        weight.grad = torch.ones(1)
        optimizer.step()
    assert_same(buffers(one), buffers(other), rtol=0, atol=0)
