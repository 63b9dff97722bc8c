"""What `expect` differentiates to: the estimator's gradient, the model's own, and the coefficients'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.jax import estimate, expect
from problems import make_coefficients, make_estimator

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(3)
DISCRETE = [name for name in estimators.names() if not estimators.make(name, samples=4).relaxed_points]


def model_parameters(size=4, seed=0):
    generator = np.random.default_rng(seed)
    return {
        "inner": jnp.asarray(generator.normal(size=(size, 5))),
        "outer": jnp.asarray(generator.normal(size=5)),
    }


def f_of(parameters, q=None):
    def f(x):
        flat = x.reshape(*x.shape[: x.ndim - (q.event_axes if q else 1)], -1)
        return jnp.tanh(flat @ parameters["inner"]) @ parameters["outer"] + 2.0

    return f


def assert_same(got, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), got, wanted)


def jitted_grad(function, **options):
    return jax.jit(jax.grad(function, **options))


def jitted_estimate(f, q, estimator, coefficients):
    return jax.jit(lambda q, coefficients: estimate(f, q, estimator, coefficients, KEY))(q, coefficients)


def central_difference(function, at):
    compiled = jax.jit(function)
    return (compiled(at + 1e-5) - compiled(at - 1e-5)) / 2e-5


WITH_ALPHA = [n for n in DISCRETE if n.startswith("double-cv") and "alpha" in estimators.make(n, 4).coefficients()]


def make(name):
    estimator = make_estimator(name, 4, variables=4)
    if name == "r-star":
        estimator = dcv.RStar(4, expected_f=lambda q: 2.0 + q.mean[..., 0])
    return estimator, jax.tree.map(jnp.asarray, make_coefficients(estimator, -0.6))


@pytest.fixture(params=DISCRETE)
def plugged(request):
    return make(request.param)


@pytest.fixture
def logits():
    return jnp.asarray(1.5 * np.random.default_rng(1).normal(size=(3, 4)))


class TestGradients:
    def test_value_is_the_mean_of_f_over_the_samples(self, plugged, logits):
        estimator, coefficients = plugged
        q, f = dcv.Bernoulli(logits), f_of(model_parameters())
        value = expect(f, q, estimator, coefficients, KEY)
        explicit = jitted_estimate(f, q, estimator, coefficients)
        np.testing.assert_allclose(value, f(explicit.evaluation.x).mean(0), rtol=1e-14)
        np.testing.assert_allclose(value, explicit.value, rtol=1e-14)

    def test_logits_get_the_formula_on_the_same_samples(self, plugged, logits):
        estimator, coefficients = plugged
        f, weights = f_of(model_parameters()), jnp.asarray([0.2, -3.0, 1.0])

        def loss(logits):
            return expect(f, dcv.Bernoulli(logits), estimator, coefficients, KEY) @ weights

        explicit = jitted_estimate(f, dcv.Bernoulli(logits), estimator, coefficients)
        as_numpy = jax.tree.map(np.asarray, explicit.evaluation)
        of_numpy = jax.tree.map(np.asarray, coefficients)
        formula = estimator.gradient(dcv.Bernoulli(np.asarray(logits)), as_numpy, of_numpy)
        np.testing.assert_allclose(explicit.gradient, formula, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(jitted_grad(loss)(logits), weights[:, None] * formula, rtol=1e-12, atol=1e-14)

    def test_the_model_gets_plain_backpropagation_of_the_mean(self, plugged, logits):
        estimator, coefficients = plugged
        q = dcv.Bernoulli(logits)
        x = jitted_estimate(f_of(model_parameters()), q, estimator, coefficients).evaluation.x
        got = jitted_grad(lambda p: expect(f_of(p), q, estimator, coefficients, KEY).sum())(model_parameters())
        plain = jitted_grad(lambda p: f_of(p)(x).mean(0).sum())(model_parameters())
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, plain)

    def test_categorical(self, plugged):
        estimator, coefficients = plugged
        if dcv.Categorical not in estimator.families:
            pytest.skip("for Bernoulli alone")
        logits = jnp.asarray(np.random.default_rng(2).normal(size=(3, 2, 3)))
        if isinstance(estimator, dcv.RStar):
            estimator = dcv.RStar(4, expected_f=lambda q: 2.0 + q.mean[..., 0, 0])
        f = f_of(model_parameters(6), dcv.Categorical(logits))
        got = jitted_grad(lambda logits: expect(f, dcv.Categorical(logits), estimator, coefficients, KEY).sum())(logits)
        explicit = jitted_estimate(f, dcv.Categorical(logits), estimator, coefficients)
        assert explicit.evaluation.x.shape == (4, 3, 2, 3)
        np.testing.assert_allclose(got, explicit.gradient, rtol=1e-12, atol=1e-14)


class TestCoefficients:
    @pytest.mark.parametrize("name", WITH_ALPHA)
    @pytest.mark.parametrize("loss_of", [jnp.mean, lambda v: -jnp.mean(v)], ids=["minimised", "maximised"])
    def test_derivative_of_the_mean_square_by_finite_differences(self, name, loss_of, logits):
        estimator, coefficients = make(name)
        f, q = f_of(model_parameters()), dcv.Bernoulli(logits)

        def mean_square(alpha):
            return jnp.mean(estimate(f, q, estimator, {"alpha": alpha}, KEY).gradient ** 2)

        by_difference = central_difference(mean_square, 0.4)
        assert abs(by_difference) > 1e-3
        coefficients = {"alpha": jnp.asarray(0.4)}
        got = jitted_grad(lambda c: loss_of(expect(f, q, estimator, c, KEY)))(coefficients)["alpha"]
        np.testing.assert_allclose(got, by_difference, rtol=1e-7)
        explicit = jitted_estimate(f, q, estimator, coefficients).coefficient_gradient["alpha"]
        np.testing.assert_allclose(explicit, by_difference, rtol=1e-7)

    def test_learned_baseline_by_finite_differences(self, logits):
        estimator, f, q = dcv.Reinforce(3, learned_baseline=True), f_of(model_parameters()), dcv.Bernoulli(logits)

        def mean_square(baseline):
            return jnp.mean(estimate(f, q, estimator, {"baseline": baseline}, KEY).gradient ** 2)

        got = jitted_grad(lambda c: expect(f, q, estimator, c, KEY).mean())(estimator.coefficients())["baseline"]
        np.testing.assert_allclose(got, central_difference(mean_square, 0.0), rtol=1e-7)

    def test_an_example_counts_with_its_weight_in_the_loss(self, logits):
        estimator, coefficients = make("double-cv")
        f, weights = f_of(model_parameters()), jnp.asarray([0.5, 0.0, -2.0])
        got = jitted_grad(lambda c: expect(f, dcv.Bernoulli(logits), estimator, c, KEY) @ weights)(coefficients)
        squares = jax.jacobian(
            lambda alpha: (estimate(f, dcv.Bernoulli(logits), estimator, {"alpha": alpha}, KEY).gradient ** 2).mean(-1)
        )(coefficients["alpha"])
        np.testing.assert_allclose(got["alpha"], squares @ jnp.abs(weights), rtol=1e-12)

    def test_pullback_takes_the_norm_of_the_encoders_gradient(self):
        generator = np.random.default_rng(5)
        data, weights = jnp.asarray(generator.normal(size=(3, 6))), jnp.asarray(generator.normal(size=(6, 4)))
        estimator, f = dcv.DoubleCV(3), f_of(model_parameters())

        def encoder_norm(alpha):
            def loss(w):
                return expect(f, dcv.Bernoulli(data @ w), estimator, {"alpha": alpha}, KEY).mean()

            return jnp.sum(jitted_grad(loss)(weights) ** 2)

        def loss(weights, coefficients):
            logits, pullback = jax.vjp(lambda w: data @ w, weights)
            return expect(f, dcv.Bernoulli(logits), estimator, coefficients, KEY, pullback=pullback).mean()

        by_difference = central_difference(encoder_norm, -0.6)
        got = jitted_grad(loss, argnums=1)(weights, {"alpha": -0.6})["alpha"]
        np.testing.assert_allclose(got, by_difference, rtol=1e-7)
        _, pullback = jax.vjp(lambda w: data @ w, weights)
        explicit = estimate(f, dcv.Bernoulli(data @ weights), estimator, {"alpha": -0.6}, KEY, pullback=pullback)
        np.testing.assert_allclose(explicit.coefficient_gradient["alpha"], by_difference, rtol=1e-7)

    @pytest.mark.parametrize("samples", [2, 3])
    def test_descent_reaches_the_optimal_alpha(self, samples):
        f = f_of(model_parameters())
        q, estimator = dcv.Bernoulli(jnp.asarray([1.0, -0.5, 0.3, 2.0])), dcv.DoubleCV(samples)
        best = dcv.diagnostics.optimal_alpha(estimator, f, q)

        def step(alpha, key):
            gradient = jitted_grad(lambda c: expect(f, q, estimator, c, key))({"alpha": alpha})["alpha"]
            return alpha - 0.05 * gradient, alpha

        alphas = jax.lax.scan(step, jnp.asarray(0.0), jax.random.split(KEY, 20_000))[1]
        assert best < -0.3
        np.testing.assert_allclose(alphas[10_000:].mean(), best, rtol=0.05)


class TestWhatFMayBe:
    def test_f_without_a_derivative_is_not_differentiated_in_x(self, logits):
        """A callback has no derivative rule at all: touching it with one would raise."""

        def f(x):
            counts = jax.pure_callback(lambda x: np.asarray(x).sum(-1), jax.ShapeDtypeStruct(x.shape[:-1], x.dtype), x)
            return counts**2

        for name in ("reinforce", "rloo", "disarm", "arms"):
            estimator = estimators.make(name, samples=2)
            gradient = jax.grad(lambda logits, e=estimator: expect(f, dcv.Bernoulli(logits), e, {}, KEY).sum())(logits)
            assert np.all(np.isfinite(gradient))
            assert np.any(gradient != 0)

    def test_f_of_integers(self, logits):
        table = jnp.arange(16).reshape(2, 2, 2, 2)

        def f(x):
            return table[tuple(jnp.moveaxis(x.astype(int), -1, 0))]

        def f_in_floats(x):
            return f(x).astype(x.dtype)

        def value_and_gradient(f):
            return jax.value_and_grad(lambda logits: expect(f, dcv.Bernoulli(logits), dcv.RLOO(3), {}, KEY).sum())(
                logits
            )

        assert_same(value_and_gradient(f), value_and_gradient(f_in_floats))

    def test_f_with_integer_auxiliary_data(self, logits):
        labels = jnp.asarray([0, 3, 1])

        def loss(logits, labels):
            f = lambda x: jnp.take_along_axis(x, labels[None, :, None], axis=-1)[..., 0] * 2.0  # noqa: E731
            return expect(f, dcv.Bernoulli(logits), dcv.DoubleCV(2), {"alpha": -1.0}, KEY).sum()

        gradient = jax.jit(jax.grad(loss))(logits, labels)
        variance = dcv.Bernoulli(logits).covariance(jnp.ones_like(logits))
        chosen = jax.nn.one_hot(labels, 4)
        # f is linear, so that alpha = -1 leaves the exact gradient and no noise.
        np.testing.assert_allclose(gradient, 2 * variance * chosen, atol=1e-12)

    def test_constant_f(self, logits):
        gradient = jax.grad(
            lambda logits: expect(
                lambda x: jnp.ones(x.shape[:-1]), dcv.Bernoulli(logits), dcv.DoubleCV(2), {"alpha": -1.0}, KEY
            ).sum()
        )(logits)
        np.testing.assert_array_equal(gradient, 0)

    def test_dependence_on_the_logits_is_added_and_detach_removes_it(self, logits):
        estimator = dcv.RLOO(4)

        def with_log_q(x, q):
            return x.sum(-1) ** 2 - q.log_prob(x)

        def attached(logits):
            q = dcv.Bernoulli(logits)
            return expect(lambda x: with_log_q(x, q), q, estimator, {}, KEY).sum()

        def detached(logits):
            q = dcv.Bernoulli(logits)
            return expect(lambda x: with_log_q(x, q.detach()), q, estimator, {}, KEY).sum()

        q = dcv.Bernoulli(logits)
        explicit = estimate(lambda x: with_log_q(x, q), q, estimator, {}, KEY)
        own = -(explicit.evaluation.x - q.mean).mean(0)
        np.testing.assert_allclose(jax.grad(detached)(logits), explicit.gradient, rtol=1e-12)
        np.testing.assert_allclose(jax.grad(attached)(logits), explicit.gradient + own, rtol=1e-12)

    def test_f_is_called_once(self, logits):
        calls = []

        def f(x):
            calls.append(x.shape)
            return jnp.sum(x, -1)

        jax.grad(lambda logits: expect(f, dcv.Bernoulli(logits), dcv.DoubleCV(4), {"alpha": 0.0}, KEY).sum())(logits)
        assert calls == [(4, 3, 4)]

    def test_the_estimators_own_function_may_close_over_traced_values(self, logits):
        """Also inside scan, where the backward rule is traced when the loop's values are gone."""

        def trajectory(scale, logits):
            def body(state, key):
                moved = jnp.sin(state)
                estimator = dcv.RStar(2, expected_f=lambda q: q.mean.sum(-1) * moved * scale)
                q = dcv.Bernoulli(logits * moved)
                return state + expect(lambda x: x.sum(-1) * scale, q, estimator, {}, key).mean(), None

            return jax.lax.scan(body, 1.0, jax.random.split(KEY, 3))[0]

        def unrolled(scale, logits):
            state = 1.0
            for key in jax.random.split(KEY, 3):
                moved = jnp.sin(state)
                held = jax.lax.stop_gradient(moved * scale)
                estimator = dcv.RStar(2, expected_f=lambda q, held=held: q.mean.sum(-1) * held)
                q = dcv.Bernoulli(logits * moved)
                state = state + expect(lambda x: x.sum(-1) * scale, q, estimator, {}, key).mean()
            return state

        got = jax.jit(jax.grad(trajectory, argnums=(0, 1)))(1.3, logits)
        wanted = jax.grad(unrolled, argnums=(0, 1))(1.3, logits)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), got, wanted)


class TestUseOfTheResult:
    def test_weights_of_zero_are_exactly_nothing(self, logits):
        f, estimator = f_of(model_parameters()), dcv.DoubleCV(2)
        gradient = jax.grad(
            lambda logits: (
                expect(f, dcv.Bernoulli(logits), estimator, {"alpha": -1.0}, KEY) @ jnp.asarray([1.0, 0.0, 2.0])
            )
        )(logits)
        explicit = estimate(f, dcv.Bernoulli(logits), estimator, {"alpha": -1.0}, KEY).gradient
        np.testing.assert_allclose(gradient, jnp.asarray([1.0, 0.0, 2.0])[:, None] * explicit, atol=1e-14)

    def test_result_used_twice(self, logits):
        f, estimator = f_of(model_parameters()), dcv.DoubleCV(2)

        def twice(logits):
            value = expect(f, dcv.Bernoulli(logits), estimator, {"alpha": -1.0}, KEY).mean()
            return value**2 + 3 * value

        explicit = estimate(f, dcv.Bernoulli(logits), estimator, {"alpha": -1.0}, KEY)
        slope = 2 * explicit.value.mean() + 3
        np.testing.assert_allclose(jax.grad(twice)(logits), slope * explicit.gradient / 3, rtol=1e-12)

    def test_value_without_gradient_and_with_the_result_held(self, logits):
        f, estimator = f_of(model_parameters()), dcv.DoubleCV(2)
        held = jax.grad(
            lambda logits: jax.lax.stop_gradient(expect(f, dcv.Bernoulli(logits), estimator, {"alpha": 0.0}, KEY)).sum()
        )(logits)
        np.testing.assert_array_equal(held, 0)


def test_estimate_takes_a_simulator_in_numpy(logits):
    """Outside jit its f gets plain arrays."""

    def simulator(x):
        return jnp.asarray(np.asarray(x).sum(-1) ** 2)

    explicit = estimate(simulator, dcv.Bernoulli(logits), dcv.RLOO(3), {}, KEY)
    traced = estimate(lambda x: x.sum(-1) ** 2, dcv.Bernoulli(logits), dcv.RLOO(3), {}, KEY)
    np.testing.assert_allclose(explicit.gradient, traced.gradient)
