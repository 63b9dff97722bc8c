"""`Expectation` in JAX: what gets which gradient, from how many calls of f, and what f may be."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.estimators import Evaluation, fixed_coefficients
from doublecv.jax import Expectation
from problems import FEATURES, make_context, make_estimator, make_learned

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(3)
DISCRETE = [name for name in estimators.names() if not estimators.make(name, samples=4).needs.relaxed_points]
LOGITS = 1.5 * np.random.default_rng(1).normal(size=(3, 4))


def model_parameters(size=4, seed=0):
    generator = np.random.default_rng(seed)
    return {"inner": jnp.asarray(generator.normal(size=(size, 5))), "outer": jnp.asarray(generator.normal(size=5))}


def f_of(parameters, event_axes=1):
    def f(x):
        flat = x.reshape(*x.shape[: x.ndim - event_axes], -1)
        return jnp.tanh(flat @ parameters["inner"]) @ parameters["outer"] + 2.0

    return f


F = f_of(model_parameters())


def alpha(value):
    return jax.tree.map(jnp.asarray, fixed_coefficients({"alpha": value}))


def setup(name, family=dcv.Bernoulli, shape=(3, 4)):
    """Return the expectation, q, a learned state far from the start, and the context."""
    estimator = make_estimator(name, 4)
    q = family(logits=jnp.asarray(1.5 * np.random.default_rng(1).normal(size=shape)))
    context = jnp.asarray(make_context((3,))) if estimator.needs.context else None
    learned = jax.tree.map(jnp.asarray, make_learned(estimator, q, context, -0.6))
    return Expectation(estimator), q, learned, context


@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
@pytest.mark.parametrize("name", DISCRETE)
def test_every_gradient_of_one_loss(name, family):
    """The value, the formula's gradient, the model's plain gradient and the explicit estimate, in one program."""
    if family not in estimators.make(name, samples=4).needs.families:
        pytest.skip("supports only Bernoulli")
    shape = (3, 4) if family is dcv.Bernoulli else (3, 2, 3)
    expectation, q, learned, context = setup(name, family, shape)
    parameters, weights = model_parameters(int(np.prod(shape[1:]))), jnp.asarray([0.2, -3.0, 1.0])

    @jax.jit
    def everything(logits, parameters, learned):
        def loss(logits, parameters, learned):
            f = f_of(parameters, family.event_axes)
            value = expectation(f, family(logits=logits), learned, KEY, context=context)
            return value @ weights, value

        f = f_of(parameters, family.event_axes)
        explicit = expectation.estimate(f, family(logits=logits), learned, KEY, context=context)
        x = explicit.evaluation.x
        plain = jax.grad(lambda p: f_of(p, family.event_axes)(x).mean(0) @ weights)(parameters)
        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(logits, parameters, learned), explicit, plain

    ((_, value), (of_logits, of_model)), explicit, plain = everything(q.logits, parameters, learned)
    estimator = expectation.estimator
    np.testing.assert_allclose(value, explicit.value, rtol=1e-14)
    np.testing.assert_allclose(value, f_of(parameters, family.event_axes)(explicit.evaluation.x).mean(0), rtol=1e-13)
    as_numpy = jax.tree.map(np.asarray, (explicit.evaluation, learned, context))
    formula = estimator.apply(family(np.asarray(q.logits)), as_numpy[0], as_numpy[1], None, as_numpy[2]).gradient
    np.testing.assert_allclose(explicit.gradient, formula, rtol=1e-10, atol=1e-13)
    scaled = weights.reshape(3, *(1,) * (len(shape) - 1)) * formula
    np.testing.assert_allclose(of_logits, scaled, rtol=1e-10, atol=1e-13)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), of_model, plain)


class TestLearnedNumbers:
    @pytest.mark.parametrize("sign", [1, -1], ids=["minimized", "maximized"])
    @pytest.mark.parametrize("name", ["double-cv", "double-cv-mean", "double-cv-others", "double-cv-antithetic"])
    def test_derivative_of_the_mean_square_by_finite_differences(self, name, sign):
        expectation, q, _, _ = setup(name)

        @jax.jit
        def both(value):
            learned = dcv.Learned({"alpha": value}, {}, {})
            of_loss = jax.grad(lambda learned: sign * expectation(F, q, learned, KEY).mean())(learned)
            explicit = expectation.estimate(F, q, learned, KEY)
            found = of_loss.numbers["alpha"], explicit.learned_gradient.numbers["alpha"]
            return jnp.mean(explicit.gradient**2), found

        (above, _), (below, _), (_, found) = (both(value) for value in (0.4 + 1e-5, 0.4 - 1e-5, 0.4))
        wanted = (above - below) / 2e-5
        assert abs(wanted) > 1e-3
        np.testing.assert_allclose(found, wanted, rtol=1e-7)

    def test_an_example_counts_with_its_weight_in_the_loss(self):
        expectation, q, learned, _ = setup("double-cv")
        weights = jnp.asarray([0.5, 0.0, -2.0])
        got = jax.jit(jax.grad(lambda learned: expectation(F, q, learned, KEY) @ weights))(learned)

        def squares(value):
            return (expectation.estimate(F, q, dcv.Learned({"alpha": value}, {}, {}), KEY).gradient ** 2).mean(-1)

        wanted = jax.jit(jax.jacobian(squares))(learned.numbers["alpha"]) @ jnp.abs(weights)
        np.testing.assert_allclose(got.numbers["alpha"], wanted, rtol=1e-12)

    def test_pullback_takes_the_norm_of_the_encoders_gradient(self):
        generator = np.random.default_rng(5)
        data, weights = jnp.asarray(generator.normal(size=(3, 6))), jnp.asarray(generator.normal(size=(6, 4)))
        expectation = Expectation(dcv.DoubleCV(3, learning="gradient"))

        @jax.jit
        def encoder_norm(value):
            learned = dcv.Learned({"alpha": value}, {}, {})
            gradient = jax.grad(lambda w: expectation(F, dcv.Bernoulli(data @ w), learned, KEY).mean())(weights)
            return jnp.sum(gradient**2)

        def loss(weights, learned):
            logits, pullback = jax.vjp(lambda w: data @ w, weights)
            return expectation(F, dcv.Bernoulli(logits), learned, KEY, pullback=pullback).mean()

        wanted = (encoder_norm(-0.6 + 1e-5) - encoder_norm(-0.6 - 1e-5)) / 2e-5
        got = jax.jit(jax.grad(loss, argnums=1))(weights, alpha(-0.6)).numbers["alpha"]
        np.testing.assert_allclose(got, wanted, rtol=1e-7)

        @jax.jit
        def explicit(weights):
            logits, pullback = jax.vjp(lambda w: data @ w, weights)
            return expectation.estimate(F, dcv.Bernoulli(logits), alpha(-0.6), KEY, pullback=pullback)

        np.testing.assert_allclose(explicit(weights).learned_gradient.numbers["alpha"], wanted, rtol=1e-7)

    def test_a_pullback_is_refused_where_moments_are_learned(self):
        expectation, q, learned, _ = setup("quadratic-double-cv")
        with pytest.raises(
            ValueError, match="pullback was given, but quadratic-double-cv learns its coefficients from"
        ):
            expectation(F, q, learned, KEY, pullback=lambda g: g)

    @pytest.mark.parametrize("name", ["quadratic-double-cv", "surrogate-quadratic-double-cv"])
    def test_the_averages_get_zeros_and_the_statistics_reach_the_update(self, name):
        expectation, q, learned, context = setup(name)
        state = expectation.init(q, context=context)._replace(learned=learned)

        @jax.jit
        def step(state):
            found = jax.grad(lambda learned: expectation(F, q, learned, KEY, context=context).mean())(state.learned)
            explicit = expectation.estimate(F, q, state.learned, KEY, context=context)
            return found, expectation.update(found, state), explicit.evaluation

        found, moved, evaluation = step(state)
        assert all(not np.any(leaf) for leaf in jax.tree.leaves(found.averages))
        q, evaluation, learned, context = jax.tree.map(np.asarray, (q, evaluation, learned, context))
        applied = expectation.estimator.apply(q, evaluation, learned, np.full(3, 1 / 3), context)
        wanted = expectation.estimator.advance(learned.averages, applied.statistics)
        for key, value in moved.learned.averages.items():
            np.testing.assert_allclose(value, wanted[key], rtol=1e-9, atol=1e-13)
            # No fall is noticed in the first steps.
            assert key.endswith("fallen") or np.any(value != learned.averages[key])
        jax.tree.map(np.testing.assert_array_equal, moved.learned.statistics, learned.statistics)

    def test_one_adam_for_everything_cannot_corrupt_the_averages(self):
        """A user who hands all gradients to one optimizer, and calls `update`, has the averages of one who does not."""
        expectation, q, learned, _ = setup("quadratic-double-cv")
        state = expectation.init(q)._replace(learned=learned)
        found = jax.jit(jax.grad(lambda learned: expectation(F, q, learned, KEY).mean()))(learned)
        adam = optax.adam(0.1)
        updates, _ = adam.update(found, adam.init(learned))
        corrupted = optax.apply_updates(learned, updates)
        jax.tree.map(np.testing.assert_array_equal, corrupted.averages, learned.averages)
        # The statistics' own value is never read, so that a moved one changes nothing.
        assert any(np.any(leaf) for leaf in jax.tree.leaves(corrupted.statistics))
        estimate = jax.jit(lambda learned: expectation.estimate(F, q, learned, KEY).gradient)
        np.testing.assert_array_equal(estimate(learned), estimate(corrupted))
        update = jax.jit(expectation.update)
        after, wanted = (update(found, state._replace(learned=each)).learned.averages for each in (corrupted, learned))
        jax.tree.map(np.testing.assert_array_equal, after, wanted)

    def test_a_context_gets_no_gradient_nor_does_the_model_from_the_surrogate(self):
        expectation, q, learned, context = setup("surrogate-quadratic-double-cv")

        def loss(parameters, context, expectation, learned):
            return expectation(f_of(parameters), q, learned, KEY, context=context).mean()

        rloo = Expectation(dcv.RLOO(4))

        @jax.jit
        def both(parameters, context):
            given = jax.grad(loss, argnums=(0, 1))(parameters, context, expectation, learned)
            return given, jax.grad(loss)(parameters, None, rloo, rloo.init(q).learned)

        (of_model, of_context), wanted = both(model_parameters(), context)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), of_model, wanted)
        np.testing.assert_array_equal(of_context, 0)

    def test_contexts_of_two_calls_are_not_mixed_up_under_jit(self):
        """A context inside a static argument would be the first one for ever."""
        expectation, q, learned, context = setup("surrogate-quadratic-double-cv")
        compiled = jax.jit(lambda context: expectation.estimate(F, q, learned, KEY, context=context).gradient)
        one, other = compiled(context), compiled(2 * context)
        assert np.max(np.abs(one - other)) > 1e-3
        assert context.shape[-1] == FEATURES


class TestWhatFMayBe:
    def test_f_without_a_derivative_is_not_differentiated_in_x(self):
        """A callback has no derivative rule at all: touching it with one would raise."""

        def f(x):
            counts = jax.pure_callback(lambda x: np.asarray(x).sum(-1), jax.ShapeDtypeStruct(x.shape[:-1], x.dtype), x)
            return counts**2

        for name in ("reinforce", "rloo", "disarm", "arms"):
            expectation = Expectation(estimators.make(name, samples=2))
            learned = expectation.estimator.init()

            def loss(logits, expectation=expectation, learned=learned):
                return expectation(f, dcv.Bernoulli(logits), learned, KEY).sum()

            gradient = jax.jit(jax.grad(loss))(LOGITS)
            assert np.all(np.isfinite(gradient))
            assert np.any(gradient != 0)

    def test_f_of_integers(self):
        table = jnp.arange(16).reshape(2, 2, 2, 2)
        expectation = Expectation(dcv.RLOO(3))

        def f(x):
            return table[tuple(jnp.moveaxis(x.astype(int), -1, 0))]

        def gradient(f, logits):
            return jax.grad(lambda logits: expectation(f, dcv.Bernoulli(logits), dcv.RLOO(3).init(), KEY).sum())(logits)

        both = jax.jit(lambda logits: (gradient(f, logits), gradient(lambda x: f(x).astype(x.dtype), logits)))
        np.testing.assert_allclose(*both(LOGITS))

    def test_integers_and_keys_of_a_loop_inside_a_differentiated_scan(self):
        """What f closes over there is gone when JAX traces the backward rule, also integers and random keys."""
        labels, expectation = jnp.asarray([[0, 1, 2], [3, 0, 1]]), Expectation(dcv.DoubleCV(2, learning="gradient"))
        scale = jnp.asarray(np.random.default_rng(1).normal(size=4))

        def loss(logits):
            def body(total, inputs):
                label, key = inputs
                mask = jax.random.bernoulli(key, 0.5, (4,))

                def f(x):
                    return jnp.take_along_axis(x * scale * mask, label[None, :, None], axis=-1)[..., 0]

                return total + expectation(f, dcv.Bernoulli(logits), alpha(-1.0), key).sum(), None

            return jax.lax.scan(body, 0.0, (labels, jax.random.split(KEY, 2)))[0]

        gradient = jax.jit(jax.grad(loss))(LOGITS)
        masks = [jax.random.bernoulli(key, 0.5, (4,)) for key in jax.random.split(KEY, 2)]
        # f is linear and alpha is -1: the estimate is the exact gradient.
        slope = dcv.Bernoulli(LOGITS).covariance_product(jnp.ones_like(LOGITS)) * scale
        wanted = sum(slope * mask * jax.nn.one_hot(label, 4) for label, mask in zip(labels, masks, strict=True))
        np.testing.assert_allclose(gradient, wanted, atol=1e-12)

    def test_what_is_not_differentiated_needs_no_derivative(self):
        """A callback on data has no derivative rule: it must not be touched because the model's parameters are."""
        data, expectation = jnp.arange(3.0), Expectation(dcv.RLOO(2))

        def loss(logits, weights, data):
            def f(x):
                shape = jax.ShapeDtypeStruct(x.shape[:-1], x.dtype)
                reward = jax.pure_callback(lambda x, y: np.asarray(x).sum(-1) * np.asarray(y), shape, x, data)
                return jax.lax.stop_gradient(reward) + jnp.sum(weights)

            return expectation(f, dcv.Bernoulli(logits), dcv.RLOO(2).init(), KEY).sum()

        gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))(LOGITS, jnp.ones(4), data)
        assert np.all(np.isfinite(gradients[0]))
        np.testing.assert_allclose(gradients[1], 3.0)

    def test_dependence_on_the_logits_is_added_and_detach_removes_it(self):
        expectation, learned = Expectation(dcv.RLOO(4)), dcv.RLOO(4).init()

        def with_log_q(x, q):
            return x.sum(-1) ** 2 - q.log_prob(x)

        def value(logits, of_q):
            q = dcv.Bernoulli(logits)
            return expectation(lambda x: with_log_q(x, of_q(q)), q, learned, KEY).sum()

        @jax.jit
        def everything(logits):
            q = dcv.Bernoulli(logits)
            explicit = expectation.estimate(lambda x: with_log_q(x, q), q, learned, KEY)
            given = jax.grad(value)(logits, lambda q: q.detach()), jax.grad(value)(logits, lambda q: q)
            return explicit.gradient, -(explicit.evaluation.x - q.mean).mean(0), *given

        gradient, own, detached, attached = everything(jnp.asarray(LOGITS))
        np.testing.assert_allclose(detached, gradient, rtol=1e-12)
        np.testing.assert_allclose(attached, gradient + own, rtol=1e-12)

    def test_f_is_called_once(self):
        calls = []

        def f(x):
            calls.append(x.shape)
            return jnp.sum(x, -1)

        expectation = Expectation(dcv.DoubleCV(4, learning="gradient"))
        jax.grad(lambda logits: expectation(f, dcv.Bernoulli(logits), alpha(0.0), KEY).sum())(LOGITS)
        assert calls == [(4, 3, 4)]

    def test_the_estimators_own_function_may_close_over_traced_values(self):
        """Also inside scan, where the backward rule is traced when the loop's values are gone."""

        def trajectory(scale, logits, loop):
            def body(state, key):
                moved = jnp.sin(state)
                held = jax.lax.stop_gradient(moved * scale)
                expectation = Expectation(dcv.RStar(2, expected_f=lambda q: q.mean.sum(-1) * held))
                q = dcv.Bernoulli(logits * moved)
                return state + expectation(lambda x: x.sum(-1) * scale, q, dcv.RStar(2).init(), key).mean(), None

            return loop(body, 1.0, jax.random.split(KEY, 3))

        def unrolled(body, state, keys):
            for key in keys:
                state, _ = body(state, key)
            return state

        def scan(body, state, keys):
            return jax.lax.scan(body, state, keys)[0]

        got, wanted = (
            jax.jit(jax.grad(lambda s, l, loop=loop: trajectory(s, l, loop), argnums=(0, 1)))(1.3, LOGITS)  # noqa: E741
            for loop in (scan, unrolled)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), got, wanted)

    def test_estimate_takes_a_simulator_in_numpy(self):
        """Outside jit its f gets plain arrays."""
        expectation, q, learned = Expectation(dcv.RLOO(3)), dcv.Bernoulli(jnp.asarray(LOGITS)), dcv.RLOO(3).init()
        explicit = expectation.estimate(lambda x: jnp.asarray(np.asarray(x).sum(-1) ** 2), q, learned, KEY)
        traced = jax.jit(lambda q: expectation.estimate(lambda x: x.sum(-1) ** 2, q, learned, KEY))(q)
        np.testing.assert_allclose(explicit.gradient, traced.gradient, atol=1e-14)


class TestUseOfTheResult:
    def test_result_used_twice_and_weights_of_zero(self):
        expectation, q = Expectation(dcv.DoubleCV(2, learning="gradient")), dcv.Bernoulli(jnp.asarray(LOGITS))
        explicit = jax.jit(lambda q: expectation.estimate(F, q, alpha(-1.0), KEY))(q)
        weights = jnp.asarray([1.0, 0.0, 2.0])

        def twice(logits):
            value = expectation(F, dcv.Bernoulli(logits), alpha(-1.0), KEY) @ weights
            return value**2 + 3 * value

        slope = 2 * explicit.value @ weights + 3
        np.testing.assert_allclose(
            jax.jit(jax.grad(twice))(q.logits), slope * weights[:, None] * explicit.gradient, rtol=1e-12, atol=1e-14
        )

    def test_the_result_held_constant(self):
        expectation = Expectation(dcv.DoubleCV(2, learning="gradient"))

        def held(logits):
            return jax.lax.stop_gradient(expectation(F, dcv.Bernoulli(logits), alpha(0.0), KEY)).sum()

        np.testing.assert_array_equal(jax.jit(jax.grad(held))(LOGITS), 0)

    def test_integer_labels(self):
        labels, expectation = jnp.asarray([0, 3, 1]), Expectation(dcv.DoubleCV(2, learning="gradient"))

        def loss(logits, labels):
            f = lambda x: jnp.take_along_axis(x, labels[None, :, None], axis=-1)[..., 0] * 2.0  # noqa: E731
            return expectation(f, dcv.Bernoulli(logits), alpha(-1.0), KEY).sum()

        gradient = jax.jit(jax.grad(loss))(jnp.asarray(LOGITS), labels)
        variance = dcv.Bernoulli(LOGITS).covariance_product(np.ones_like(LOGITS))
        # f is linear, so that alpha = -1 leaves the exact gradient and no noise.
        np.testing.assert_allclose(gradient, 2 * variance * jax.nn.one_hot(labels, 4), atol=1e-12)


def test_the_evaluation_is_a_pytree():
    evaluation = Evaluation(jnp.zeros((2, 3)), jnp.zeros(2))
    assert jax.tree.map(lambda leaf: leaf + 1, evaluation).f.tolist() == [1, 1]
