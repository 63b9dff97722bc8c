"""Narrow and wide types, autocast and compiled models."""

import dataclasses

import pytest
import torch
from torch import nn
from torch_setups import Decoder, every_estimator, make_estimator, make_expectation

import doublecv as dcv
from doublecv.torch import Expectation, estimate
from problems import VARIABLES, make_logits

NAMES = ("rloo", "double-cv", "muprop", "disarm", "arms", "rebar", "relax")
Y = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)).round()


def run(name, logits, decoder, loss=None, dtype=torch.float32, noise_dtype=torch.float32):
    """The gradients of one step, on fixed noise, in float64 for comparison."""
    _, estimator = make_estimator(name, 2, None, dcv.Bernoulli, dtype="float32")
    expectation, q = make_expectation(estimator, dtype), dcv.Bernoulli(logits=logits)
    noise = torch.rand(estimator.noise_shape(q), dtype=torch.float32, generator=torch.Generator().manual_seed(1)).to(
        noise_dtype
    )
    decoder.zero_grad()
    value = expectation(loss or (lambda x: decoder.loss(x, Y)), q, noise=noise)
    everything = [logits, *decoder.parameters(), *expectation.parameters()]
    gradients = torch.autograd.grad(value.float().mean(), everything)
    assert [g.dtype for g in gradients] == [variable.dtype for variable in everything]
    return [value.double(), *(gradient.double() for gradient in gradients)]


def leaf(dtype):
    """Logits that bfloat16 holds exactly."""
    return torch.tensor(make_logits(dcv.Bernoulli, batch=(4,))).bfloat16().to(dtype).requires_grad_()


def assert_near(actual, wanted, tolerance):
    for a, w in zip(actual, wanted, strict=True):
        assert (a - w).norm() <= tolerance * (w.norm() + 0.05)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name):
    # RELAX's network reads z, which is as wide as the noise, so that it stays in float32.
    coefficient_type = torch.float32 if name == "relax" else torch.bfloat16
    narrow = run(name, leaf(torch.bfloat16), Decoder((3,), dtype=torch.bfloat16), dtype=coefficient_type)
    decoder = Decoder((3,), dtype=torch.bfloat16).float()
    assert_near(narrow, run(name, leaf(torch.float32), decoder), 0.1)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_model_with_float32_logits(name):
    decoder = Decoder((3,), dtype=torch.bfloat16)
    mixed = run(name, leaf(torch.float32), decoder, loss=lambda x: decoder.loss(x.bfloat16(), Y))
    assert_near(mixed, run(name, leaf(torch.float32), Decoder((3,), dtype=torch.bfloat16).float()), 0.1)


@pytest.mark.parametrize("name", NAMES)
def test_float64_agrees_with_float32(name):
    wide = run(name, leaf(torch.float64), Decoder((3,)), dtype=torch.float64, noise_dtype=torch.float64)
    assert_near(wide, run(name, leaf(torch.float32), Decoder((3,)).float()), 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_runs_the_model_in_bfloat16_and_the_formulas_in_the_type_of_the_logits(name):
    wanted = run(name, leaf(torch.float32), Decoder((3,)).float())
    decoder, inner_types = Decoder((3,)).float(), set()
    decoder.layers[1].register_forward_hook(lambda _, inputs, output: inner_types.add((inputs[0].dtype, output.dtype)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = run(name, leaf(torch.float32), decoder)
    assert inner_types == {(torch.bfloat16, torch.bfloat16)}
    assert_near(actual, wanted, 0.05)


@dataclasses.dataclass(frozen=True)
class Watching(dcv.DoubleCV):
    """Double CV that looks at the state in which its formula runs."""

    def formula(self, q, evaluation, coefficients):
        assert not torch.is_autocast_enabled("cpu")
        assert evaluation.f.dtype == evaluation.x.dtype == evaluation.df.dtype == q.logits.dtype == torch.float32
        return super().formula(q, evaluation, coefficients)


def test_formulas_run_outside_autocast_in_backward_too():
    decoder, logits = Decoder((3,)).float(), leaf(torch.float32)
    expectation = Expectation(Watching(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = expectation(lambda x: decoder.layers(x).square().sum(-1), dcv.Bernoulli(logits=logits))
        assert value.dtype == torch.bfloat16
        value.sum().backward()
        estimate(
            lambda x: decoder.layers(x).square().sum(-1).float(),
            dcv.Bernoulli(logits=logits),
            Watching(2),
            {"alpha": 0.0},
        )
    assert logits.grad.dtype == torch.float32


def test_encoder_under_autocast_has_narrow_logits():
    encoder, decoder = nn.Linear(6, 3), Decoder((3,)).float()
    expectation = Expectation(dcv.DoubleCV(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = encoder(Y)
        assert logits.dtype == torch.bfloat16
        loss = expectation(lambda x: decoder.loss(x, Y), dcv.Bernoulli(logits=logits)).mean()
    loss.backward()
    for parameter in (*encoder.parameters(), *decoder.parameters(), *expectation.parameters()):
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


def test_noise_is_wide_for_narrow_logits():
    """bfloat16 noise would take 0.004 for 0.0039 and draw a rare variable 1.5 times as often."""
    logits = torch.full((200_000, 1), -7.0, dtype=torch.bfloat16)
    q = dcv.Bernoulli(logits=logits)
    result = estimate(lambda x: x.sum(-1), q, dcv.RLOO(2), {}, generator=torch.Generator().manual_seed(0))
    share, probability = result.evaluation.x.float().mean().item(), torch.sigmoid(torch.tensor(-7.0)).item()
    assert abs(share - probability) < 4 * (probability / 400_000) ** 0.5


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# The compiler triggers warnings of its own, some of which it hides and some of which it does not.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["rloo", "double-cv", "muprop", "disarm"])
def test_compiled_model(fresh_compiler, name):
    decoder = Decoder((3,)).float()
    wanted = run(name, leaf(torch.float32), decoder)
    compiled = torch.compile(decoder.loss, backend="aot_eager", fullgraph=True)
    actual = run(name, leaf(torch.float32), decoder, loss=lambda x: compiled(x, Y))
    assert_near(actual, wanted, 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_keeps_its_gradients(fresh_compiler):
    """The compiler must leave the module alone: its two nodes speak to each other in the backward pass."""
    decoder, logits = Decoder((3,)).float(), leaf(torch.float32)
    expectation = make_expectation(dcv.DoubleCV(2), torch.float32)
    noise = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(1))

    def step(scale):
        return (
            scale * expectation(lambda x: decoder.loss(x, Y), dcv.Bernoulli(logits=scale * logits), noise=noise).mean()
        )

    everything = [logits, *decoder.parameters(), *expectation.parameters()]
    wanted = torch.autograd.grad(step(2.0), everything)
    actual = torch.autograd.grad(torch.compile(step, backend="aot_eager")(2.0), everything)
    torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize(("name", "family"), list(every_estimator()))
def test_everything_stays_on_the_device_of_the_logits(name, family):
    """On torch's device without memory, which refuses to meet a tensor of another one as an accelerator does."""
    _, estimator = make_estimator(name, 2, None, family, dtype="float32")
    if isinstance(estimator, dcv.RStar):
        estimator = dataclasses.replace(estimator, expected_f=lambda q: q.mean.sum(tuple(range(-q.event_axes, 0))))
    if isinstance(estimator, dcv.Surrogate):
        estimator = dataclasses.replace(estimator, context=estimator.context.to("meta"))
    expectation = Expectation(estimator).to("meta")
    decoder = Decoder(VARIABLES[family], dtype=torch.float32).to("meta")
    logits = torch.zeros(4, *VARIABLES[family], device="meta", requires_grad=True)
    expectation(lambda x: decoder.loss(x, Y.to("meta")), family(logits=logits)).mean().backward()
    for tensor in (logits, *decoder.parameters(), *expectation.parameters()):
        assert tensor.grad.device.type == "meta"
    result = estimate(
        lambda x: decoder.loss(x, Y.to("meta")), family(logits=logits), estimator, expectation.coefficients()
    )
    assert result.gradient.device.type == "meta"
