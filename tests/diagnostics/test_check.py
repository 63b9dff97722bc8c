"""`check` finds what is wrong with an f before a wrong number does, and names the remedy, in both frameworks."""

import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv.arrays import namespace
from frameworks import FRAMEWORKS, network

pytestmark = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)


def checked(framework, f, estimator=None, q=None, **options):
    q = framework.bernoulli() if q is None else q
    return framework.library.check(f, q, estimator, **framework.random, **options)


def test_a_good_function(framework):
    found = checked(framework, network, dcv.DoubleCV(2, learning="gradient"))
    assert found.has_gradient
    assert found.depends_on_x
    assert str(found) == (
        "f maps [2, 2, 3] to [2, 2] (float32), treats samples and batch elements one by one, and its gradient in x "
        "exists."
    )


def test_categorical(framework):
    q = dcv.Categorical(logits=framework.array(np.random.default_rng(0).normal(size=(3, 2, 4))))
    assert checked(framework, lambda x: x[..., 0].sum(-1) ** 2, q=q).has_gradient


@pytest.mark.parametrize(("axis", "what"), [(0, "samples"), (1, "batch elements")])
def test_a_mean_over_the_wrong_axis(framework, axis, what):
    def f(x):
        values = network(x)
        return values - namespace(x).mean(values, axis=axis, keepdims=True)

    with pytest.raises(ValueError, match=f"f mixes {what}: its value .* Remove means, sums and normalization over"):
        checked(framework, f)


@pytest.mark.parametrize("batch", [5, 6])
def test_two_neighbours_that_mix(framework, batch):
    """Any two of the batch elements, also if all the others are treated one by one."""
    q = framework.bernoulli(np.zeros((batch, 3)))

    def f(x):
        xp, values = namespace(x), network(x)
        return xp.concat([values[:, :-1], values[:, -1:] + 0.5 * values[:, 1:2]], axis=1)

    with pytest.raises(ValueError, match="f mixes batch elements"):
        checked(framework, f, q=q)


def test_a_threshold(framework):
    def f(x):
        return namespace(x).astype(x.sum(-1) > 1.5, x.dtype)

    found = checked(framework, f)
    assert not found.has_gradient
    assert "gradient in x is zero everywhere" in str(found)
    assert "rloo, disarm or arms" in str(found)
    with pytest.raises(TypeError, match="the gradient of f in x is zero everywhere, but double-cv needs it"):
        checked(framework, f, dcv.DoubleCV(2, learning="gradient"))
    assert not checked(framework, f, dcv.RLOO(2)).has_gradient


def test_a_constant(framework):
    found = checked(framework, lambda x: 0 * x.sum(-1))
    assert not found.depends_on_x
    assert "does not depend on x" in str(found)


def test_nan(framework):
    with pytest.raises(ValueError, match="f returned NaN or infinity"):
        checked(framework, lambda x: network(x) / 0 * 0 if framework.name == "jax" else network(x) * float("nan"))


def test_shapes(framework):
    with pytest.raises(ValueError, match=r"f must return shape \(4, 2\)"):
        checked(framework, lambda x: x.sum())
    with pytest.raises(TypeError, match="f and q are swapped"):
        framework.library.check(framework.bernoulli(), network, **framework.random)


def test_auxiliary_output(framework):
    assert checked(framework, lambda x: (network(x), {"x": x}), has_aux=True).has_gradient


class TestModules:
    """What foreign models bring: batch normalization in training mode, and dropout."""

    @pytest.fixture(autouse=True)
    def only_torch(self, framework):
        if framework.name != "torch":
            pytest.skip("modules of PyTorch")

    def module(self, layer):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), layer, torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def f(self, module):
        return lambda x: module(x.flatten(0, 1)).reshape(x.shape[:2])

    def test_batch_normalization(self, framework):
        module = self.module(torch.nn.BatchNorm1d(4))
        with pytest.raises(ValueError, match=r"f mixes samples: .* put batch normalization into evaluation mode"):
            checked(framework, self.f(module))
        assert checked(framework, self.f(module.eval())).has_gradient

    def test_dropout(self, framework):
        module = self.module(torch.nn.Dropout(0.5))
        with pytest.raises(ValueError, match="f returned other values for the same points: it draws random numbers"):
            checked(framework, self.f(module))
        assert checked(framework, self.f(module.eval())).has_gradient
