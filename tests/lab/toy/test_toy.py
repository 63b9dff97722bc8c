"""The toy experiment: what the paper shows, on settings small enough for a test, and that a run is what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import doublecv as dcv
from doublecv.estimators import fixed_coefficients, make, names
from doublecv.jax import Expectation
from doublecv.lab.common.errors import InputError
from doublecv.lab.toy import exact as toy_moments
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
    """Figure 1 with few draws: the exact variance does not depend on them."""
    return run(ToySettings(iterations=1200, seeds=1, every=50, draws=10))


@pytest.fixture(scope="module")
def halves():
    """The appendix's figure of the two halves, with enough draws to hold the drawn variance against the exact one."""
    return run(ToySettings(dimension=10, estimators=HALVES, iterations=1000, seeds=2, every=100, draws=1000))


@pytest.fixture(scope="module")
def tiny_results():
    return run(TINY)


def late(results, name, field="exact_variance"):
    return getattr(results.curves[name], field)[:, results.iterations >= results.settings.iterations / 2]


def test_variances_at_200_dimensions_are_ordered_as_in_the_paper(high_dimensional):
    relative = {summary.name: summary.late_relative_variance_at_same_logits for summary in summarise(high_dimensional)}
    assert relative["double-cv"] < relative["r-star"] / 10
    assert 0.45 < relative["r-star"] < 0.55
    assert 0.95 < relative["disarm"] < 1.05
    assert relative["muprop"] > 1e5
    assert relative["reinforce"] > 1e5


def test_variances_along_the_runs_keep_that_order(high_dimensional):
    double_cv, r_star, rloo, disarm, muprop = (
        late(high_dimensional, name) for name in ("double-cv", "r-star", "rloo", "disarm", "muprop")
    )
    assert np.all(double_cv < r_star / 3)
    assert np.all(r_star < 0.6 * rloo)
    np.testing.assert_allclose(disarm, rloo, rtol=0.1)
    assert np.all(muprop > 1e4 * rloo)


def test_double_cv_gains_nothing_at_the_start(high_dimensional):
    at_start = {name: curves.exact_variance[0, 0] for name, curves in high_dimensional.curves.items()}
    np.testing.assert_allclose(at_start["double-cv"], at_start["rloo"], rtol=1e-12)
    assert at_start["r-star"] < 0.55 * at_start["double-cv"]


def test_double_cv_learns_first(high_dimensional):
    reached = {summary.name: summary.reached for summary in summarise(high_dimensional)}
    assert reached["double-cv"] <= 1200
    assert all(reached[name] > reached["double-cv"] for name in reached if name != "double-cv")
    final = {name: curves.objective[0, -1] for name, curves in high_dimensional.curves.items()}
    assert max(final, key=final.__getitem__) == "double-cv"


def test_alpha_tracks_the_optimal_alpha(high_dimensional):
    alpha = late(high_dimensional, "double-cv", "alpha")
    np.testing.assert_allclose(alpha, late(high_dimensional, "double-cv", "optimal_alpha"), rtol=0.3)


def test_both_halves_lie_above_the_full_double_cv(halves):
    full = np.median(late(halves, "double-cv"))
    assert np.median(late(halves, "double-cv-current")) > 10 * full
    assert np.median(late(halves, "double-cv-others")) > 10 * full


def test_the_half_in_the_baseline_alone_is_never_below_r_star(halves):
    assert np.all(halves.curves["double-cv-others"].exact_variance >= halves.curves["r-star"].exact_variance)


@pytest.mark.parametrize("name", HALVES)
def test_drawn_variance_is_the_exact_one_but_for_chance(halves, name):
    early = halves.iterations <= 200
    curves = halves.curves[name]
    np.testing.assert_allclose(curves.variance[:, early], curves.exact_variance[:, early], rtol=0.25)
    np.testing.assert_allclose(np.mean(curves.variance[:, early] / curves.exact_variance[:, early]), 1, atol=0.05)


def test_drawn_variance_is_unbiased_for_few_draws():
    settings = tiny(dimension=20, estimators=("rloo",), iterations=200, every=1, draws=2)
    curves = run(settings).curves["rloo"]
    np.testing.assert_allclose(np.mean(curves.variance / curves.exact_variance), 1, atol=0.15)


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
    """Not on the other seeds, on how often and from how many draws the variance is computed, or on who looks on."""
    calls = []
    others = run(tiny(seeds=2, every=3, draws=20), progress=calls.append)
    for field in ("objective", "alpha"):
        alone, together = (getattr(results.curves["double-cv"], field) for results in (tiny_results, others))
        np.testing.assert_array_equal(alone[0, [0, 3]], together[0, [0, 2]])
        assert not np.array_equal(together[0], together[1]), f"two seeds gave the same {field}"
    jax.effects_barrier()
    assert calls == ["double-cv"] * 2 * 3


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
    known = {"double-cv-mean", "double-cv-moments", "arms"}
    assert np.isfinite(curves.exact_variance).all() == (name in known)


@pytest.mark.parametrize(("name", "samples"), [("reinforce", 1), ("double-cv", 3)])
def test_any_number_of_samples_runs(name, samples):
    curves = run(tiny(estimators=(name,), samples=samples, iterations=2, draws=2000)).curves[name]
    np.testing.assert_allclose(curves.variance, curves.exact_variance, rtol=0.25)


def test_optimal_alpha_is_unknown_where_the_variance_is(monkeypatch):
    monkeypatch.setattr(toy_moments, "LARGEST_TABLE", 0)
    curves = run(tiny(iterations=1)).curves["double-cv"]
    assert np.isnan(curves.exact_variance).all()
    assert np.isnan(curves.optimal_alpha).all()


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
