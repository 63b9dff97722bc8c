"""The toy experiment: what the paper shows, on settings small enough for a test, and that a run is what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_variance import exact_variance

import doublecv as dcv
from doublecv.estimators import fixed_coefficients, make, names
from doublecv.jax import Expectation
from doublecv.lab.common.errors import InputError
from doublecv.lab.toy.problem import PAPER, ToyProblem, ToySettings
from doublecv.lab.toy.results import record_iterations, summarise
from doublecv.lab.toy.run import run

HALVES = ("double-cv", "double-cv-current", "double-cv-others", "r-star")

TINY = ToySettings(dimension=3, estimators=("double-cv",), iterations=6, seeds=1, every=2, draws=10)


BINARY = {name for name in names() if dcv.Bernoulli in make(name, samples=4).needs.families}


def samples_for(name):
    return max(2, make(name, samples=4).needs.minimum_samples)


def tiny(**changes):
    return ToySettings(**{**vars(TINY), **changes})


@pytest.fixture(scope="module")
def high_dimensional():
    """Figure 1, shortened."""
    return run(ToySettings(iterations=1200, seeds=1, every=50, draws=300))


@pytest.fixture(scope="module")
def halves():
    """The appendix's figure of the two halves."""
    return run(ToySettings(dimension=10, estimators=HALVES, iterations=1000, seeds=2, every=100, draws=1000))


@pytest.fixture(scope="module")
def tiny_results():
    return run(TINY)


def late(results, name, field="variance"):
    return getattr(results.curves[name], field)[:, results.iterations >= results.settings.iterations / 2]


def test_variances_along_the_runs_keep_that_order(high_dimensional):
    double_cv, r_star, rloo, disarm, muprop = (
        late(high_dimensional, name) for name in ("double-cv", "r-star", "rloo", "disarm", "muprop")
    )
    assert np.median(double_cv) < np.median(r_star) / 3
    assert np.median(r_star / rloo) < 0.6
    np.testing.assert_allclose(np.median(disarm / rloo), 1, atol=0.1)
    assert np.all(muprop > 1e4 * rloo)


def test_double_cv_gains_nothing_at_the_start(high_dimensional):
    at_start = {name: curves.variance[0, 0] for name, curves in high_dimensional.curves.items()}
    np.testing.assert_allclose(at_start["double-cv"], at_start["rloo"], rtol=0.1)
    assert at_start["r-star"] < 0.6 * at_start["double-cv"]


def test_double_cv_learns_first(high_dimensional):
    reached = {summary.name: summary.reached for summary in summarise(high_dimensional)}
    assert reached["double-cv"] <= 1200
    assert all(reached[name] > reached["double-cv"] for name in reached if name != "double-cv")
    final = {name: curves.objective[0, -1] for name, curves in high_dimensional.curves.items()}
    assert max(final, key=final.__getitem__) == "double-cv"


def test_alpha_tracks_the_alpha_of_least_exact_variance(high_dimensional):
    curves, problem = high_dimensional.curves["double-cv"], ToyProblem()
    estimator = make("double-cv", samples=2)
    # All logits have the same mean path, so that a common logit is close to the drawn ones.
    mean = curves.mean_probability[0, -1]
    q = dcv.Bernoulli(logits=np.full(200, np.log(mean / (1 - mean))))
    alphas = np.linspace(-0.006, 0.002, 401)
    variances = [exact_variance(problem, estimator, q, {"alpha": alpha}).sum() for alpha in alphas]
    np.testing.assert_allclose(curves.alpha[0, -1], alphas[np.argmin(variances)], rtol=0.3)


def test_both_halves_lie_above_the_full_double_cv(halves):
    full = np.median(late(halves, "double-cv"))
    assert np.median(late(halves, "double-cv-current")) > 10 * full
    assert np.median(late(halves, "double-cv-others")) > 10 * full


@pytest.mark.parametrize("name", HALVES[:3])
def test_drawn_variance_is_the_exact_one_but_for_chance(name):
    """With one variable the mean probability says what the logit was at every record."""
    results = run(tiny(dimension=1, estimators=(name,), iterations=200, every=50, draws=4000))
    curves, estimator = results.curves[name], make(name, samples=2)
    for mean, alpha, variance in zip(curves.mean_probability[0], curves.alpha[0], curves.variance[0], strict=True):
        q = dcv.Bernoulli(logits=np.log([mean / (1 - mean)]))
        np.testing.assert_allclose(variance, exact_variance(ToyProblem(), estimator, q, {"alpha": alpha}), rtol=0.15)


def test_drawn_variance_is_unbiased_for_few_draws():
    settings = tiny(dimension=1, estimators=("rloo",), iterations=400, every=1, draws=2)
    curves, rloo = run(settings).curves["rloo"], make("rloo", samples=2)
    q = [dcv.Bernoulli(logits=np.log([mean / (1 - mean)])) for mean in curves.mean_probability[0]]
    exact = np.array([exact_variance(ToyProblem(), rloo, at, {}).mean() for at in q])
    np.testing.assert_allclose(np.mean(curves.variance[0] / exact), 1, atol=0.15)


def test_objective_and_probability_start_from_logits_0(halves):
    for curves in halves.curves.values():
        np.testing.assert_allclose(curves.mean_probability[:, 0], 0.5)
        np.testing.assert_allclose(curves.objective[:, 0], (0.501**2 + 0.499**2) / 2)
        np.testing.assert_allclose(
            curves.objective, curves.mean_probability * 0.501**2 + (1 - curves.mean_probability) * 0.499**2
        )


def test_steps_are_rmsprop_up_in_the_logits_and_down_in_alpha(x64, tiny_results):
    """RMSprop written out: eps is added to the root, as Keras had it when the paper was made."""
    problem, expectation = ToyProblem(), Expectation(dcv.DoubleCV(samples=2, learning="gradient"))
    learning_key = jax.random.split(jax.random.key(1), 3)[0]

    @jax.jit
    def gradients(logits, alpha, iteration):
        key = jax.random.fold_in(learning_key, iteration)
        learned = fixed_coefficients({})._replace(numbers={"alpha": alpha})
        found = expectation.estimate(problem.f, dcv.Bernoulli(logits=logits), learned, key)
        return found.gradient, found.learned_gradient.numbers["alpha"]

    logits, alpha = np.zeros(3), np.zeros(())
    logits_square, alpha_square = np.zeros(3), 0.0
    alphas, probabilities = [alpha], [0.5]
    for iteration in range(TINY.iterations):
        gradient, alpha_gradient = map(np.asarray, gradients(logits, alpha, iteration))
        logits_square = 0.9 * logits_square + 0.1 * gradient**2
        alpha_square = 0.9 * alpha_square + 0.1 * alpha_gradient**2
        logits = logits + 0.01 * gradient / (np.sqrt(logits_square) + 1e-7)
        alpha = alpha - 5e-4 * alpha_gradient / (np.sqrt(alpha_square) + 1e-7)
        alphas.append(alpha)
        probabilities.append(np.mean(1 / (1 + np.exp(-logits))))
    curves = tiny_results.curves["double-cv"]
    assert alpha != 0
    np.testing.assert_allclose(curves.alpha[0], alphas[:: TINY.every], rtol=1e-12)
    np.testing.assert_allclose(curves.mean_probability[0], probabilities[:: TINY.every], rtol=1e-12)


def test_course_of_a_seed_depends_on_nothing_but_the_problem(tiny_results):
    """Not on the other seeds, nor on how often and from how many draws the variance is computed."""
    others = run(tiny(seeds=2, every=3, draws=20))
    for field in ("objective", "alpha"):
        alone, together = (getattr(results.curves["double-cv"], field) for results in (tiny_results, others))
        np.testing.assert_array_equal(alone[0, [0, 3]], together[0, [0, 2]])
        assert not np.array_equal(together[0], together[1]), f"two seeds gave the same {field}"


def test_same_settings_give_the_same_bits(tiny_results):
    again = run(TINY)
    np.testing.assert_array_equal(again.curves["double-cv"].variance, tiny_results.curves["double-cv"].variance)


def test_float64_is_switched_on_for_the_run_alone(tiny_results):
    assert tiny_results.curves["double-cv"].variance.dtype == np.float64
    assert jnp.zeros(1).dtype == jnp.float32


@pytest.mark.parametrize(
    ("iterations", "every", "wanted"), [(6, 2, [0, 2, 4, 6]), (5, 2, [0, 2, 4, 5]), (2, 9, [0, 2])]
)
def test_records_are_the_start_each_so_many_and_the_end(iterations, every, wanted):
    assert record_iterations(tiny(iterations=iterations, every=every)).tolist() == wanted


@pytest.mark.parametrize("name", sorted(BINARY - {*PAPER, *HALVES}))
def test_every_other_registered_estimator_runs(name):
    curves = run(tiny(estimators=(name,), samples=samples_for(name), iterations=2)).curves[name]
    assert np.isfinite(curves.variance).all()
    assert np.isfinite(curves.objective).all()
    assert curves.objective[0, 0] != curves.objective[0, -1]


@pytest.mark.parametrize(("name", "samples"), [("reinforce", 1), ("double-cv", 3), ("r-star", 2)])
def test_any_number_of_samples_runs(name, samples):
    curves = run(tiny(estimators=(name,), samples=samples, iterations=2, draws=2000)).curves[name]
    q, at_start = dcv.Bernoulli(logits=np.zeros(TINY.dimension)), {"alpha": 0.0}
    exact = exact_variance(ToyProblem(), make(name, samples=samples), q, at_start)
    np.testing.assert_allclose(curves.variance[0, 0], exact.mean(), rtol=0.25)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimension": 0}, "dimension must be at least 1, got 0"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"draws": 1}, "draws must be at least 2, got 1"),
        ({"learning_rate": -1.0}, "--learning-rate must be a positive number, got -1.0"),
        ({"coefficient_learning_rate": float("nan")}, "--coefficient-learning-rate must be a positive number, got nan"),
        ({"target": 1.5}, "--target must be at most 1, got 1.5"),
        ({"estimators": ()}, "--estimators needs at least one value"),
        ({"estimators": ("rlo",)}, "unknown estimator 'rlo'; did you mean 'rloo'?"),
        ({"estimators": ("rloo", "rloo")}, "--estimators must not repeat a value, got rloo rloo"),
        ({"estimators": ("disarm",), "samples": 3}, "--estimators disarm: samples must be a multiple of 2"),
        ({"samples": 1}, "--estimators double-cv: samples must be at least 2"),
    ],
)
def test_settings_that_cannot_work_are_refused(change, message):
    with pytest.raises(InputError) as error:
        run(tiny(**change))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
