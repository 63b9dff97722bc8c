"""Numbers at their limits, in both front-ends: extreme logits in float32, vanishing weights, masked NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
import doublecv.jax
import doublecv.torch
from doublecv.arrays import LARGEST_PRODUCT, matrix_product, namespace
from noise_quadrature import given_noise
from problems import BINARY, make_context, make_estimator, make_learned

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(0)
WEIGHTS = np.random.default_rng(5).normal(size=(6, 3))
FRAMEWORKS = ("jax", "torch")
CATEGORICAL = tuple(name for name in dcv.names(dcv.Categorical) if name != "r-star")


@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 50_001, 4), (4, 7, 20_001), (2, 3, 5)])
def test_products_in_blocks_are_complete(rows, inner, columns):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(rows, inner)), rng.normal(size=(inner, columns))
    assert (a.size * columns > LARGEST_PRODUCT) == (columns != 5)
    np.testing.assert_allclose(matrix_product(a, b), a @ b, rtol=1e-10, atol=1e-10)


def smooth(x, xp):
    return xp.sum(xp.tanh(x @ xp.asarray(WEIGHTS, dtype=x.dtype)), axis=-1)


def smooth_of_categories(x, xp):
    return smooth(xp.reshape(x, (*x.shape[:-2], -1)), xp)


class Case:
    """One estimator, its learned state and its noise, for both frameworks and families."""

    def __init__(self, name, logits, family=dcv.Bernoulli):
        self.estimator, self.family = make_estimator(name, 4), family
        self.f = smooth if family is dcv.Bernoulli else smooth_of_categories
        self.logits = logits
        self.context = make_context(logits.shape[:1]) if self.estimator.needs.context else None
        # The state of moderate logits: that of extreme ones knows no variance.
        moderate = family(logits=np.random.default_rng(2).normal(size=logits.shape))
        self.learned = make_learned(self.estimator, moderate, self.context, 0.4)
        # Numbers of 23 bits, which float32 holds, so that both types draw the same samples.
        shape = self.estimator.noise_shape(family(logits))
        self.noise = np.random.default_rng(3).integers(1, 2**23, size=shape) / 2**23

    def estimate(self, framework, dtype):
        if framework == "jax":
            return np.asarray(self._in_jax(dtype), dtype=float)
        return self._in_torch(dtype).double().numpy()

    def _in_jax(self, dtype):
        expectation = doublecv.jax.Expectation(self.estimator)
        learned, context = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (self.learned, self.context))
        with given_noise(self.noise):
            return jax.jit(
                lambda logits: (
                    expectation.estimate(
                        lambda x: self.f(x, jnp), self.family(logits), learned, KEY, context=context
                    ).gradient
                )
            )(jnp.asarray(self.logits, dtype))

    def _in_torch(self, dtype):
        expectation = self.module(dtype)
        q, context = self.family(torch.tensor(self.logits, dtype=getattr(torch, dtype))), self.torch_context(dtype)
        noise = torch.tensor(self.noise, dtype=getattr(torch, dtype))
        return expectation.estimate(lambda x: self.f(x, namespace(x)), q, context=context, noise=noise).gradient

    def torch_context(self, dtype):
        return None if self.context is None else torch.tensor(self.context, dtype=getattr(torch, dtype))

    def module(self, dtype="float64"):
        q = self.family(torch.tensor(self.logits, dtype=getattr(torch, dtype)))
        expectation = doublecv.torch.Expectation(self.estimator).init(q, context=self.torch_context(dtype))
        state = self.learned.numbers | self.learned.averages
        expectation.load_state_dict({name: torch.tensor(np.array(value)) for name, value in state.items()})
        return expectation


@pytest.mark.parametrize("framework", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("largest", [15.0, 100.0])
@pytest.mark.parametrize("name", BINARY)
def test_float32_agrees_with_float64_at_extreme_logits(name, largest, framework):
    logits = np.random.default_rng(1).uniform(-largest, largest, size=(32, 6)).astype(np.float32)
    # Some are moderate, so that there is a gradient to compare.
    logits[:, :2] = logits[:, :2] / largest
    check_float32(Case(name, logits.astype(float)), framework)


@pytest.mark.parametrize("framework", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("largest", [15.0, 100.0])
@pytest.mark.parametrize("name", CATEGORICAL)
def test_float32_agrees_with_float64_at_extreme_logits_of_categories(name, largest, framework):
    logits = np.random.default_rng(1).uniform(-largest, largest, size=(32, 2, 3)).astype(np.float32)
    logits[:, 0] = logits[:, 0] / largest
    check_float32(Case(name, logits.astype(float), dcv.Categorical), framework)


def check_float32(case, framework):
    narrow, wide = case.estimate(framework, "float32"), case.estimate(framework, "float64")
    assert np.isfinite(narrow).all()
    assert np.linalg.norm(wide) > 1e-2
    assert np.linalg.norm(narrow - wide) < 1e-3 * np.linalg.norm(wide)


def weighted_torch(case, f, loss, numbers):
    """Return the gradients of a loss in the logits and the numbers, and the moved averages, for each of `numbers`.

    `f(x, number)` and `loss(value, number)` take a number, so that JAX compiles one program for all.
    """
    return [
        _weighted_torch(case, lambda x, n=n: f(x, n), lambda v, n=n: loss(v, n)) for n in map(torch.tensor, numbers)
    ]


def _weighted_torch(case, f, loss):
    expectation = case.module().train()
    logits = torch.tensor(case.logits, requires_grad=True)
    options = {"context": case.torch_context("float64"), "noise": torch.tensor(case.noise)}
    loss(expectation(f, dcv.Bernoulli(logits), **options)).backward()
    numbers = {name: parameter.grad.numpy() for name, parameter in expectation.named_parameters()}
    return logits.grad.numpy(), numbers, {name: value.numpy() for name, value in expectation.named_buffers()}


def weighted_jax(case, f, loss, numbers):
    expectation = doublecv.jax.Expectation(case.estimator)
    learned, context = jax.tree.map(jnp.asarray, (case.learned, case.context))
    state = doublecv.jax.State(learned, expectation.optimizer.init(learned.numbers))

    @jax.jit
    def run(logits, number):
        def mean(logits, learned):
            q = dcv.Bernoulli(logits)
            return loss(expectation(lambda x: f(x, number), q, learned, KEY, context=context), number)

        of_logits, of_learned = jax.grad(mean, argnums=(0, 1))(logits, learned)
        return of_logits, of_learned.numbers, expectation.update(of_learned, state).learned.averages

    with given_noise(case.noise):
        return [jax.tree.map(np.asarray, run(jnp.asarray(case.logits), jnp.asarray(number))) for number in numbers]


RUN = {"jax": weighted_jax, "torch": weighted_torch}
FAST_MASKED = ("rloo", "double-cv", "muprop", "quadratic-double-cv", "surrogate-quadratic-double-cv", "rodeo", "relax")


def masked_cases():
    for framework in FRAMEWORKS:
        for name in BINARY:
            slow = framework == "jax" and name not in FAST_MASKED
            yield pytest.param(framework, name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("framework", "name"), list(masked_cases()))
def test_a_masked_element_does_not_matter_even_if_f_is_not_finite_there(framework, name):
    """`where(pad, 0, value)`: the gradient of the logits, of the numbers, and the averages are those without NaN."""
    case = Case(name, np.random.default_rng(1).normal(size=(4, 6)))
    pad = np.array([False, True, False, False])

    def f(x, factor):
        xp = namespace(x)
        return smooth(x, xp) * xp.where(xp.asarray(pad), factor, xp.ones_like(factor))

    def loss(value, factor):
        xp = namespace(value)
        return xp.sum(xp.where(xp.asarray(pad), xp.zeros_like(value), value))

    found, wanted = RUN[framework](case, f, loss, (np.nan, 1.0))
    assert not found[0][1].any()
    assert np.isfinite(found[0]).all()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, wanted)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["relax", "surrogate-quadratic-double-cv"])
def test_a_masked_element_does_not_matter_even_if_its_context_is_not_finite(framework, name):
    pad = np.array([False, True, False, False])
    results = []
    for filling in (np.nan, np.inf, 0.0):
        case = Case(name, np.random.default_rng(1).normal(size=(4, 6)))
        case.context = np.where(pad[:, None], filling, case.context)

        def loss(value, factor):
            xp = namespace(value)
            return xp.sum(xp.where(xp.asarray(pad), xp.zeros_like(value), value))

        results += RUN[framework](case, lambda x, factor: factor * smooth(x, namespace(x)), loss, (1.0,))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
    for result in results[:2]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), result, results[2])


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["double-cv", "quadratic-double-cv", "surrogate-quadratic-double-cv"])
def test_a_vanishing_weight_counts_as_little_as_none(framework, name):
    case = Case(name, np.random.default_rng(1).normal(size=(2, 6)))

    def f(x, weight):
        return smooth(x, namespace(x))

    def loss(value, weight):
        return (value * weight).sum()

    results = RUN[framework](case, f, loss, [np.exp(np.array(scores)) for scores in ([0.0, -90.0], [0.0, -900.0])])
    for leaf in jax.tree.leaves(results):
        assert np.isfinite(leaf).all()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-30), *results)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("family", [dcv.Bernoulli, dcv.Categorical])
@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_the_temperature_is_learned_in_16_bits_from_an_f_of_any_size(size, family, framework):
    """The squared estimate of an f of 1,000 is beyond float16, in which f is differentiated twice."""
    event = (4,) if family is dcv.Bernoulli else (2, 3)
    logits = np.random.default_rng(1).normal(size=(3, *event)).astype(np.float16)
    weights = np.random.default_rng(2).normal(size=event)
    noise = np.random.default_rng(3).uniform(size=dcv.Rebar(4).noise_shape(family(logits=logits))).astype(np.float32)

    def f(x):
        wide = namespace(x).astype(x, namespace(x).float32)
        axes = tuple(range(-len(event), 0))
        return size * ((wide - 0.3) * namespace(x).asarray(weights, dtype=wide.dtype)).sum(axes) ** 2

    derivatives = []
    for dtype in ("float16", "float32"):
        if framework == "jax":
            expectation = doublecv.jax.Expectation(dcv.Rebar(4))
            learned = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), dcv.Rebar(4).init())
            with given_noise(noise):
                found = jax.jit(
                    lambda logits, e=expectation, s=learned: e.estimate(f, family(logits), s, KEY).learned_gradient
                )(jnp.asarray(logits, dtype)).numbers
        else:
            expectation = doublecv.torch.Expectation(dcv.Rebar(4))
            q = family(torch.tensor(logits, dtype=getattr(torch, dtype)))
            found = expectation.estimate(f, q, noise=torch.tensor(noise)).learned_gradient.numbers
        derivatives.append([float(found[name]) for name in ("log_temperature", "scale")])
    np.testing.assert_allclose(*derivatives, rtol=0.05)
