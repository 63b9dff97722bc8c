"""Double CV composed with coupled samples and with a concrete relaxation: formula, bias, learning, variance."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
import doublecv.torch
from doublecv.estimators import Antithetic, DirichletCopula, Evaluation, Vectors, fixed_coefficients, make
from doublecv.estimators.averages import leave_one_out, leave_pair_out
from doublecv.exact import exact_gradient, exact_moments
from doublecv.jax import Expectation
from noise_quadrature import estimate_at, full_mean, quadrature_mean, value_at
from problems import best_coefficients, linear, make_learned, make_logits, make_problem, network

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


def alpha(value):
    return fixed_coefficients({"alpha": value})


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
        estimator.apply(q, evaluation, alpha(0.0)).gradient, base(4).apply(q, evaluation).gradient
    )


@pytest.mark.parametrize("samples", [4, 6])
def test_each_pair_is_corrected_with_the_gradients_of_the_other_pairs(samples):
    """mean_p [DisARM_p(f + alpha d_p^T (x - mu)) - alpha M d_p], pair by pair."""
    estimator = dcv.DoubleCV(samples, coupling=Antithetic(), learning="gradient")
    q, evaluation = drawn(estimator)
    pairs, of_pairs = samples // 2, []
    for pair in range(pairs):
        others = [k for k in range(samples) if k % pairs != pair]
        d = evaluation.df[others].mean(0)
        both = evaluation.x[[pair, pair + pairs]]
        values = evaluation.f[[pair, pair + pairs]] + 0.7 * np.sum(d * (both - q.mean), axis=-1)
        disarm = dcv.DisARM(2).apply(q, Evaluation(both, values)).gradient
        of_pairs.append(disarm - 0.7 * q.covariance_product(d))
    got = estimator.apply(q, evaluation, alpha(0.7)).gradient
    np.testing.assert_allclose(got, np.mean(of_pairs, axis=0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", COUPLED)
def test_a_linear_f_leaves_no_variance(name):
    q, problem = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli)), linear(3, 1)
    estimator = make(name, samples=4)
    moments = exact_moments(problem.f, q, estimator, alpha(-1.0), df=problem.df)
    assert np.max(moments.variance) < 1e-28
    assert np.max(exact_moments(problem.f, q, estimator, alpha(0.0), df=problem.df).variance) > 1e-2


@dataclasses.dataclass(frozen=True)
class PartnerKept(dcv.DoubleCV):
    """Antithetic pairs whose control variate leaves out only the sample, and keeps the gradient at its partner."""

    def parts(self, q, evaluation):
        g0, _ = super().parts(q, evaluation).vectors()
        b = q.dot(leave_one_out(evaluation.df), q.score(evaluation.x))
        h = Antithetic().estimate(q, evaluation.x, b)
        return Vectors(q, g0, {"alpha": h - q.covariance_product(evaluation.df.mean(0))})


@dataclasses.dataclass(frozen=True)
class Uncorrected(dcv.DoubleCV):
    """Only the estimate of f + alpha b."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        slope = evaluation.df.mean(0) if self.control == "leave-one-out" else evaluation.df_mean
        return Vectors(q, g0, {"alpha": h["alpha"] + q.covariance_product(slope)})


@pytest.mark.parametrize(
    "broken",
    [
        PartnerKept(4, coupling=Antithetic()),
        Uncorrected(4, coupling=Antithetic()),
        Uncorrected(2, control="mean", coupling=Antithetic()),
        Uncorrected(3, control="mean", coupling=DirichletCopula()),
    ],
    ids=repr,
)
def test_enumeration_catches_a_broken_composition(broken):
    q, problem = dcv.Bernoulli(logits=make_logits(dcv.Bernoulli)), make_problem("network", dcv.Bernoulli)
    assert bias(exact_moments(problem.f, q, broken, alpha(0.7), df=problem.df).mean, problem.f, q) > 1e-3


def test_leave_pair_out():
    v = np.array([1.0, 10.0, 100.0, 3.0, 30.0, 300.0])
    np.testing.assert_allclose(leave_pair_out(v), [110.0, 101.0, 11.0, 110.0, 101.0, 11.0])


def best_variances(names, samples, scale):
    """The exact variance of each, with its best alpha, on a network of the samples."""
    problem, q = network(3, 1), dcv.Bernoulli(logits=scale * np.random.default_rng(0).normal(size=(4, 3)))

    def variance(name):
        estimator = make(name, samples=samples)
        if not estimator.needs.coefficients:
            return exact_moments(problem.f, q, estimator, df=problem.df).variance.mean()
        best = best_coefficients(estimator, problem, q)
        return exact_moments(problem.f, q, estimator, best, df=problem.df).variance.mean()

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


# The concrete relaxation


@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
def test_the_concrete_form_is_rebar_with_a_leave_one_out_baseline(x64, family):
    q, f = family(logits=jnp.asarray(make_logits(family))), make_problem("network", family).f
    value, temperature = -0.8, 0.4
    estimator = dcv.ConcreteDoubleCV(3, temperature=temperature)
    noise = np.random.default_rng(1).uniform(size=estimator.noise_shape(q))
    as_rebar = fixed_coefficients({"log_temperature": math.log(temperature), "scale": -value})

    @jax.jit
    def both(noise):
        return estimate_at(estimator, f, q, alpha(value), noise), estimate_at(dcv.Rebar(3), f, q, as_rebar, noise)

    ours, rebar = jax.tree.map(np.asarray, both(noise))
    np.testing.assert_array_equal(ours.evaluation.x, rebar.evaluation.x)
    q = family(logits=np.asarray(q.logits))
    values = ours.evaluation.f + value * ours.evaluation.control[3:]
    baseline = np.mean(q.scale(leave_one_out(values), q.score(ours.evaluation.x)), axis=0)
    assert np.max(np.abs(baseline)) > 0.1
    np.testing.assert_allclose(ours.gradient, rebar.gradient - baseline, rtol=1e-12, atol=1e-14)


def concrete(samples=2, cls=dcv.ConcreteDoubleCV, temperature=0.5):
    return cls(samples, temperature=temperature)


@pytest.mark.parametrize(("samples", "logits"), [(2, [-1.3, 0.4]), (3, [0.8])], ids=["K=2, D=2", "K=3, D=1"])
@pytest.mark.parametrize("value", [pytest.param(-1.0, marks=pytest.mark.slow), 0.7])
def test_unbiased_by_quadrature_for_bernoulli(x64, samples, logits, value):
    q, f = dcv.Bernoulli(logits=jnp.array(logits)), network(len(logits), 1).f
    mean = quadrature_mean(concrete(samples), f, q, alpha(value), step=0.4)
    assert bias(mean, f, q) < 1e-6


def test_unbiased_by_quadrature_over_all_the_noise_together(x64):
    q, f = dcv.Bernoulli(logits=jnp.array([0.8])), network(1, 1).f
    assert bias(full_mean(concrete(temperature=1.0), f, q, alpha(0.7), order=8), f, q) < 1e-6


def test_unbiased_by_quadrature_for_categorical(x64):
    q, f = dcv.Categorical(logits=jnp.array([[0.7, -0.6]])), network(2, 2).f
    mean = quadrature_mean(concrete(temperature=1.0), f, q, alpha(0.7), step=0.25, reach=20.0)
    assert bias(mean, f, q) < 1e-6


@dataclasses.dataclass(frozen=True)
class CorrectionAdded(dcv.ConcreteDoubleCV):
    """The reparameterized gradient with the wrong sign."""

    def parts(self, q, evaluation):
        return super().parts(q, dataclasses.replace(evaluation, dcontrol=-evaluation.dcontrol))


@dataclasses.dataclass(frozen=True)
class OwnBaseline(dcv.ConcreteDoubleCV):
    """A baseline of all samples, also that of the current one."""

    def parts(self, q, evaluation):
        g0, h = super().parts(q, evaluation).vectors()
        shrunk = (self.samples - 1) / self.samples
        return Vectors(q, shrunk * g0, h)


@pytest.mark.parametrize("mutant", [CorrectionAdded, OwnBaseline])
def test_quadrature_catches_a_broken_concrete_form(x64, mutant):
    q, f = dcv.Bernoulli(logits=jnp.array([0.8])), network(1, 1).f
    assert bias(quadrature_mean(concrete(cls=mutant), f, q, alpha(0.7), step=0.4), f, q) > 1e-2


def logits_and_f(seed=2):
    logits = np.random.default_rng(seed).normal(size=(4, 3))
    return logits, network(3, 1).f


def test_alpha_of_the_concrete_form_gets_the_derivative_of_the_mean_square(x64):
    logits, f = logits_and_f()
    estimator = concrete()
    noise = np.random.default_rng(3).uniform(size=estimator.noise_shape(dcv.Bernoulli(logits=logits)))

    @jax.jit
    def both(value):
        def loss(logits, learned):
            return value_at(estimator, f, dcv.Bernoulli(logits=logits), learned, noise).mean()

        q, learned = dcv.Bernoulli(logits=jnp.asarray(logits)), dcv.Learned({"alpha": value}, {}, {})
        given = jax.grad(loss, argnums=(0, 1))(jnp.asarray(logits), learned)[1]
        return jnp.mean(estimate_at(estimator, f, q, learned, noise).gradient ** 2), given.numbers["alpha"]

    (above, _), (below, _), (_, given) = (both(value) for value in (-0.6 + 1e-5, -0.6 - 1e-5, -0.6))
    assert abs(given) > 1e-3
    np.testing.assert_allclose(given, (above - below) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize("learning", ["gradient", "moments"])
def test_both_front_ends_learn_alpha_of_the_concrete_form_alike(x64, learning):
    logits, f = logits_and_f()
    estimator = dataclasses.replace(concrete(), learning=learning)
    q = dcv.Bernoulli(logits=logits)
    learned = jax.tree.map(jnp.asarray, make_learned(estimator, q))
    noise = np.random.default_rng(3).uniform(size=estimator.noise_shape(q))
    in_jax = Expectation(estimator)
    state = in_jax.init(dcv.Bernoulli(logits=jnp.asarray(logits)))._replace(learned=learned)

    def loss(logits, learned):
        return value_at(estimator, f, dcv.Bernoulli(logits=logits), learned, noise).mean()

    @jax.jit
    def step(logits, state):
        of_logits, of_learned = jax.grad(loss, argnums=(0, 1))(logits, state.learned)
        return of_logits, of_learned, in_jax.update(of_learned, state).learned.averages

    of_logits, of_learned, averages = step(jnp.asarray(logits), state)
    expectation = doublecv.torch.Expectation(estimator).to(torch.float64)
    expectation.load_state_dict(
        {name: torch.tensor(np.array(value)) for name, value in (learned.numbers | learned.averages).items()}
    )
    leaf = torch.tensor(logits, requires_grad=True)
    expectation(f, dcv.Bernoulli(logits=leaf), noise=torch.as_tensor(noise)).mean().backward()
    np.testing.assert_allclose(leaf.grad, of_logits, rtol=1e-10, atol=1e-15)
    for name, value in of_learned.numbers.items():
        np.testing.assert_allclose(getattr(expectation, name).grad, value, rtol=1e-9, atol=1e-12)
    for name, value in averages.items():
        np.testing.assert_allclose(getattr(expectation, name), value, rtol=1e-9, atol=1e-12)


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
    """From draws: its noise is continuous."""
    logits, f = np.random.default_rng(0).normal(size=(4, 3)), network(3, 1).f
    q = dcv.Bernoulli(logits=jnp.asarray(np.repeat(logits[None], 4000, axis=0)))

    def variance(estimator, learned):
        noise = np.random.default_rng(1).random(estimator.noise_shape(q), dtype=np.float32)
        gradient = jax.jit(lambda noise: estimate_at(estimator, f, q, learned, noise).gradient)
        return np.var(gradient(noise), axis=0).mean()

    ours = variance(concrete(), alpha(-0.8))
    assert ours < 0.6 * variance(dcv.RLOO(2), dcv.RLOO(2).init())
    assert concrete().evaluations == 6


# Options that do not go together


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (
            4,
            {"coupling": DirichletCopula()},
            r"control must be 'mean' for coupling=DirichletCopula\(\), got 'leave-one",
        ),
        (2, {"coupling": Antithetic()}, "samples must be at least 4 for DoubleCV, got 2"),
        (5, {"coupling": Antithetic()}, "samples must be a multiple of 2 for DoubleCV, got 5"),
        (3, {"coupling": Antithetic(), "control": "mean"}, "samples must be a multiple of 2 for DoubleCV, got 3"),
        (4, {"control": "taylor"}, "control must be one of leave-one-out, mean; got 'taylor'"),
    ],
)
def test_options_that_do_not_exist_are_refused(samples, options, message):
    with pytest.raises(ValueError, match=message):
        dcv.DoubleCV(samples, **options, learning="gradient")


def test_other_options_that_do_not_exist_are_refused():
    with pytest.raises(TypeError, match=r"coupling must be a coupling such as .*, got 'antithetic'"):
        dcv.DoubleCV(4, coupling="antithetic", learning="gradient")
    with pytest.raises(ValueError, match="keep must be one of current, others; got 'both'"):
        dcv.HalfDoubleCV(2, keep="both")
    with pytest.raises(ValueError, match="samples must be at least 2 for ConcreteDoubleCV, got 1"):
        dcv.ConcreteDoubleCV(1)
    for temperature in (0.0, math.inf, -1.0):
        with pytest.raises(ValueError, match=f"temperature must be positive and finite, got {temperature}"):
            dcv.ConcreteDoubleCV(4, temperature=temperature)
    with pytest.raises(TypeError, match="temperature must be a number, got 'warm'"):
        dcv.ConcreteDoubleCV(2, temperature="warm")


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_samples_support_only_bernoulli(name):
    with pytest.raises(TypeError, match="for Categorical take RLOO, DoubleCV or QuadraticDoubleCV"):
        make(name, samples=4).check_family(dcv.Categorical(logits=np.zeros((2, 3))))
