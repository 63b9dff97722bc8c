"""`expect` under jit, vmap, scan, sharding, every float type and any number of batch axes."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.jax import estimate, expect
from problems import make_coefficients, make_estimator

KEY = jax.random.key(7)
NAMES = [name for name in estimators.names() if not estimators.make(name, samples=4).relaxed_points]


def make(name, samples=4, variables=4):
    estimator = make_estimator(name, samples, variables=variables)
    if name == "r-star":
        estimator = dcv.RStar(samples, expected_f=lambda q: q.mean.sum(-1))
    return estimator, make_coefficients(estimator, -0.5)


def f(x):
    return jnp.sum(jnp.sin(2 * x + 0.3), -1) ** 2


def gradients(estimator):
    def loss(logits, coefficients, key):
        return expect(f, dcv.Bernoulli(logits), estimator, coefficients, key).mean()

    return jax.grad(loss, argnums=(0, 1))


def assert_same(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **({"rtol": 1e-10, "atol": 1e-13} | tolerance)), a, b)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NAMES)
class TestTransformations:
    @pytest.fixture
    def logits(self):
        return jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))

    def test_jit(self, name, logits):
        estimator, coefficients = make(name)
        both = gradients(estimator)
        assert_same(jax.jit(both)(logits, coefficients, KEY), both(logits, coefficients, KEY))

    def test_vmap_over_keys(self, name, logits):
        estimator, coefficients = make(name)
        keys = jax.random.split(KEY, 3)
        both = jax.jit(gradients(estimator))
        batched = jax.vmap(both, in_axes=(None, None, 0))(logits, coefficients, keys)
        for i, key in enumerate(keys):
            assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], batched), both(logits, coefficients, key))

    def test_vmap_over_batches_and_gradient_of_vmap(self, name, logits):
        estimator, coefficients = make(name)
        keys = jax.random.split(KEY, 3)

        def mean_of_vmap(logits, coefficients):
            one = lambda logits, k: expect(f, dcv.Bernoulli(logits), estimator, coefficients, k)  # noqa: E731
            return jax.vmap(one)(logits, keys).mean()

        got = jax.jit(jax.grad(mean_of_vmap, argnums=(0, 1)))(logits, coefficients)
        both = jax.jit(gradients(estimator))
        each = [both(logits[i], coefficients, keys[i]) for i in range(3)]
        assert_same(got[0], jnp.stack([g for g, _ in each]) / 3)
        assert_same(got[1], jax.tree.map(lambda *leaves: sum(leaves) / 3, *[c for _, c in each]))

    def test_vmap_over_coefficients(self, name, logits):
        estimator, coefficients = make(name)
        if not coefficients:
            pytest.skip("it has no coefficients")
        both = jax.jit(gradients(estimator))
        several = jax.tree.map(lambda c: jnp.stack([c, jnp.zeros_like(c), 0.7 * jnp.ones_like(c)]), coefficients)
        batched = jax.vmap(both, in_axes=(None, 0, None))(logits, several, KEY)
        for i in range(3):
            one = both(logits, jax.tree.map(lambda c, i=i: c[i], several), KEY)
            assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], batched), one)

    def test_scan_and_gradient_of_scan(self, name, logits):
        estimator, coefficients = make(name)
        keys = jax.random.split(KEY, 3)

        def through_scan(logits):
            def body(total, key):
                return total + expect(f, dcv.Bernoulli(logits), estimator, coefficients, key).mean(), None

            return jax.lax.scan(body, 0.0, keys)[0]

        both = jax.jit(gradients(estimator))
        wanted = sum(both(logits, coefficients, key)[0] for key in keys)
        assert_same(jax.jit(jax.grad(through_scan))(logits), wanted)
        assert_same(jax.jit(jax.grad(jax.checkpoint(through_scan)))(logits), wanted)

    @pytest.mark.parametrize("batch", [(), (5,), (2, 1, 3), (0,)], ids=str)
    def test_any_number_of_batch_axes(self, name, batch):
        estimator, coefficients = make(name)
        logits = jnp.asarray(np.random.default_rng(1).normal(size=(*batch, 4)))
        explicit = jax.jit(lambda logits: estimate(f, dcv.Bernoulli(logits), estimator, coefficients, KEY))(logits)
        assert explicit.value.shape == batch
        assert explicit.gradient.shape == logits.shape
        gradients = jax.grad(
            lambda logits, c: expect(f, dcv.Bernoulli(logits), estimator, c, KEY).sum(), argnums=(0, 1)
        )
        got, got_coefficients = jax.jit(gradients)(logits, coefficients)
        assert_same(got, explicit.gradient)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(got_coefficients))

    def test_extreme_logits_give_no_nan(self, name):
        """A certain variable has no gradient, and spoils that of no other."""
        estimator, coefficients = make(name, variables=3)

        def elbo(x, q):
            return f(x) - q.log_prob(x)

        def loss(logits, coefficients):
            q = dcv.Bernoulli(logits)
            return expect(lambda x: elbo(x, q.detach()), q, estimator, coefficients, KEY).sum()

        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        for extreme in (1e4, -1e4, np.inf, -np.inf):
            value, (gradient, coefficient_gradient) = step(jnp.asarray([extreme, 0.3, -1.0]), coefficients)
            assert np.isfinite(value)
            assert np.all(np.isfinite(gradient))
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(coefficient_gradient))
            assert gradient[0] == 0
            assert np.any(gradient[1:] != 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_lower_precision_agrees_with_float64(name, dtype):
    estimator, coefficients = make(name)
    logits = np.random.default_rng(0).normal(size=(3, 4)).astype(dtype)

    def loss(logits):
        return expect(f, dcv.Bernoulli(logits), estimator, coefficients, KEY).mean()

    low = jax.grad(loss)(jnp.asarray(logits))
    assert low.dtype == dtype
    x = estimate(f, dcv.Bernoulli(jnp.asarray(logits)), estimator, coefficients, KEY).evaluation.x
    with jax.enable_x64(True):
        q = dcv.Bernoulli(jnp.asarray(logits, dtype=jnp.float64))
        x = jnp.asarray(np.asarray(x, dtype=np.float64))
        values, pullback = jax.vjp(f, x)
        at_mean, mean_pullback = jax.vjp(f, q.mean[None])
        evaluation = dcv.Evaluation(
            x, values, pullback(jnp.ones_like(values))[0], at_mean[0], mean_pullback(jnp.ones_like(at_mean))[0][0]
        )
        high = estimator.gradient(q, evaluation, coefficients) / 3
    scale = np.max(np.abs(high))
    tolerance = {jnp.float32: 1e-5, jnp.float16: 0.02, jnp.bfloat16: 0.1}[dtype]
    np.testing.assert_allclose(np.asarray(low, dtype=np.float64) / scale, np.asarray(high) / scale, atol=tolerance)


def test_float32_sampling_of_bfloat16_logits_is_not_rounded():
    """Noise in bfloat16 would draw a 1 with probability 2/256 where 1.5/256 is wanted."""
    logits = jnp.full((200_000,), np.log(1.5 / 254.5), jnp.bfloat16)
    q = dcv.Bernoulli(logits)
    x = estimate(lambda x: x.astype(jnp.float32).sum(-1), q, dcv.RLOO(2), {}, KEY).evaluation.x
    wanted = float(q.mean[0])
    error = np.sqrt(wanted / x.size)
    assert abs(np.asarray(x, dtype=np.float64).mean() - wanted) < 4 * error


def test_batch_sharded_over_several_devices():
    """The same numbers on one device and on four, and no device is sent another's batch."""
    program = textwrap.dedent("""
        import jax, jax.numpy as jnp, numpy as np, doublecv as dcv
        from doublecv.jax import expect
        jax.config.update("jax_num_cpu_devices", 4)
        assert len(jax.devices()) == 4
        mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
        split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        generator = np.random.default_rng(0)
        logits = jnp.asarray(generator.normal(size=(8, 5)), jnp.float32)
        weights = jnp.asarray(generator.normal(size=(5, 3)), jnp.float32)
        for estimator in (dcv.RLOO(2), dcv.DoubleCV(2), dcv.DisARM(2), dcv.ARMS(3)):
            coefficients = dict.fromkeys(estimator.coefficients(), -0.5)
            def loss(logits, weights, coefficients, key):
                f = lambda x: jnp.sum(jnp.tanh(x @ weights), -1)
                return expect(f, dcv.Bernoulli(logits), estimator, coefficients, key).mean()
            step = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
            key = jax.random.key(0)
            one = step(logits, weights, coefficients, key)
            many = step(jax.device_put(logits, split), jax.device_put(weights, whole), coefficients, key)
            assert many[0].sharding.is_equivalent_to(split, 2), many[0].sharding
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, many)
        print("sharded and equal")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "sharded and equal", done.stderr
