"""Couplings: every sample keeps the distribution q, and the stated joint distribution is the one that is drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import doublecv as dcv
from doublecv.estimators.couplings import Antithetic, DirichletCopula, Independent

COUPLINGS = [
    (Independent(), 3),
    (Antithetic(), 4),
    (DirichletCopula(), 2),
    (DirichletCopula(), 3),
    (DirichletCopula(), 5),
]
LOGITS = np.array([-4.0, -1.0, -0.1, 0.0, 0.4, 2.5])


def identify(case):
    return type(case).__name__ if not isinstance(case, int) else str(case)


@pytest.mark.parametrize(("coupling", "samples"), COUPLINGS, ids=identify)
class TestJoint:
    def test_is_a_distribution_with_the_right_marginals(self, coupling, samples):
        q = dcv.Bernoulli(logits=LOGITS)
        joint = coupling.joint(q, samples)
        patterns = np.array(joint.patterns)
        assert patterns.shape == (len(joint.probabilities), samples)
        assert np.all(joint.probabilities >= -1e-15)
        np.testing.assert_allclose(joint.probabilities.sum(0), 1, rtol=1e-13)
        np.testing.assert_allclose(patterns.T @ joint.probabilities, np.broadcast_to(q.mean, (samples, 6)), rtol=1e-12)

    def test_is_what_is_drawn(self, coupling, samples):
        draws = 100_000
        q = dcv.Bernoulli(logits=np.broadcast_to(LOGITS, (draws, 6)))
        x = coupling.draw(q, np.random.default_rng(0).uniform(size=coupling.noise_shape(q, samples)))
        assert x.shape == (samples, draws, 6)
        joint = coupling.joint(dcv.Bernoulli(logits=LOGITS), samples)
        for pattern, probability in zip(joint.patterns, joint.probabilities, strict=True):
            frequency = np.all(x == np.array(pattern)[:, None, None], axis=0).mean(0)
            error = np.sqrt(np.maximum(probability, 1e-9) * (1 - probability) / draws)
            assert np.all(np.abs(frequency - probability) < 5 * error + 1e-12)

    def test_noise_at_its_ends(self, coupling, samples):
        q = dcv.Bernoulli(logits=np.array([-np.inf, -1e4, 0.0, 1e4, np.inf], dtype=np.float32))
        shape = coupling.noise_shape(q, samples)
        for end in (np.float32(0), np.nextafter(np.float32(1), np.float32(0))):
            x = coupling.draw(q, np.full(shape, end, dtype=np.float32))
            assert x.dtype == np.float32
            np.testing.assert_array_equal(x[:, 0], 0)
            np.testing.assert_array_equal(x[:, -1], 1)


def test_an_antithetic_pair_avoids_equal_values():
    joint = Antithetic().joint(dcv.Bernoulli(logits=LOGITS), 2)
    by_pattern = dict(zip(joint.patterns, joint.probabilities, strict=True))
    equal = by_pattern[(0, 0)] + by_pattern[(1, 1)]
    np.testing.assert_allclose(equal, np.abs(1 - 2 * dcv.Bernoulli(logits=LOGITS).mean), atol=1e-15)


@settings(deadline=None, max_examples=100)
@given(st.floats(-30, 30), st.integers(2, 8))
def test_the_copulas_correlation_is_negative_and_the_one_of_the_joint(logit, samples):
    q = dcv.Bernoulli(logits=np.array([logit]))
    independence = DirichletCopula().independence(q, samples)[0]
    assert 0.5 - 1e-12 <= independence <= 1
    if abs(logit) < 8 and samples <= 5:
        joint = DirichletCopula().joint(q, samples)
        both = sum(
            p[0] for pattern, p in zip(joint.patterns, joint.probabilities, strict=True) if pattern[0] and pattern[1]
        )
        mean = q.mean[0]
        correlation = (both - mean**2) / (mean * (1 - mean))
        assert independence == pytest.approx(1 / (1 - correlation), rel=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("samples", [2, 3, 100])
def test_independence_at_extreme_logits(dtype, samples):
    q = dcv.Bernoulli(logits=np.array([-np.inf, -1e4, -100.0, 100.0, np.inf], dtype=dtype))
    np.testing.assert_allclose(DirichletCopula().independence(q, samples), 1)
