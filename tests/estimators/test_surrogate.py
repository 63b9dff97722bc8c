"""The learned surrogate: unbiased on any base, exact where f is a quadratic of its form, and fitted to f."""

from typing import ClassVar

import numpy as np
import pytest

import doublecv as dcv
from doublecv.estimators import Evaluation, FixedEstimator, Needs
from doublecv.exact import enumerate_outcomes, exact_gradient, exact_moments
from problems import FEATURES, make_context, make_learned, make_logits, make_problem

BASES = [
    dcv.Reinforce(1),
    dcv.RLOO(2),
    dcv.DoubleCV(3, learning="gradient"),
    dcv.DoubleCV(2, control="mean", learning="gradient"),
    dcv.QuadraticDoubleCV(2),
    dcv.MuProp(2),
    dcv.DisARM(2),
    dcv.ARMS(3),
]
CONTEXT = make_context()


def make_q():
    return dcv.Bernoulli(logits=make_logits(dcv.Bernoulli))


def make_surrogate(base, directions=2):
    return dcv.LearnedSurrogate(base, directions)


@pytest.mark.parametrize("context", [CONTEXT, None], ids=["context", "logits"])
@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
def test_unbiased_on_any_base(base, context):
    problem, q, estimator = make_problem("network", dcv.Bernoulli), make_q(), make_surrogate(base)
    assert (estimator.samples, estimator.evaluations) == (base.samples, base.evaluations)
    for value in (0.3, -0.8):
        learned = make_learned(estimator, q, context, value)
        moments = exact_moments(problem.f, q, estimator, learned, context=context, df=problem.df)
        assert np.max(np.abs(moments.mean - exact_gradient(problem.f, q))) < 1e-10


@pytest.mark.parametrize("base", BASES[1:], ids=lambda base: type(base).__name__)
def test_at_the_start_it_is_the_base(base):
    problem, q, estimator = make_problem("network", dcv.Bernoulli), make_q(), make_surrogate(base)
    of_base, start = make_learned(base, q, None, 0.4), estimator.init(q, CONTEXT)
    learned = dcv.Learned(*(own | others for own, others in zip(start, of_base, strict=True)))
    got = exact_moments(problem.f, q, estimator, learned, context=CONTEXT, df=problem.df)
    wanted = exact_moments(problem.f, q, base, of_base, df=problem.df)
    np.testing.assert_allclose(got.variance, wanted.variance, rtol=1e-10)


def make_used(estimator, q):
    """Return a random state whose surrogate is used as it is, in units of 1."""
    learned = make_learned(estimator, q, CONTEXT, 0.5)
    used = {"surrogate_coefficients": np.ones(1), "surrogate_log_scale": np.zeros(())}
    return learned._replace(averages=learned.averages | used)


class Spy(FixedEstimator):
    """RLOO, which notes what it is given."""

    seen: ClassVar[list[Evaluation]] = []

    @property
    def needs(self):
        return Needs(gradient=True, minimum_samples=2)

    def estimate(self, q, evaluation):
        self.seen.append(evaluation)
        return dcv.RLOO(self.samples).apply(q, evaluation).gradient


def test_the_base_sees_the_residual_and_the_direction_of_the_gradient_of_f():
    """Where f is flat, the gradient of the residual is that of the surrogate alone."""
    problem, q, estimator = make_problem("network", dcv.Bernoulli), make_q(), make_surrogate(Spy(2))
    x = estimator.draw(q, np.random.default_rng(0).random(estimator.noise_shape(q)))
    evaluation = Evaluation(x, problem.f(x), problem.df(x))
    estimator.apply(q, evaluation, make_used(estimator, q), context=CONTEXT)
    seen = Spy.seen[-1]
    np.testing.assert_array_equal(seen.direction, evaluation.df)
    assert np.all(np.abs(seen.df - evaluation.df) > 1e-6)
    assert np.all(np.abs(seen.f - evaluation.f) > 1e-6)


def quadratic_of_its_form(learned, q):
    """f = r, with its gradient, from the surrogate's own formulas written out."""
    parameters = {name.removeprefix("surrogate_"): value for name, value in learned.numbers.items()}
    features = CONTEXT / FEATURES**0.5
    slope, weight = np.split(features @ parameters["readout"] + parameters["readout_bias"], [3], axis=-1)
    form = np.einsum("br,ri,rj->bij", weight, parameters["directions"], parameters["directions"])
    form *= 1 - np.eye(3)

    def f(x):
        s = x - q.mean
        return np.einsum("bi,...bi->...b", slope, s) + 0.5 * np.einsum("...bi,bij,...bj->...b", s, form, s)

    def df(x):
        return slope + np.einsum("bij,...bj->...bi", form, x - q.mean)

    return f, df


def test_no_variance_is_left_where_f_is_the_surrogate():
    q, estimator = make_q(), make_surrogate(dcv.RLOO(2))
    learned = make_used(estimator, q)
    f, df = quadratic_of_its_form(learned, q)
    moments = exact_moments(f, q, estimator, learned, context=CONTEXT, df=df)
    np.testing.assert_allclose(moments.mean, exact_gradient(f, q), atol=1e-12)
    assert np.max(moments.variance) < 1e-24
    outcomes = enumerate_outcomes(f, q, estimator, df)
    applied = estimator.apply(outcomes.q, outcomes.evaluation, learned, outcomes.probabilities, CONTEXT)
    assert all(np.max(np.abs(value)) < 1e-12 for value in applied.derivatives(applied.gradient).values())


def misfit(numbers, learned, q, problem, x, weight):
    """Return the sample variance of f - r plus the weighted misfit of the gradient, written out."""
    r, dr = quadratic_of_its_form(learned._replace(numbers=numbers), q)
    left, slopes = problem.f(x) - r(x), problem.df(x) - dr(x)
    of_gradient = np.mean(np.sum(q.mean * (1 - q.mean) * slopes**2, axis=-1), axis=0)
    return weight @ (np.var(left, axis=0, ddof=1) + of_gradient)


@pytest.mark.parametrize(
    "base", [dcv.RLOO(3), dcv.DoubleCV(3), dcv.QuadraticDoubleCV(3)], ids=lambda b: type(b).__name__
)
def test_the_parameters_descend_along_the_gradient_of_the_misfit(base):
    q, estimator = make_q(), make_surrogate(base)
    learned, problem = make_used(estimator, q), make_problem("network", dcv.Bernoulli)
    x, weight = estimator.draw(q, np.random.default_rng(0).random((3, 2, 3))), np.array([0.5, 2.0])
    applied = estimator.apply(q, Evaluation(x, problem.f(x), problem.df(x)), learned, weight, CONTEXT)
    own = [name for name in learned.numbers if name.startswith("surrogate_")]
    found = applied.derivatives(applied.gradient)
    assert found.keys() == learned.numbers.keys()
    for name in own:
        for index in np.ndindex(learned.numbers[name].shape):

            def at(step, name=name, index=index):
                moved = learned.numbers[name].copy()
                moved[index] += step
                return learned.numbers | {name: moved}

            above, below = (misfit(at(step), learned, q, problem, x, weight) for step in (1e-5, -1e-5))
            wanted = (above - below) / 2e-5
            np.testing.assert_allclose(found[name][index], wanted, rtol=1e-5, atol=1e-7)


def test_a_base_whose_derivatives_are_found_by_automatic_differentiation():
    """The parameters then receive the same gradient, from a loss."""
    jax = pytest.importorskip("jax")
    q = dcv.Bernoulli(logits=jax.numpy.asarray(make_logits(dcv.Bernoulli)))

    def f(x):
        return jax.numpy.sin(x @ jax.numpy.arange(1.0, 4.0))

    found, own = [], make_used(make_surrogate(dcv.RLOO(2)), make_q()).numbers
    for base in (dcv.RLOO(2), dcv.Rodeo(2)):
        estimator = make_surrogate(base)
        assert estimator.needs.derivatives == isinstance(base, dcv.RLOO)
        used = make_used(estimator, make_q())
        learned = jax.tree.map(jax.numpy.asarray, used._replace(numbers=used.numbers | own))
        expectation = dcv.jax.Expectation(estimator)

        @jax.jit
        def of_learned(learned, expectation=expectation):
            return expectation.estimate(f, q, learned, jax.random.key(0), context=CONTEXT).learned_gradient

        found.append({name: g for name, g in of_learned(learned).numbers.items() if name.startswith("surrogate_")})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *found)


def test_the_directions_start_orthogonal():
    q = dcv.Bernoulli(logits=np.zeros((2, 7)))
    directions = dcv.LearnedSurrogate(dcv.RLOO(2), 6).init(q).numbers["surrogate_directions"]
    np.testing.assert_allclose(directions @ directions.T, np.eye(6), atol=1e-12)


@pytest.mark.parametrize(("variables", "wanted"), [(3, 3), (32, 32), (130, 32)])
def test_directions_none_is_at_most_32_and_at_most_the_variables(variables, wanted):
    learned = dcv.LearnedSurrogate(dcv.RLOO(2)).init(dcv.Bernoulli(logits=np.zeros((1, variables))))
    assert learned.numbers["surrogate_directions"].shape == (wanted, variables)


class TestErrors:
    def test_what_cannot_be_a_base(self):
        with pytest.raises(ValueError, match="base must be an estimator that uses f only at samples, got Rebar"):
            dcv.LearnedSurrogate(dcv.Rebar(1))
        with pytest.raises(ValueError, match="got LearnedSurrogate"):
            dcv.LearnedSurrogate(dcv.LearnedSurrogate(dcv.RLOO(2)))
        with pytest.raises(TypeError, match=r"base must be a doublecv estimator such as .*, got int"):
            dcv.LearnedSurrogate(2)

    def test_sizes(self):
        with pytest.raises(ValueError, match="directions must be at most the number of variables, 3, got 4"):
            dcv.LearnedSurrogate(dcv.RLOO(2), 4).init(dcv.Bernoulli(logits=np.zeros(3)))
        for directions in (0, -1, 2.0, True):
            with pytest.raises(ValueError, match="directions must be a positive integer or None, got"):
                dcv.LearnedSurrogate(dcv.RLOO(2), directions)
        with pytest.raises(ValueError, match="q is None, but the learned state of LearnedSurrogate has sizes"):
            dcv.LearnedSurrogate(dcv.RLOO(2)).init()

    def test_context(self):
        problem, q, estimator = make_problem("network", dcv.Bernoulli), make_q(), make_surrogate(dcv.RLOO(2))
        x = np.zeros((2, 2, 3))
        evaluation = Evaluation(x, problem.f(x), problem.df(x))
        learned = estimator.init(q, CONTEXT)
        for context in (None, np.zeros((3, FEATURES)), np.zeros((2, FEATURES + 1))):
            with pytest.raises(ValueError, match=r"context must have shape \(2, 4\), .* that init saw, got shape"):
                estimator.apply(q, evaluation, learned, None, context)

    def test_categorical(self):
        with pytest.raises(TypeError, match=r"q must be a doublecv\.Bernoulli for LearnedSurrogate, got Categorical"):
            make_surrogate(dcv.RLOO(2)).check_family(dcv.Categorical(logits=np.zeros((2, 3))))


def test_samples_that_agree_do_not_change_the_unit_of_the_fit():
    """In most steps all samples agree; what rounding leaves of their differences is not the spread of f."""
    estimator = dcv.LearnedSurrogate(dcv.RLOO(samples=3))
    q, rng = dcv.Bernoulli(logits=np.full((1, 2), -3.0)), np.random.default_rng(0)
    learned = estimator.init(q)
    for _ in range(300):
        x = q.sample(rng.random((3, 1, 2)))
        evaluation = Evaluation(x, 1.3 * x[..., 0] - 0.7 * x[..., 1] + 0.37, np.broadcast_to([1.3, -0.7], x.shape))
        averages = estimator.advance(learned.averages, estimator.apply(q, evaluation, learned).statistics)
        learned = learned._replace(averages=averages)
    assert -5 < learned.averages["surrogate_log_scale"] < 1
