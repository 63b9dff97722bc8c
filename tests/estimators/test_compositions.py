"""Double CV composed with coupled samples and with a concrete relaxation: formula, bias, learning, variance."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from doublecv.diagnostics import exact_gradient, exact_moments, optimal_coefficients
from doublecv.estimators.disarm import leave_pair_out
from doublecv.estimators.leave_one_out import leave_one_out

import doublecv as dcv
import doublecv.torch
from doublecv.estimators import Evaluation, make
from doublecv.estimators.parts import Vectors
from doublecv.jax import expect
from noise_quadrature import estimate_at, full_mean, given_noise, quadrature_mean
from problems import linear, make_logits, make_problem, network

COUPLED = {
    "double-cv-antithetic": dcv.DisARM,
    "double-cv-mean-antithetic": dcv.DisARM,
    "double-cv-mean-dirichlet": dcv.ARMS,
}
"""The coupled compositions, and what each is with alpha = 0."""


def drawn(estimator, seed=0):
    """q and an evaluation at drawn samples."""
    problem, q = make_problem("network", dcv.Bernoulli), dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))
    x = estimator.draw(q, np.random.default_rng(seed).random(estimator.noise_shape(q)))
    return q, Evaluation(x, problem.f(x), problem.df(x), problem.f(q.mean), problem.df(q.mean))


def bias(mean, f, q):
    return np.max(np.abs(mean - exact_gradient(f, type(q)(logits=np.asarray(q.logits)))))


# Coupled samples


@pytest.mark.parametrize(("name", "base"), COUPLED.items())
def test_alpha_zero_is_the_coupled_estimator(name, base):
    estimator = make(name, samples=4)
    q, evaluation = drawn(estimator)
    noise = np.random.default_rng(1).random(estimator.noise_shape(q))
    np.testing.assert_array_equal(estimator.draw(q, noise), base(4).draw(q, noise))
    np.testing.assert_array_equal(
        estimator.gradient(q, evaluation, {"alpha": 0.0}), base(4).gradient(q, evaluation, {})
    )


@pytest.mark.parametrize("samples", [4, 6])
def test_each_pair_is_corrected_with_the_gradients_of_the_other_pairs(samples):
    """mean_p [DisARM_p(f + alpha d_p^T (x - mu)) - alpha M d_p], pair by pair."""
    estimator = dcv.DoubleCV(samples, coupling="antithetic")
    q, evaluation = drawn(estimator)
    pairs, alpha, of_pairs = samples // 2, 0.7, []
    for pair in range(pairs):
        others = [k for k in range(samples) if k % pairs != pair]
        d = evaluation.df[others].mean(0)
        both = evaluation.x[[pair, pair + pairs]]
        values = evaluation.f[[pair, pair + pairs]] + alpha * np.sum(d * (both - q.mean), axis=-1)
        disarm = dcv.DisARM(2).gradient(q, Evaluation(both, values), {})
        of_pairs.append(disarm - alpha * q.covariance(d))
    got = estimator.gradient(q, evaluation, {"alpha": alpha})
    np.testing.assert_allclose(got, np.mean(of_pairs, axis=0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", COUPLED)
def test_a_linear_f_leaves_no_variance(name):
    q, problem = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli)), linear(3, 1)
    estimator = make(name, samples=4)
    moments = exact_moments(estimator, problem.f, q, {"alpha": -1.0}, problem.df)
    assert np.max(moments.variance) < 1e-28
    assert np.max(exact_moments(estimator, problem.f, q, {"alpha": 0.0}, problem.df).variance) > 1e-2


@dataclasses.dataclass(frozen=True)
class PartnerKept(dcv.DoubleCV):
    """Antithetic pairs whose surrogate leaves out the sample alone, and keeps the gradient at its partner."""

    def parts(self, q, evaluation):
        g0, _ = super().parts(q, evaluation).vectors()
        b = q.dot(leave_one_out(evaluation.df), q.score(evaluation.x))
        h = dcv.DisARM(self.samples).gradient(q, Evaluation(evaluation.x, b), {})
        return Vectors(q, g0, {"alpha": h - q.covariance(evaluation.df.mean(0))})


@dataclasses.dataclass(frozen=True)
class Uncorrected(dcv.DoubleCV):
    """The estimate of f + alpha b alone."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        return Vectors(q, g0, {"alpha": h["alpha"] + self._surrogate(q, evaluation, q.score(evaluation.x))[1]})


@pytest.mark.parametrize(
    "broken",
    [
        PartnerKept(4, coupling="antithetic"),
        Uncorrected(4, coupling="antithetic"),
        Uncorrected(2, surrogate="mean", coupling="antithetic"),
        Uncorrected(3, surrogate="mean", coupling="dirichlet"),
    ],
    ids=lambda broken: f"{type(broken).__name__}-{broken.name}",
)
def test_enumeration_catches_a_broken_composition(broken):
    q, problem = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli)), make_problem("network", dcv.Bernoulli)
    assert bias(exact_moments(broken, problem.f, q, {"alpha": 0.7}, problem.df).mean, problem.f, q) > 1e-3


def test_leave_pair_out():
    v = np.array([1.0, 10.0, 100.0, 3.0, 30.0, 300.0])
    np.testing.assert_allclose(leave_pair_out(v), [110.0, 101.0, 11.0, 110.0, 101.0, 11.0])


def best_variances(names, samples, scale):
    """The exact variance of each, with its best alpha, on a network of the samples."""
    problem, q = network(3, 1), dcv.Bernoulli(logits=scale * np.random.default_rng(0).normal(size=(4, 3)))

    def variance(name):
        estimator = make(name, samples=samples)
        best = optimal_coefficients(estimator, problem.f, q, df=problem.df)
        return exact_moments(estimator, problem.f, q, best, problem.df).variance.mean()

    return {name: variance(name) for name in names}


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_each_composition_has_less_variance_than_the_coupled_estimator(scale):
    two = best_variances(["disarm", "double-cv-mean", "double-cv-mean-antithetic"], 2, scale)
    assert two["double-cv-mean-antithetic"] < 0.25 * two["disarm"]
    assert two["double-cv-mean-antithetic"] < 0.75 * two["double-cv-mean"]
    four = best_variances(
        ["disarm", "arms", "double-cv-mean", "double-cv-antithetic", "double-cv-mean-dirichlet"], 4, scale
    )
    assert four["double-cv-antithetic"] < 0.5 * four["disarm"]
    assert four["double-cv-mean-dirichlet"] < 0.25 * four["arms"]
    assert four["double-cv-mean-dirichlet"] < 0.8 * four["double-cv-mean"]


# The concrete surrogate


@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
def test_the_concrete_surrogate_is_rebar_with_a_leave_one_out_baseline(x64, family):
    q, f = family(logits=jnp.asarray(make_logits(family))), make_problem("network", family).f
    alpha, temperature = -0.8, 0.4
    estimator = dcv.DoubleCV(3, surrogate="concrete", temperature=temperature)
    noise = np.random.default_rng(1).uniform(size=estimator.noise_shape(q))
    as_rebar = {"log_temperature": math.log(temperature), "scale": -alpha}
    ours = jax.jit(lambda noise: estimate_at(estimator, f, q, {"alpha": alpha}, noise))(noise)
    rebar = jax.jit(lambda noise: estimate_at(dcv.Rebar(3), f, q, as_rebar, noise))(noise)
    np.testing.assert_array_equal(ours.evaluation.x, rebar.evaluation.x)
    values = ours.evaluation.f + alpha * ours.evaluation.control[3:]
    baseline = jnp.mean(q.weigh(leave_one_out(values), q.score(ours.evaluation.x)), axis=0)
    assert np.max(np.abs(baseline)) > 0.1
    np.testing.assert_allclose(ours.gradient, rebar.gradient - baseline, rtol=1e-12, atol=1e-14)


def concrete(samples=2, cls=dcv.DoubleCV, temperature=0.5):
    return cls(samples, surrogate="concrete", temperature=temperature)


@pytest.mark.parametrize(("samples", "logits"), [(2, [-1.3, 0.4]), (3, [0.8])], ids=["K=2, D=2", "K=3, D=1"])
@pytest.mark.parametrize("alpha", [-1.0, 0.7])
def test_unbiased_by_quadrature_for_bernoulli(x64, samples, logits, alpha):
    q, f = dcv.Bernoulli(logits=jnp.array(logits)), network(len(logits), 1).f
    mean = quadrature_mean(concrete(samples), f, q, {"alpha": alpha}, step=0.4)
    assert bias(mean, f, q) < 1e-6


def test_unbiased_by_quadrature_over_all_the_noise_together(x64):
    q, f = dcv.Bernoulli(logits=jnp.array([0.8])), network(1, 1).f
    assert bias(full_mean(concrete(temperature=1.0), f, q, {"alpha": 0.7}, order=8), f, q) < 1e-6


def test_unbiased_by_quadrature_for_categorical(x64):
    q, f = dcv.Categorical(logits=jnp.array([[0.7, -0.6]])), network(2, 2).f
    mean = quadrature_mean(concrete(temperature=1.0), f, q, {"alpha": 0.7}, step=0.25, reach=20.0)
    assert bias(mean, f, q) < 1e-6


@dataclasses.dataclass(frozen=True)
class CorrectionAdded(dcv.DoubleCV):
    """The reparameterised gradient with the wrong sign."""

    def parts(self, q, evaluation):
        return super().parts(q, dataclasses.replace(evaluation, dcontrol=-evaluation.dcontrol))


@dataclasses.dataclass(frozen=True)
class OwnBaseline(dcv.DoubleCV):
    """A baseline of all samples, the current one's too."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        shrunk = (self.samples - 1) / self.samples
        return Vectors(q, shrunk * g0, h)


@pytest.mark.parametrize("mutant", [CorrectionAdded, OwnBaseline])
def test_quadrature_catches_a_broken_concrete_form(x64, mutant):
    q, f = dcv.Bernoulli(logits=jnp.array([0.8])), network(1, 1).f
    assert bias(quadrature_mean(concrete(cls=mutant), f, q, {"alpha": 0.7}, step=0.4), f, q) > 1e-2


def logits_and_f(seed=2):
    logits = np.random.default_rng(seed).normal(size=(4, 3))
    return logits, network(3, 1).f


def test_alpha_of_the_concrete_form_gets_the_derivative_of_the_mean_square(x64):
    logits, f = logits_and_f()
    estimator = concrete()
    noise = np.random.default_rng(3).uniform(size=estimator.noise_shape(dcv.Bernoulli(logits=logits)))

    @jax.jit
    def both(alpha):
        def loss(logits, coefficients):
            with given_noise(noise):
                return expect(f, dcv.Bernoulli(logits=logits), estimator, coefficients, jax.random.key(0)).mean()

        q = dcv.Bernoulli(logits=jnp.asarray(logits))
        given = jax.grad(loss, argnums=(0, 1))(jnp.asarray(logits), {"alpha": alpha})[1]
        return jnp.mean(estimate_at(estimator, f, q, {"alpha": alpha}, noise).gradient ** 2), given["alpha"]

    (above, _), (below, _), (_, given) = (both(alpha) for alpha in (-0.6 + 1e-5, -0.6 - 1e-5, -0.6))
    assert abs(given) > 1e-3
    np.testing.assert_allclose(given, (above - below) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize("learning", ["gradient", "moments"])
def test_both_front_ends_learn_alpha_of_the_concrete_form_alike(x64, learning):
    logits, f = logits_and_f()
    estimator = dataclasses.replace(concrete(), learning=learning)
    start = {"alpha": -0.6} if learning == "gradient" else {"moments": np.array([[1.0, -0.3], [-0.3, 0.5]])}
    noise = np.random.default_rng(3).uniform(size=estimator.noise_shape(dcv.Bernoulli(logits=logits)))

    def loss(logits, coefficients):
        with given_noise(noise):
            return expect(f, dcv.Bernoulli(logits=logits), estimator, coefficients, jax.random.key(0)).mean()

    wanted = jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(logits), start)
    expectation = doublecv.torch.Expectation(estimator).to(torch.float64)
    (name,) = start
    learned = expectation.coefficients()[name]
    with torch.no_grad():
        learned.copy_(torch.as_tensor(start[name], dtype=torch.float64))
    leaf = torch.tensor(logits, requires_grad=True)
    expectation(f, dcv.Bernoulli(logits=leaf), noise=torch.as_tensor(noise)).mean().backward()
    np.testing.assert_allclose(leaf.grad, wanted[0], rtol=1e-12)
    moved = (
        learned.grad if learning == "gradient" else 100 * (torch.as_tensor(start[name], dtype=torch.float64) - learned)
    )
    np.testing.assert_allclose(moved, wanted[1][name], rtol=1e-9, atol=1e-12)


def test_torch_differentiates_f_of_the_concrete_form_once():
    class Once(torch.autograd.Function):
        """x^2 summed, whose derivative has no derivative."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x**2).sum(-1)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, cotangent):
            return 2 * ctx.saved_tensors[0] * cotangent[..., None]

    expectation = doublecv.torch.Expectation(concrete())
    with torch.no_grad():
        expectation.alpha.fill_(-0.5)
    logits = torch.zeros(2, 3, requires_grad=True)
    expectation(Once.apply, dcv.Bernoulli(logits=logits)).mean().backward()
    assert logits.grad.abs().max() > 0
    assert expectation.alpha.grad.abs() > 0


def test_the_concrete_form_has_less_variance_than_rloo():
    """From draws, with the best alpha of others: its noise is continuous."""
    q, f = dcv.Bernoulli(logits=jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))), network(3, 1).f
    compared = dcv.diagnostics.compare([dcv.RLOO(2), concrete()], f, q, jax.random.key(0), draws=4000)
    ours, rloo = compared["double-cv-concrete"], compared["rloo"]
    assert ours.coefficients["alpha"] < -0.3
    assert ours.variance + 4 * ours.standard_error < 0.8 * (rloo.variance - 4 * rloo.standard_error)
    assert ours.evaluations == 6


# Options that do not go together


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (2, {"coupling": "copula"}, "coupling must be one of independent, antithetic, dirichlet; got 'copula'"),
        (4, {"coupling": "dirichlet"}, "surrogate must be 'mean' for coupling='dirichlet', got 'leave-one-out'"),
        (2, {"coupling": "antithetic"}, "samples must be at least 4 for DoubleCV, got 2: the surrogate of an"),
        (5, {"coupling": "antithetic"}, "samples must be a multiple of 2 for DoubleCV, got 5"),
        (3, {"coupling": "antithetic", "surrogate": "mean"}, "samples must be a multiple of 2 for DoubleCV, got 3"),
        (1, {"surrogate": "concrete"}, "samples must be at least 2 for DoubleCV, got 1"),
        (2, {"surrogate": "concrete", "keep": "current"}, "keep must be 'both' for coupling='independent' and "),
        (4, {"surrogate": "concrete", "temperature": 0.0}, "temperature must be positive and finite, got 0.0"),
        (4, {"surrogate": "concrete", "temperature": math.inf}, "temperature must be positive and finite, got inf"),
        (4, {"temperature": 0.1}, "temperature is for surrogate='concrete', got 0.1 with surrogate='leave-one-out'"),
    ],
)
def test_options_that_do_not_exist_are_refused(samples, options, message):
    with pytest.raises(ValueError, match=message):
        dcv.DoubleCV(samples, **options)


def test_every_other_combination_is_refused():
    couplings = ("antithetic", "dirichlet")
    for coupling in couplings:
        with pytest.raises(ValueError, match="coupling must be 'independent' for surrogate='concrete'"):
            dcv.DoubleCV(4, surrogate="concrete", coupling=coupling)
    for coupling, keep in itertools.product(couplings, ("current", "others")):
        with pytest.raises(ValueError, match=f"keep must be 'both' for coupling='{coupling}'"):
            dcv.DoubleCV(4, surrogate="mean", coupling=coupling, keep=keep)
    with pytest.raises(TypeError, match="temperature must be a number, got 'warm'"):
        dcv.DoubleCV(2, surrogate="concrete", temperature="warm")


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_samples_are_for_bernoulli_alone(name):
    with pytest.raises(TypeError, match="take RLOO or DoubleCV with independent samples"):
        make(name, samples=4).check_family(dcv.Categorical(logits=np.zeros((2, 3))))
