"""Running moments are buffers that move by themselves; a surrogate's parameters are parameters."""

import io

import pytest
import torch

import doublecv as dcv
from doublecv.torch import Expectation, estimate

LOGITS = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)


def f(x):
    return torch.sin(2 * x).sum(-1) ** 2


def make(estimator):
    return Expectation(estimator).double()


def step(expectation, seed, scale=1.0, **options):
    logits = LOGITS.clone().requires_grad_()
    generator = torch.Generator().manual_seed(seed)
    (scale * expectation(f, dcv.Bernoulli(logits), generator=generator, **options).mean()).backward()
    return logits.grad


def test_every_backward_pass_in_training_moves_them_one_hundredth_of_the_way():
    expectation = make(dcv.QuadraticDoubleCV(2))
    assert dict(expectation.named_parameters()) == {}
    q, generator = dcv.Bernoulli(LOGITS), torch.Generator().manual_seed(0)
    result = estimate(f, q, expectation.estimator, expectation.coefficients(), generator=generator)
    before = expectation.moments.clone()
    step(expectation, 0)
    torch.testing.assert_close(expectation.moments, before - 0.01 * result.coefficient_gradient["moments"])
    assert torch.any(expectation.moments != 0)


def test_a_scaled_loss_moves_them_alike():
    plain, scaled = make(dcv.QuadraticDoubleCV(2)), make(dcv.QuadraticDoubleCV(2))
    step(plain, 0)
    step(scaled, 0, scale=-65536.0)
    torch.testing.assert_close(scaled.moments, plain.moments)


def test_in_evaluation_and_without_gradients_they_stay():
    expectation = make(dcv.DoubleCV(2, learning="moments"))
    step(expectation, 0)
    before = expectation.moments.clone()
    with torch.no_grad():
        expectation(f, dcv.Bernoulli(LOGITS))
    step(expectation.eval(), 1)
    torch.testing.assert_close(expectation.moments, before, rtol=0, atol=0)


def test_a_second_backward_pass_counts_again():
    expectation = make(dcv.QuadraticDoubleCV(2))
    value = expectation(f, dcv.Bernoulli(LOGITS.clone().requires_grad_())).mean()
    value.backward(retain_graph=True)
    once = expectation.moments.clone()
    value.backward()
    torch.testing.assert_close(expectation.moments, 2 * once)


def test_a_batch_that_overflowed_leaves_no_trace():
    expectation = make(dcv.QuadraticDoubleCV(2))
    step(expectation, 0)
    before = expectation.moments.clone()
    logits = LOGITS.clone().requires_grad_()
    expectation(lambda x: x.sum(-1) * torch.inf, dcv.Bernoulli(logits)).mean().backward()
    torch.testing.assert_close(expectation.moments, before, rtol=0, atol=0)


@pytest.mark.parametrize("estimator", [dcv.QuadraticDoubleCV(2), dcv.Surrogate(
    dcv.QuadraticDoubleCV(2), variables=3, features=2, directions=2)], ids=["moments", "surrogate"])  # fmt: skip
def test_a_saved_and_loaded_module_goes_on_with_the_same_bits(estimator):
    options = {"context": torch.ones(4, 2, dtype=torch.float64)} if isinstance(estimator, dcv.Surrogate) else {}

    def train(expectation, optimiser, seeds):
        for seed in seeds:
            gradient = step(expectation, seed, **options)
            if optimiser is not None:
                optimiser.step()
                optimiser.zero_grad()
        return gradient

    def begin():
        expectation = make(estimator)
        parameters = list(expectation.parameters())
        return expectation, torch.optim.Adam(parameters, 0.01) if parameters else None

    whole, optimiser = begin()
    wanted = train(whole, optimiser, range(6))

    first, optimiser = begin()
    train(first, optimiser, range(3))
    saved = io.BytesIO()
    torch.save([first.state_dict(), optimiser and optimiser.state_dict()], saved)
    saved.seek(0)
    state, optimiser_state = torch.load(saved)
    second, optimiser = begin()
    second.load_state_dict(state)
    if optimiser is not None:
        optimiser.load_state_dict(optimiser_state)
    assert torch.equal(train(second, optimiser, range(3, 6)), wanted)
    assert all(
        torch.equal(a, b) for a, b in zip(second.state_dict().values(), whole.state_dict().values(), strict=True)
    )


def test_the_model_gets_no_gradient_from_the_surrogate_nor_does_the_context():
    context = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    expectation = make(dcv.Surrogate(dcv.RLOO(2), variables=3, features=2, directions=2))
    step(expectation, 0, context=context)
    assert context.grad is None
    assert all(parameter.grad is not None for parameter in expectation.parameters())


def test_a_pullback_is_refused():
    with pytest.raises(ValueError, match="pullback was given, but QuadraticDoubleCV learns"):
        make(dcv.QuadraticDoubleCV(2))(f, dcv.Bernoulli(LOGITS), pullback=lambda g: g)
