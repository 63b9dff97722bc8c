"""Bernoulli and Categorical against enumeration and SciPy, in every array library."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import doublecv as dcv
from doublecv.distributions import MIN_FOR_BLAS
from doublecv.exact import support
from problems import VARIABLES, make_logits

FAMILIES = [dcv.Bernoulli, dcv.Categorical]
LIBRARIES = {"numpy": np.asarray, "jax": jnp.asarray, "torch": torch.as_tensor}
SHAPES = {dcv.Bernoulli: (2, 3), dcv.Categorical: (2, 2, 3)}


def compiled(library, function):
    """Return the function as one program where the library is JAX, which compiles every operation apart otherwise."""
    return jax.jit(function) if library == "jax" else function


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


class TestAgainstEnumeration:
    @pytest.fixture
    def q(self, family):
        return family(logits=make_logits(family, batch=(2, 1)))

    def test_probabilities(self, q):
        points, probabilities = support(q)
        np.testing.assert_allclose(probabilities.sum(0), 1, rtol=1e-14)
        np.testing.assert_allclose(np.exp(q.log_prob(points)), probabilities, rtol=1e-13)

    def test_mean(self, q):
        points, probabilities = support(q)
        np.testing.assert_allclose(q.scale(probabilities, points).sum(0), q.mean, rtol=1e-13)

    def test_covariance_is_the_mean_of_score_times_deviation(self, q):
        points, probabilities = support(q)
        v = np.random.default_rng(0).normal(size=q.logits.shape)
        product = q.scale(probabilities * q.dot(points - q.mean, v), q.score(points)).sum(0)
        np.testing.assert_allclose(product, q.covariance_product(v), atol=1e-14)

    def test_entropy_and_divergence(self, q, family):
        other = family(logits=make_logits(family, batch=(2, 1), seed=9))
        points, probabilities = support(q)
        np.testing.assert_allclose(-(probabilities * q.log_prob(points)).sum(0), q.entropy(), rtol=1e-13)
        divergence = (probabilities * (q.log_prob(points) - other.log_prob(points))).sum(0)
        np.testing.assert_allclose(divergence, q.kl(other), rtol=1e-12)
        np.testing.assert_allclose(q.kl(q), 0, atol=1e-14)

    def test_score_is_the_derivative_of_log_prob(self, q, family, x64):
        points, _ = support(q)
        scores = jax.vmap(jax.grad(lambda logits, x: family(logits).log_prob(x).sum()), in_axes=(None, 0))
        scores = jax.jit(scores)
        np.testing.assert_allclose(scores(jnp.asarray(q.logits), jnp.asarray(points)), q.score(points), atol=1e-14)

    def test_samples_have_the_probabilities(self, family):
        """On a grid of noise the frequencies are the probabilities up to the grid's spacing: no luck involved."""
        q = family(logits=make_logits(family, batch=()))
        grid = (np.arange(10_000) + 0.5) / 10_000
        x = q.sample(np.broadcast_to(grid[:, None], (10_000, q.event_shape[0])))
        np.testing.assert_allclose(x.mean(0), q.mean, atol=1.01e-4)
        if family is dcv.Categorical:
            np.testing.assert_array_equal(x.sum(-1), 1)


@pytest.mark.parametrize("entries", [1, 2, 33])
@pytest.mark.parametrize("library", LIBRARIES)
def test_pairwise_dots_are_the_inner_products_of_all_pairs(family, library, entries, x64):
    generator, as_array = np.random.default_rng(0), LIBRARIES[library]
    for batch in ((), (4,), (0,), (2, 3)):
        shape = (*batch, *VARIABLES[family])
        logits, a, b = (
            generator.normal(size=shape),
            generator.normal(size=(entries, *shape)),
            generator.normal(size=(3, *shape)),
        )
        pairwise_dot = compiled(library, lambda q, a, b: q.pairwise_dot(a, b))
        found = pairwise_dot(family(logits=as_array(logits)), as_array(a), as_array(b))
        wanted = (a[:, None] * b[None]).sum(axis=tuple(range(-family.event_axes, 0)))
        assert tuple(found.shape) == wanted.shape
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variables", [1, MIN_FOR_BLAS - 1, MIN_FOR_BLAS, 200])
@pytest.mark.parametrize("library", LIBRARIES)
def test_dots_are_inner_products_over_events_of_all_sizes(family, library, variables, x64):
    generator, as_array = np.random.default_rng(0), LIBRARIES[library]
    for batch in ((), (4,), (0,), (2, 3)):
        shape = (*batch, variables, *(3,) * (family.event_axes - 1))
        shared, a, b = generator.normal(size=shape), *generator.normal(size=(2, 5, *shape))
        for left in (a, shared):
            dot = compiled(library, lambda q, a, b: q.dot(a, b))
            found = dot(family(logits=as_array(shared)), as_array(left), as_array(b))
            wanted = (left * b).sum(axis=tuple(range(-family.event_axes, 0)))
            assert tuple(found.shape) == wanted.shape
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-12, atol=1e-12)


class TestNumerics:
    @pytest.mark.parametrize("library", LIBRARIES)
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_extreme_logits(self, family, library, dtype, x64):
        values = np.array([np.inf, -np.inf, 1e4, -1e4, 90.0, -90.0, 0.0, 3.0], dtype=dtype)
        if family is dcv.Categorical:
            values = np.stack([values, np.zeros_like(values), values[::-1]], axis=-1)
            values[values == np.inf] = 1e30

        def everything(q, noise, other):
            x = q.sample(noise)
            of_x = q.covariance_product(x), q.log_prob(x), q.score(x), x
            return q.mean, q.entropy(), q.kl(other), q.kl(q), *of_x

        q, other = (family(logits=LIBRARIES[library](logits)) for logits in (values, np.ones_like(values)))
        noise = LIBRARIES[library](np.full(values.shape[:1], 0.5, dtype=dtype))
        for result in compiled(library, everything)(q, noise, other):
            assert str(np.asarray(result).dtype) == dtype
            assert np.all(np.isfinite(np.asarray(result)))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_bernoulli_tails_keep_their_precision(self, dtype):
        logits = np.array([-80.0, -20.0, 20.0, 80.0], dtype=dtype)
        q = dcv.Bernoulli(logits=logits)
        exact = logits.astype(np.float64)
        tolerance = 4 * np.finfo(dtype).eps * 80
        np.testing.assert_allclose(q.mean, scipy.special.expit(exact), rtol=tolerance)
        wanted = scipy.special.expit(exact) * scipy.special.expit(-exact)
        np.testing.assert_allclose(q.covariance_product(np.ones_like(logits)), wanted, rtol=tolerance)
        ones = dcv.Bernoulli(logits=logits[:, None]).log_prob(np.ones_like(logits)[:, None])
        np.testing.assert_allclose(ones, scipy.special.log_expit(exact), rtol=tolerance)

    @pytest.mark.parametrize("method", ["mean", "entropy", "log_prob", "kl"])
    def test_derivatives_at_logits_zero_are_not_lost(self, method, x64):
        """An absolute value or a maximum in the formula would have derivative 0 there."""
        functions = {
            "mean": (lambda logits: dcv.Bernoulli(logits).mean.sum(), 0.25),
            "entropy": (lambda logits: dcv.Bernoulli(logits).entropy(), 0.0),
            "log_prob": (lambda logits: dcv.Bernoulli(logits).log_prob(jnp.ones(1)), 0.5),
            "kl": (lambda logits: dcv.Bernoulli(logits).kl(dcv.Bernoulli(jnp.asarray([2.0]))), -0.5),
        }
        function, wanted = functions[method]
        assert jax.jit(jax.grad(function))(jnp.zeros(1))[0] == pytest.approx(wanted, abs=1e-14)
        leaf = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        q, ones = dcv.Bernoulli(leaf), torch.ones(1, dtype=torch.float64)
        values = {"mean": q.mean.sum(), "entropy": q.entropy(), "log_prob": q.log_prob(ones)}
        value = values.get(method, q.kl(dcv.Bernoulli(2 * ones)))
        assert torch.autograd.grad(value, leaf)[0].item() == pytest.approx(wanted, abs=1e-14)

    def test_second_derivative_of_the_mean(self, x64):
        second_derivative = jax.jit(jax.grad(jax.grad(lambda z: dcv.Bernoulli(z[None]).mean[0])))
        for logit in (-3.0, 0.0, 0.7):
            second = second_derivative(jnp.asarray(logit))
            mean = scipy.special.expit(logit)
            assert second == pytest.approx(mean * (1 - mean) * (1 - 2 * mean), abs=1e-14)

    def test_a_masked_category_is_never_drawn(self):
        q = dcv.Categorical(logits=np.array([[0.1, 0.7, 0.3, -np.inf]], dtype=np.float32))
        x = q.sample(np.array([[np.nextafter(np.float32(1), np.float32(0))]], dtype=np.float32))
        np.testing.assert_array_equal(x, [[[0, 0, 1, 0]]])

    def test_noise_at_its_ends(self):
        q = dcv.Bernoulli(logits=np.array([np.inf, -np.inf]))
        last = np.nextafter(1.0, 0.0)
        np.testing.assert_array_equal(q.sample(np.array([[0.0, 0.0], [last, last]])), [[1, 0], [1, 0]])

    @settings(deadline=None, max_examples=50)
    @given(arrays(np.float64, (4,), elements=st.floats(-700, 700)), st.floats(-5, 5))
    def test_softmax_does_not_change_with_a_shift(self, logits, shift):
        plain, shifted = dcv.Categorical(logits[None]), dcv.Categorical(logits[None] + shift)
        np.testing.assert_allclose(plain.mean, shifted.mean, rtol=1e-11, atol=1e-300)
        np.testing.assert_allclose(plain.mean, scipy.special.softmax(logits)[None], rtol=1e-11, atol=1e-300)

    @settings(deadline=None, max_examples=50)
    @given(arrays(np.float64, (3,), elements=st.floats(-300, 300)))
    def test_two_categories_are_bernoulli(self, logits):
        categorical = dcv.Categorical(np.stack([np.zeros_like(logits), logits], axis=-1))
        bernoulli = dcv.Bernoulli(logits)
        np.testing.assert_allclose(categorical.mean[..., 1], bernoulli.mean, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(categorical.entropy(), bernoulli.entropy(), rtol=1e-9, atol=1e-12)


class TestLibraries:
    @pytest.mark.parametrize("library", ["jax", "torch"])
    def test_the_same_numbers_as_numpy(self, family, library, x64):
        logits = make_logits(family)
        noise = np.random.default_rng(1).uniform(size=(4, 2, VARIABLES[family][0]))

        def everything(q, noise):
            x = q.sample(noise)
            of_q = q.mean, q.entropy(), q.kl(family(logits=q.logits * 0.3))
            return x, *of_q, q.covariance_product(x), q.score(x), q.log_prob(x)

        results = compiled(library, everything)(family(logits=LIBRARIES[library](logits)), LIBRARIES[library](noise))
        reference = everything(family(logits=logits), noise)
        np.testing.assert_array_equal(np.asarray(results[0]), reference[0])
        for got, wanted in zip(results, reference, strict=True):
            np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-12, atol=1e-14)

    def test_detach_holds_the_logits_constant(self, family):
        logits = jnp.zeros(SHAPES[family])
        assert not np.any(jax.jit(jax.grad(lambda logits: family(logits).detach().mean.sum()))(logits))
        leaf = torch.zeros(SHAPES[family], requires_grad=True)
        assert family(leaf).mean.requires_grad
        assert not family(leaf).detach().mean.requires_grad
        numbers = np.zeros(SHAPES[family])
        assert family(numbers).detach().logits is numbers

    def test_pytree(self, family):
        q = family(logits=jnp.ones(SHAPES[family]))
        doubled = jax.jit(lambda q: jax.tree.map(lambda leaf: 2 * leaf, q))(q)
        assert type(doubled) is family
        np.testing.assert_array_equal(doubled.logits, 2)
        assert jax.vmap(lambda q: q.entropy())(q).shape == (2,)
        assert "logits" in jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(q)[0][0][0])

    def test_pytree_without_importing_the_front_end(self):
        program = (
            "import doublecv as dcv, jax, jax.numpy as jnp, sys\n"
            "q = dcv.Bernoulli(logits=jnp.zeros(3))\n"
            "assert 'doublecv.jax' not in sys.modules\n"
            "print(jax.jit(lambda q: q)(q).mean.tolist())\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == "[0.5, 0.5, 0.5]\n"

    def test_bfloat16(self, family):
        q = family(logits=jnp.zeros(SHAPES[family], jnp.bfloat16))
        x = q.sample(jnp.full((*SHAPES[family][:1], VARIABLES[family][0] if family is dcv.Bernoulli else 2), 0.4))
        assert {str(a.dtype) for a in (q.mean, x, q.log_prob(x), q.covariance_product(x))} == {"bfloat16"}


class TestProbs:
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_probabilities_in_place_of_logits(self, family, library, x64):
        probs = LIBRARIES[library](family(logits=make_logits(family)).mean)
        np.testing.assert_allclose(np.asarray(family(probs=probs).mean), np.asarray(probs), rtol=1e-12)

    def test_certain_variables(self, family):
        probs = np.array([[0.0, 1.0], [1.0, 0.0]])
        with np.errstate(divide="ignore"):
            np.testing.assert_array_equal(family(probs=probs).mean, probs)

    def test_both_or_neither(self, family):
        with pytest.raises(TypeError, match=f"{family.__name__} takes either logits or probs, got both"):
            family(np.zeros((2, 3)), probs=np.ones((2, 3)))
        with pytest.raises(TypeError, match=f"{family.__name__} takes either logits or probs, got neither"):
            family()
        with pytest.raises(TypeError, match="probs must be a NumPy, JAX or torch array, got list"):
            family(probs=[0.5])


class TestErrors:
    @pytest.mark.parametrize(
        ("shape", "bad"), [((3, 0), dcv.Bernoulli), ((0, 3), dcv.Categorical), ((2, 0), dcv.Categorical)]
    )
    def test_no_variable_or_no_category(self, shape, bad):
        with pytest.raises(
            ValueError, match=rf"logits of {bad.__name__} must have shape .* at least one variable.*got"
        ):
            bad(logits=np.zeros(shape))

    def test_immutable(self, family):
        with pytest.raises(AttributeError, match="is immutable; make a new one to change logits"):
            family(np.zeros((2, 3))).logits = np.ones((2, 3))

    def test_kl_divergence_is_the_same_as_kl(self, family):
        q, p = (family(logits=make_logits(family, seed=seed)) for seed in (1, 2))
        np.testing.assert_array_equal(q.kl_divergence(p), q.kl(p))

    def test_shapes(self, family):
        q = family(logits=np.zeros(SHAPES[family]))
        with pytest.raises(ValueError, match=r"x must have a shape that ends in .*, got shape \(5,\)"):
            q.log_prob(np.zeros(5))
        with pytest.raises(ValueError, match=r"noise must have a shape that ends in .*, got shape \(5,\)"):
            q.sample(np.zeros(5))

    def test_divergence_from_another_family(self):
        bernoulli, categorical = dcv.Bernoulli(np.zeros((2, 3))), dcv.Categorical(np.zeros((2, 3)))
        with pytest.raises(TypeError, match="other must be a Bernoulli, got Categorical"):
            bernoulli.kl(categorical)
        with pytest.raises(ValueError, match=r"other must have event shape \(3,\), got \(4,\)"):
            bernoulli.kl(dcv.Bernoulli(np.zeros((2, 4))))
