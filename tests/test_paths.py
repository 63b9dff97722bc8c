"""Estimators on paths: exact unbiasedness over all paths of small chains, and mutants that must fail."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

import doublecv as dcv
from doublecv.estimators import DoubleCV, Evaluation, HalfDoubleCV, QuadraticDoubleCV, Reinforce, fixed_coefficients
from doublecv.estimators.averages import dot_correction
from doublecv.estimators.parts import Vectors
from doublecv.paths import Block, Mixed, Path

CHAINS = {
    "three-bits": (Block(1),) * 3,
    "two-layers": (Block(2), Block(2)),
    "three-layers": (Block(1), Block(2), Block(1)),
    "categories": (Block(1, 3), Block(1, 2)),
    "two-categorical-layers": (Block(2, 2), Block(1, 2)),
    "bits-and-categories": (Block(1), Block(1, 3), Block(1)),
}

ESTIMATORS = {
    "reinforce": Reinforce,
    "reinforce-baseline": lambda samples: Reinforce(samples, learned_baseline=True),
    "rloo": dcv.RLOO,
    "double-cv": DoubleCV,
    "double-cv-current": lambda samples: HalfDoubleCV(samples, keep="current"),
    "double-cv-others": lambda samples: HalfDoubleCV(samples, keep="others"),
    "quadratic-double-cv": QuadraticDoubleCV,
}


@dataclass
class Chain:
    """A chain whose logits are W^T x + b, with W strictly upper triangular over the blocks."""

    blocks: tuple[Block, ...]

    def __post_init__(self):
        generator = np.random.default_rng(0)
        size = sum(block.size for block in self.blocks)
        step = np.repeat(np.arange(len(self.blocks)), [block.size for block in self.blocks])
        self.mask = (step[:, None] < step[None]).astype(float)
        self.weights, self.bias = 1.5 * generator.normal(size=(size, size)), generator.normal(size=size)
        self.matrix = generator.normal(size=(size, size))
        values = []
        for block in self.blocks:
            one = [[0.0], [1.0]] if block.categories is None else np.eye(block.categories).tolist()
            values += [one] * block.variables
        self.points = np.array([np.concatenate(choice) for choice in product(*values)])
        self.logits = self.points @ (self.weights * self.mask) + self.bias
        q = Path(self.logits[None], self.blocks)
        self.probabilities = np.exp(q.log_prob(self.points[None])[0])
        self.scores = q.score(self.points[None])[0]

    def f(self, x):
        return 2 + ((x @ self.matrix) * x).sum(-1) + np.sin(1.3 * x.sum(-1))

    def df(self, x):
        return x @ (self.matrix + self.matrix.T) + 1.3 * np.cos(1.3 * x.sum(-1, keepdims=True))

    def pull_back(self, weight, x, g):
        """The gradient in W and b of visited logits whose gradient is g, summed with the weights."""
        weighted = weight[:, None] * g
        return np.concatenate([((x.T @ weighted) * self.mask).ravel(), weighted.sum(0)])

    def exact_gradient(self):
        return self.pull_back(self.probabilities * self.f(self.points), self.points, self.scores)

    def outcomes(self, samples):
        """All outcomes of K paths as one batch axis, and their probabilities."""
        index = np.array(list(product(range(len(self.points)), repeat=samples))).T
        q = Path(self.logits[index], self.blocks)
        x = self.points[index]
        return q, Evaluation(x, self.f(x), self.df(x)), self.probabilities[index].prod(0)

    def bias_of(self, estimator, learned):
        q, evaluation, probabilities = self.outcomes(estimator.samples)
        g = estimator.apply(q, evaluation, learned).gradient
        mean = sum(self.pull_back(probabilities, evaluation.x[k], g[k]) for k in range(estimator.samples))
        return np.abs(mean - self.exact_gradient()).max()


def random_coefficients(estimator, seed=0):
    names = estimator.needs.coefficients
    return fixed_coefficients(dict(zip(names, np.random.default_rng(seed).normal(size=len(names)), strict=True)))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_unbiased_over_all_paths(chain, samples, name):
    estimator, chain = ESTIMATORS[name](samples), Chain(CHAINS[chain])
    np.testing.assert_allclose(chain.probabilities.sum(), 1, rtol=1e-12)
    assert chain.bias_of(estimator, random_coefficients(estimator)) < 1e-10


@pytest.mark.parametrize("name", QuadraticDoubleCV(3).needs.coefficients)
def test_every_term_of_the_quadratic_form_is_unbiased(name):
    estimator = QuadraticDoubleCV(3)
    one = fixed_coefficients({other: 2.0 * (other == name) for other in estimator.needs.coefficients})
    assert Chain(CHAINS["bits-and-categories"]).bias_of(estimator, one) < 1e-10


@dataclass(frozen=True)
class WrongPath(DoubleCV):
    """Double CV whose correction is taken at the logits that another sample visited."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        other = q.with_logits(np.roll(q.logits, 1, axis=0))
        wrong = dot_correction(other, evaluation.df) - dot_correction(q, evaluation.df)
        return Vectors(q, g0, {"alpha": h["alpha"] - wrong})


@dataclass(frozen=True)
class WrongCompensator(QuadraticDoubleCV):
    """The quadratic form that centres the square of a path with the compensator of another one."""

    def parts(self, q, evaluation):
        parts = super().parts(q, evaluation)
        G = evaluation.df
        n = q.dot(G, q.covariance_product(G))
        wrong = {}
        for k in range(self.samples):
            others = [j for j in range(self.samples) if j != k]
            own = [q.dot(G[j], q.covariance_product(np.broadcast_to(G[j], G.shape))[k]) for j in others]
            wrong[k] = sum((a - n[j]) / n[j] for a, j in zip(own, others, strict=True)) / len(others)
        parts.weights["current_square"] = parts.weights["current_square"] + np.stack([wrong[k] for k in wrong])
        return parts


@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("chain", ["three-bits", "two-layers", "bits-and-categories"])
class TestMutants:
    def test_the_second_part_dropped(self, chain, samples, monkeypatch):
        chain, estimator = Chain(CHAINS[chain]), QuadraticDoubleCV(samples)
        monkeypatch.setattr(Path, "sum_of_earlier", lambda self, v: np.zeros_like(v))
        assert chain.bias_of(estimator, random_coefficients(estimator)) > 1e-3

    def test_the_correction_at_the_wrong_path(self, chain, samples):
        estimator = WrongPath(samples)
        assert Chain(CHAINS[chain]).bias_of(estimator, random_coefficients(estimator)) > 1e-3

    def test_the_compensator_of_the_wrong_path(self, chain, samples):
        estimator = WrongCompensator(samples)
        assert Chain(CHAINS[chain]).bias_of(estimator, random_coefficients(estimator)) > 1e-3


@pytest.mark.parametrize("name", ESTIMATORS)
def test_samples_with_the_same_logits_are_a_product(name):
    """A path without dependence gives the estimate of the product, up to the part whose mean is 0."""
    generator = np.random.default_rng(1)
    blocks, estimator = (Block(3),), ESTIMATORS[name](3)
    logits = generator.normal(size=(4, 3))
    x = (generator.uniform(size=(3, 4, 3)) < 0.5).astype(float)
    evaluation = Evaluation(x, generator.normal(size=(3, 4)), generator.normal(size=(3, 4, 3)))
    learned = random_coefficients(estimator)
    on_path = estimator.apply(Path(np.broadcast_to(logits, x.shape), blocks), evaluation, learned).gradient
    for q in (Mixed(logits, blocks), dcv.Bernoulli(logits=logits)):
        np.testing.assert_allclose(on_path.sum(0), estimator.apply(q, evaluation, learned).gradient, atol=1e-12)


def test_blocks_agree_with_their_families():
    generator = np.random.default_rng(2)
    bits, categories = generator.normal(size=(5, 2)), generator.normal(size=(5, 2, 3))
    q = Mixed(np.concatenate([bits, categories.reshape(5, 6)], axis=-1), (Block(2), Block(1, 3), Block(1, 3)))
    families = dcv.Bernoulli(logits=bits), dcv.Categorical(logits=categories)
    v = generator.normal(size=(5, 8))
    parts = v[:, :2], v[:, 2:].reshape(5, 2, 3)
    for method in ("covariance_product", "score_square_moment"):
        wanted = [getattr(family, method)(part).reshape(5, -1) for family, part in zip(families, parts, strict=True)]
        np.testing.assert_allclose(getattr(q, method)(v), np.concatenate(wanted, axis=-1), atol=1e-15)
    np.testing.assert_allclose(q.entropy(), families[0].entropy() + families[1].entropy(), rtol=1e-12)
    noise = generator.uniform(size=(7, *q.noise_shape))
    x = q.sample(noise)
    np.testing.assert_array_equal(x[..., :2], families[0].sample(noise[..., :2]))
    np.testing.assert_array_equal(x[..., 2:].reshape(7, 5, 2, 3), families[1].sample(noise[..., 2:]))
    np.testing.assert_allclose(
        q.log_prob(x), families[0].log_prob(x[..., :2]) + families[1].log_prob(x[..., 2:].reshape(7, 5, 2, 3))
    )
    np.testing.assert_allclose(q.kl(q), 0, atol=1e-12)
    earlier = q.sum_of_earlier(v)
    np.testing.assert_allclose(earlier[:, :2], 0)
    np.testing.assert_allclose(earlier[:, 2:5], np.repeat(v[:, :2].sum(-1, keepdims=True), 3, axis=-1))
    np.testing.assert_allclose(earlier[:, 5:], np.repeat(v[:, :5].sum(-1, keepdims=True), 3, axis=-1))


def test_other_estimators_refuse_and_name_those_that_work():
    q = Path(np.zeros((2, 3)), (Block(1),) * 3)
    for name in ("disarm", "arms", "muprop", "rodeo", "rebar", "r-star", "surrogate-quadratic-double-cv", "carms"):
        with pytest.raises(TypeError, match="take Reinforce, RLOO, DoubleCV, HalfDoubleCV or QuadraticDoubleCV"):
            dcv.make(name, samples=2).check_family(q)


@pytest.mark.parametrize("method", ["entropy", "variable_values", "variable_probabilities"])
def test_what_a_path_does_not_have(method):
    with pytest.raises(TypeError, match=r"(?i)path"):
        getattr(Path(np.zeros((2, 3)), (Block(3),)), method)()


def test_the_layout_is_checked():
    with pytest.raises(ValueError, match="with 4 coordinates, got shape \\(2, 3\\)"):
        Path(np.zeros((2, 3)), (Block(1), Block(1, 3)))
