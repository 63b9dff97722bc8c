"""Auxiliary output in PyTorch, tensors that f stores, changes in place, and `fold`."""

import pytest
import torch
from torch import nn
from torch_setups import make_all, make_decoder, make_noise, make_y

import doublecv as dcv
from doublecv.torch import Expectation, fold
from doublecv.torch import expectation as module
from doublecv.torch.evaluating import Watched

NAMES = ("rloo", "double-cv", "muprop", "quadratic-double-cv", "rebar")


def run(name, use_aux, steps=2):
    """Return the gradients with and without a loss on auxiliary output, in the last of several steps."""
    decoder, y = make_decoder(dcv.Bernoulli), make_y()
    expectation, q, _ = make_all(name, dcv.Bernoulli)
    noise = make_noise(expectation.estimator, q)

    def f(x):
        hidden = decoder.layers[:2](x)
        values = (decoder.layers[2](hidden) - y).square().sum(-1)
        return values, {"hidden": hidden, "x": x, "note": "text"}

    for _ in range(steps):
        for tensor in (q.logits, *decoder.parameters(), *expectation.parameters()):
            tensor.grad = None
        value, aux = expectation(f, q, noise=noise, has_aux=True)
        loss = value.mean()
        if use_aux:
            loss = loss + 3 * (aux["hidden"].mean(0) ** 2).sum() + (aux["x"].mean(0) ** 2).sum()
        loss.backward()
    return expectation, q, decoder, f, noise, aux


@pytest.mark.parametrize("name", NAMES)
def test_aux_has_the_gradient_of_an_ordinary_function_and_does_not_reach_the_estimate(name):
    plain, with_aux = run(name, False), run(name, True)
    torch.testing.assert_close(with_aux[1].logits.grad, plain[1].logits.grad, rtol=1e-10, atol=1e-12)
    for one, other in zip(with_aux[0].parameters(), plain[0].parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)
    expectation, q, decoder, f, noise, aux = with_aux
    assert aux["note"] == "text"
    found = [parameter.grad.clone() for parameter in decoder.parameters()]
    decoder.zero_grad()
    values, ordinary = f(expectation.estimator.draw(q.detach(), noise))
    (values.mean() + 3 * (ordinary["hidden"].mean(0) ** 2).sum()).backward()
    for one, parameter in zip(found, decoder.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-10, atol=1e-12)


def test_aux_without_gradients_and_in_the_explicit_estimate():
    expectation, q, _ = make_all("double-cv", dcv.Bernoulli)
    with torch.no_grad():
        value, aux = expectation(lambda x: (x.sum(-1), x.shape), q, has_aux=True)
    assert value.shape == (4,)
    assert aux == (2, 4, 3)
    assert expectation.estimate(lambda x: (x.sum(-1), "aux"), q, has_aux=True).aux == "aux"


def test_batch_normalization_and_dropout():
    """torch's modules keep their state themselves."""
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
    logits = torch.zeros(5, 3, requires_grad=True)
    expectation = Expectation(dcv.QuadraticDoubleCV(2))
    before = model[1].running_mean.clone()
    for _ in range(2):
        expectation(fold(lambda z: model(z)[:, 0]), dcv.Bernoulli(logits=logits)).mean().backward()
    assert not torch.equal(before, model[1].running_mean)
    assert model[1].num_batches_tracked == 2
    assert logits.grad.isfinite().all()


def stored(what, q_of, estimator=None):
    """Return a step of training whose loss may have a part on what f stored."""
    expectation = Expectation(estimator or dcv.DoubleCV(2, learning="gradient"))
    logits, kept = torch.zeros(3, 4, requires_grad=True), []

    def f(x):
        first = x[0] if isinstance(x, tuple) else x
        hidden = torch.sin(first)
        kept.append({"samples": first, "hidden": hidden}[what])
        return hidden.sum(-1)

    def step(with_stored):
        kept.clear()
        loss = expectation(f, q_of(logits)).mean()
        (loss + 3 * (kept[0].mean(0) ** 2).sum() if with_stored else loss).backward()

    return step


def bernoulli(logits):
    return dcv.Bernoulli(logits=logits)


def layers(logits):
    return dcv.Layers(dcv.Bernoulli(logits), lambda x: dcv.Bernoulli(logits * x))


REFUSED = r"a loss other than the mean of f reached the samples.*has_aux=True"


@pytest.mark.parametrize("q_of", [bernoulli, layers])
@pytest.mark.parametrize("before", [0, 7])
def test_a_loss_on_samples_that_f_stored_is_refused_at_once(before, q_of):
    """Its gradient reaches the samples and would be taken for that of f."""
    step = stored("samples", q_of)
    for _ in range(before):
        step(False)
    with pytest.raises(RuntimeError, match=REFUSED):
        step(True)


@pytest.mark.parametrize(("before", "every"), [(0, 200), (6, 3)])
def test_a_loss_on_something_else_that_f_stored_is_refused_when_it_is_looked_for(before, every, monkeypatch):
    monkeypatch.setattr(module, "CHECK_EVERY", every)
    step = stored("hidden", bernoulli)
    for _ in range(before):
        step(False)
    with pytest.raises(RuntimeError, match=REFUSED):
        step(True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_samples_count_as_kept_only_while_something_holds_them(dtype):
    kept, weight = [], torch.ones(3, 4, dtype=dtype, requires_grad=True)

    def keep(x):
        kept.append(x)
        return x.sum(-1)

    functions = {
        "kept": keep,
        "not kept": lambda x: x.sum(-1),
        "in the graph": lambda x: (x @ weight * x[..., :1] ** 2).sum(-1),
        "returned": lambda x: (x.sum(-1), {"x": x}),
    }
    for name, f in functions.items():
        watched = Watched(f)
        result = watched(torch.ones(2, 3, dtype=dtype, requires_grad=True).clone())
        assert watched.kept is (name == "kept")
        del result


@pytest.mark.parametrize("name", ["rloo", "double-cv", "muprop", "quadratic-double-cv", "rebar"])
@pytest.mark.parametrize("has_aux", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_an_f_that_changes_x_in_place_has_the_gradient_of_one_that_does_not(name, has_aux, keeps):
    expectation, q, _ = make_all(name, dcv.Bernoulli)
    kept = []
    options = {"noise": make_noise(expectation.estimator, q), "has_aux": has_aux}
    slope = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def in_place(x):
        values = torch.sin(x.mul_(2).sub_(1) @ slope)
        if keeps:
            kept.append(x)
        return (values, None) if has_aux else values

    def ordinary(x):
        values = torch.sin((2 * x - 1) @ slope)
        return (values, None) if has_aux else values

    explicit = [expectation.estimate(f, q, **options) for f in (in_place, ordinary)]
    torch.testing.assert_close(explicit[0].gradient, explicit[1].gradient)
    torch.testing.assert_close(explicit[0].evaluation.x, explicit[1].evaluation.x)
    for _ in range(2):
        gradients = []
        for f in (in_place, ordinary):
            value = expectation(f, q, **options)
            value = value[0] if has_aux else value
            gradients.append(torch.autograd.grad(value.sum(), [q.logits, *expectation.parameters()]))
        torch.testing.assert_close(*gradients)
        torch.testing.assert_close(gradients[0][0], explicit[1].gradient)


def test_fold_repeats_the_data_and_folds_the_samples_into_the_batch():
    expectation, q, _ = make_all("double-cv", dcv.Bernoulli)
    noise, data, labels, seen = make_noise(expectation.estimator, q), make_y(pixels=3), torch.arange(4), []

    def per_example(z, y, label):
        seen.append((tuple(z.shape), tuple(y["data"].shape), tuple(label.shape)))
        return torch.tanh(z * y["data"] + label[:, None]).sum(-1)

    folded = expectation(fold(per_example, {"data": data}, labels), q, noise=noise)
    assert seen[0] == ((8, 3), (8, 3), (8,))
    wanted = expectation(lambda x: torch.tanh(x * data + labels[:, None]).sum(-1), q, noise=noise)
    torch.testing.assert_close(folded, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(each.sum(), q.logits) for each in (folded, wanted)))
    with pytest.raises(ValueError, match=r"data must have the batch axis 4 in front, got shape \(5,\)"):
        expectation(fold(per_example, {"data": data}, torch.arange(5)), q)
    with pytest.raises(ValueError, match="f must return one number per example, 8 of them, got shape"):
        expectation(fold(lambda z: z.sum()), q)
