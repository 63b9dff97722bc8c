"""The biased estimators equal backpropagation through their published surrogates, and their bias is measured."""

import numpy as np
import pytest
import torch

import doublecv as dcv
import doublecv.torch
from doublecv.biased import GumbelSoftmaxStraightThrough, ReinMax, StraightThrough
from doublecv.exact import exact_gradient, support

FAMILIES = {dcv.Bernoulli: (3,), dcv.Categorical: (2, 3)}
CLASSES = [StraightThrough, GumbelSoftmaxStraightThrough, ReinMax]


def network(x, event_axes):
    weights = torch.as_tensor(np.random.default_rng(0).normal(size=(int(np.prod(x.shape[-event_axes:])), 4)))
    return torch.tanh(x.flatten(-event_axes) @ weights).sum(-1) ** 2


def surrogate(cls, q, noise, x):
    """The sample as each paper's program makes it: x in the forward pass, a smooth function in the backward pass."""
    if cls is StraightThrough:
        soft = q.mean
    elif cls is GumbelSoftmaxStraightThrough:
        if isinstance(q, dcv.Bernoulli):
            soft = torch.sigmoid((q.logits + torch.log1p(-noise) - torch.log(noise)) / 0.7)
        else:
            soft = torch.softmax((q.logits - torch.log(-torch.log(noise))) / 0.7, -1)
    elif isinstance(q, dcv.Bernoulli):
        middle = (x + q.mean) / 2
        again = torch.sigmoid((torch.logit(middle) - q.logits).detach() + q.logits)
        soft = 2 * again - q.mean / 2
    else:
        middle = (x + q.mean) / 2
        again = torch.softmax((torch.log(middle) - q.logits).detach() + q.logits, -1)
        soft = 2 * again - q.mean / 2
    return x + soft - soft.detach()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cls", CLASSES)
def test_the_formula_is_backpropagation_through_the_surrogate(cls, family):
    logits = torch.as_tensor(np.random.default_rng(1).normal(size=(5, *FAMILIES[family]))).requires_grad_()
    q, event_axes = family(logits=logits), family.event_axes
    options = {"temperature": 0.7} if cls is GumbelSoftmaxStraightThrough else {}
    estimator = cls(samples=2, **options)
    noise = torch.as_tensor(np.random.default_rng(2).uniform(size=estimator.noise_shape(q)))
    x = estimator.draw(q.detach(), noise)
    value = network(surrogate(cls, q, noise, x), event_axes).mean(0).sum()
    (wanted,) = torch.autograd.grad(value, logits)
    points = x.clone().requires_grad_()
    (df,) = torch.autograd.grad(network(points, event_axes).sum(), points)
    got = estimator.estimate(q.detach(), noise, x, df)
    np.testing.assert_allclose(got, wanted, atol=1e-12)


def mean_by_enumeration(estimator, q, df):
    points, probabilities = support(q)
    unused_noise = np.zeros_like(points)
    terms = estimator.backpropagate(q, unused_noise, points, df(points))
    return np.sum(probabilities[(..., *(None,) * q.event_axes)] * terms, axis=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cls", [StraightThrough, ReinMax])
def test_exact_for_a_linear_function(cls, family):
    shape = FAMILIES[family]
    q = family(logits=np.random.default_rng(3).normal(size=shape))
    slope = np.random.default_rng(4).normal(size=shape)

    def f(x):
        return np.sum(x * slope, axis=tuple(range(-len(shape), 0)))

    got = mean_by_enumeration(cls(), q, lambda x: np.broadcast_to(slope, x.shape))
    np.testing.assert_allclose(got, exact_gradient(f, q), atol=1e-12)


@pytest.mark.parametrize(
    "q",
    [dcv.Bernoulli(logits=np.array([0.7])), dcv.Categorical(logits=np.array([[0.7, -1.0, 0.2]]))],
    ids=["bernoulli", "categorical"],
)
def test_reinmax_is_exact_for_a_quadratic_function_of_one_variable(q):
    size = q.event_shape[-1]
    matrix = np.random.default_rng(5).normal(size=(size, size))

    def f(x):
        flat = x.reshape(-1, size)
        return np.einsum("ki,ij,kj->k", flat, matrix, flat)

    def df(x):
        return x @ (matrix + matrix.T)

    np.testing.assert_allclose(mean_by_enumeration(ReinMax(), q, df), exact_gradient(f, q), atol=1e-12)
    assert np.abs(mean_by_enumeration(StraightThrough(), q, df) - exact_gradient(f, q)).max() > 0.01


def test_options():
    with pytest.raises(ValueError, match="temperature must be a positive number, got 0"):
        GumbelSoftmaxStraightThrough(temperature=0)
    with pytest.raises(ValueError, match="samples must be a positive integer, got 0"):
        ReinMax(samples=0)


class TestMeasuredBias:
    q = dcv.Bernoulli(logits=torch.tensor([[1.0, -0.5, 0.3]], dtype=torch.float64))

    def f(self, x):
        return network(x, 1)

    def df(self, x):
        points = torch.tensor(x).requires_grad_()
        (gradient,) = torch.autograd.grad(self.f(points).sum(), points)
        return gradient.numpy()

    def true_squared_bias(self, cls):
        numpy_q = dcv.Bernoulli(logits=self.q.logits.numpy())
        truth = exact_gradient(lambda x: self.f(torch.tensor(x)).numpy(), numpy_q)
        return np.mean((mean_by_enumeration(cls(), numpy_q, self.df) - truth) ** 2)

    @pytest.mark.parametrize("cls", [StraightThrough, ReinMax])
    @pytest.mark.parametrize("exact", [True, False], ids=["exact", "long average"])
    def test_within_its_error(self, cls, exact, monkeypatch):
        if not exact:
            monkeypatch.setattr("doublecv.diagnostics.problem.LARGEST_EXACT", 0)
        generator = torch.Generator().manual_seed(0)
        table = doublecv.torch.compare(self.f, self.q, [cls(samples=2)], draws=400, generator=generator, rounds=0)
        measured, wanted = table.rows[0].bias, self.true_squared_bias(cls)
        assert 0 < measured.standard_error < wanted
        assert abs(measured.squared_bias - wanted) < 4 * measured.standard_error
        assert ("the exact gradient" if exact else "an average of unbiased gradients") in str(table)
