"""CARMS and the tree of DisARM: the joint laws that they state and draw, and exact unbiasedness."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv.estimators import AntitheticTree, Evaluation, Independent, StickBreakingCopula

COUPLINGS = [(StickBreakingCopula(), 2), (StickBreakingCopula(), 3), (AntitheticTree(), 2), (AntitheticTree(), 4)]
LOGITS = np.array([[0.0, 0.0, 0.0], [2.0, -1.0, 0.3], [-5.0, 4.0, -5.0], [0.1, 0.2, -3.0]])


def identify(case):
    return type(case).__name__ if not isinstance(case, int) else str(case)


@pytest.mark.parametrize(("coupling", "samples"), COUPLINGS, ids=identify)
class TestCoupling:
    def test_the_joint_law_has_the_right_marginals(self, coupling, samples):
        q = dcv.Categorical(logits=LOGITS)
        joint = coupling.joint(q, samples)
        assert np.all(joint.probabilities >= -1e-15)
        np.testing.assert_allclose(joint.probabilities.sum(0), 1, rtol=1e-12)
        one_hot = np.eye(3)[np.array(joint.patterns)]
        np.testing.assert_allclose(
            np.einsum("pkc,pd->kdc", one_hot, joint.probabilities), np.broadcast_to(q.mean, (samples, 4, 3)), rtol=1e-10
        )

    def test_the_joint_law_is_what_is_drawn(self, coupling, samples):
        draws = 50_000
        q = dcv.Categorical(logits=np.broadcast_to(LOGITS, (draws, 4, 3)))
        x = coupling.draw(q, np.random.default_rng(0).uniform(size=coupling.noise_shape(q, samples)))
        np.testing.assert_array_equal(x.sum(-1), 1)
        joint = coupling.joint(dcv.Categorical(logits=LOGITS), samples)
        drawn = x.argmax(-1)
        for pattern, probability in zip(joint.patterns, joint.probabilities, strict=True):
            frequency = np.all(drawn == np.array(pattern)[:, None, None], axis=0).mean(0)
            error = np.sqrt(np.maximum(probability, 1e-9) * (1 - probability) / draws)
            assert np.all(np.abs(frequency - probability) < 5 * error + 1e-12)

    def test_certain_variables_stay_certain(self, coupling, samples):
        q = dcv.Categorical(logits=np.array([[np.inf, 0.0, 1.0], [-np.inf, 0.0, -np.inf]], dtype=np.float32))
        shape = coupling.noise_shape(q, samples)
        for end in (np.float32(0), np.float32(0.5), np.nextafter(np.float32(1), np.float32(0))):
            x = coupling.draw(q, np.full(shape, end, dtype=np.float32))
            np.testing.assert_array_equal(x, np.broadcast_to(q.mean, (samples, 2, 3)))


@pytest.mark.parametrize("samples", [2, 3])
def test_different_categories_can_meet_on_the_stick(samples):
    joint = StickBreakingCopula().joint(dcv.Categorical(logits=LOGITS), samples)
    first, second = np.array(joint.patterns)[:, :2].T
    for c, d in product(range(3), repeat=2):
        if c != d:
            assert np.all(joint.probabilities[(first == c) & (second == d)].sum(0) > 0)


def _f(x):
    z = (x * np.arange(1.0, 4)).sum(-1)
    return np.sin(2 * z[..., 0]) * z[..., 1] ** 2 + z[..., 0]


def _exact_gradient(q):
    total = np.zeros(q.logits.shape)
    for z in product(range(3), repeat=2):
        x = np.eye(3)[list(z)]
        total += np.prod((q.mean * x).sum(-1)) * _f(x) * (x - q.mean)
    return total


def _expected(gradient, coupling, samples, logits):
    q = dcv.Categorical(logits=logits)
    joint = coupling.joint(q, samples)
    patterns = np.array(joint.patterns)
    chosen = np.array(list(product(range(len(patterns)), repeat=2)))
    x = np.eye(3)[patterns[chosen]].transpose(2, 0, 1, 3)
    probability = joint.probabilities[chosen[:, 0], 0] * joint.probabilities[chosen[:, 1], 1]
    repeated = dcv.Categorical(logits=np.broadcast_to(logits, (len(chosen), 2, 3)))
    estimates = gradient(repeated, x, _f(x))
    mean = np.einsum("o,odc->dc", probability, estimates)
    return mean, np.einsum("o,odc->", probability, (estimates - mean) ** 2)


def _rloo(q, x, f):
    others = (f.sum(0) - f) / (f.shape[0] - 1)
    return ((f - others)[..., None, None] * (x - q.mean)).mean(0)


@pytest.mark.parametrize("pair", [(0, 1), (2, 3), (1, 3)])
@pytest.mark.parametrize(
    ("coupling", "samples"),
    [
        (StickBreakingCopula(), 2),
        (StickBreakingCopula(), 3),
        (StickBreakingCopula(), 4),
        (AntitheticTree(), 2),
        (AntitheticTree(), 4),
    ],
)
class TestGradient:
    def test_is_unbiased(self, coupling, samples, pair):
        logits = LOGITS[list(pair)]
        mean, _ = _expected(coupling.estimate, coupling, samples, logits)
        np.testing.assert_allclose(mean, _exact_gradient(dcv.Categorical(logits=logits)), atol=1e-10)

    def test_without_its_ratio_is_biased(self, coupling, samples, pair):
        logits = LOGITS[list(pair)]
        mean, _ = _expected(_rloo, coupling, samples, logits)
        assert np.abs(mean - _exact_gradient(dcv.Categorical(logits=logits))).max() > 1e-4


def test_two_categories_are_arms_and_disarm():
    logits = np.random.default_rng(0).normal(size=(6, 4))
    pairs = np.stack([logits / 2, -logits / 2], axis=-1)
    generator = np.random.default_rng(1)
    for samples, name, binary in ((3, "carms", "arms"), (2, "disarm-tree", "disarm")):
        bits = (generator.uniform(size=(samples, 6, 4)) < 0.5).astype(float)
        f = generator.normal(size=(samples, 6))
        wanted = dcv.make(binary, samples).apply(dcv.Bernoulli(logits=logits), Evaluation(bits, f)).gradient
        one_hot = np.stack([bits, 1 - bits], axis=-1)
        given = dcv.make(name, samples).apply(dcv.Categorical(logits=pairs), Evaluation(one_hot, f)).gradient
        np.testing.assert_allclose(given, np.stack([wanted, -wanted], axis=-1), atol=1e-12)


@pytest.mark.parametrize(
    ("coupling", "samples"),
    [(StickBreakingCopula(), 3), (AntitheticTree(), 4)],
)
@pytest.mark.parametrize("categories", [1, 2, 5])
def test_the_array_libraries_agree(coupling, samples, categories, x64):
    logits = np.random.default_rng(0).normal(size=(2, 3, categories))
    q = dcv.Categorical(logits=logits)
    noise = np.random.default_rng(1).uniform(size=coupling.noise_shape(q, samples))
    f = np.random.default_rng(2).normal(size=(samples, 2))
    x = coupling.draw(q, noise)
    wanted = coupling.estimate(q, x, f)
    assert wanted.shape == logits.shape

    def both(q, noise, f):
        drawn = coupling.draw(q, noise)
        return drawn, coupling.estimate(q, drawn, f)

    for array, run in ((jnp.asarray, jax.jit(both)), (torch.tensor, both)):
        drawn, estimate = run(dcv.Categorical(logits=array(logits)), array(noise), array(f))
        np.testing.assert_array_equal(np.asarray(drawn), x)
        np.testing.assert_allclose(np.asarray(estimate), wanted, atol=1e-12)


def test_the_variance_is_below_leave_one_out():
    """Uniform variables are where equal samples are most frequent among independent ones."""
    logits = LOGITS[[0, 0]]
    independent = _expected(_rloo, Independent(), 2, logits)[1]
    for coupling in (StickBreakingCopula(), AntitheticTree()):
        assert _expected(coupling.estimate, coupling, 2, logits)[1] < 0.9 * independent
