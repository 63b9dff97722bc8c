"""Compiled programs give the numbers of uncompiled ones, also for large batches, where the compiler fuses otherwise.

With jaxlib 0.10.2, XLA on a CPU reads wrong elements where a sum over the last axis is fused with an array that is
broadcast over a leading axis (jax-ml/jax issue 39103). The formulas are written around it, and this is the test of it.
"""

import os

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.jax import Expectation
from problems import make_estimator

KEY = jax.random.key(0)

EMITTERS = "xla_cpu_use_fusion_emitters"
OPTIONS = {EMITTERS: True} if EMITTERS in os.environ.get("XLA_FLAGS", "") else {}
"""Compiler options that are XLA's defaults, and that `make test` switches off; newer versions of XLA have no switch."""


@pytest.fixture(scope="module")
def as_users_compile():
    """Compile with all optimizations; the rest of the suite leaves most of them out.

    The operations of uncompiled programs stay compiled from one estimator to the next, which takes most of the time.
    """
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


def differences(name, samples, family, variables, batch):
    """Return the relative differences of a compiled gradient from an uncompiled one, for all that gets one."""
    event = (variables,) if family is dcv.Bernoulli else (variables, 3)
    generator, size = np.random.default_rng(0), int(np.prod(event))
    logits = jnp.asarray(generator.normal(size=(batch, *event)), jnp.float32)
    weights = jnp.asarray(generator.normal(size=(size, 4)) / size**0.5, jnp.float32)
    estimator = make_estimator(name, samples)
    if estimator.needs.expected_f:
        estimator = dcv.RStar(samples, expected_f=lambda q: q.mean.sum(tuple(range(-q.event_axes, 0))))
    expectation = Expectation(estimator)
    learned = expectation.init(family(logits=logits)).learned
    learned = learned._replace(numbers=jax.tree.map(lambda leaf: leaf + 0.3, learned.numbers))

    def loss(logits, learned, key):
        def f(x):
            return jnp.sum(jnp.tanh(x.reshape(*x.shape[:2], -1) @ weights), -1)

        return expectation(f, family(logits=logits), learned, key).mean()

    gradients = jax.grad(loss, argnums=(0, 1))
    plain = gradients(logits, learned, KEY)
    compiled = jax.jit(gradients, compiler_options=OPTIONS)(logits, learned, KEY)

    def difference(one, other):
        return float(jnp.linalg.norm(one - other) / (jnp.linalg.norm(one) + 1e-20))

    return [difference(*pair) for pair in zip(jax.tree.leaves(plain), jax.tree.leaves(compiled), strict=True)]


SHAPES = ((2, 3, 20_000), (4, 50, 5_000))
"""K, the number of variables, and the batch."""

MORE_SHAPES = ((4, 3, 5_000), (2, 50, 20_000))
"""For the estimator that was wrong and for one without a mean; a case takes three seconds, most of them to compile."""


def cases():
    for shape in (*SHAPES, *MORE_SHAPES):
        for family in (dcv.Bernoulli, dcv.Categorical):
            for name in estimators.names(family):
                if shape in SHAPES or name in ("muprop", "quadratic-double-cv"):
                    yield name, shape[0], family, *shape[1:]


@pytest.mark.parametrize(("name", "samples", "family", "variables", "batch"), list(cases()))
def test_compiled_gradients_of_large_batches(as_users_compile, name, samples, family, variables, batch):
    found = differences(name, samples, family, variables, batch)
    assert max(found) < 1e-3, f"jit and eager differ by {found} with jaxlib {jaxlib.__version__}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["muprop", "r-star"])
def test_compiled_gradients_of_many_samples(as_users_compile, name):
    """With more samples than are written out one by one."""
    found = differences(name, 40, dcv.Bernoulli, 3, 5_000)
    assert max(found) < 1e-3, f"jit and eager differ by {found} with jaxlib {jaxlib.__version__}"


@pytest.mark.slow
def test_the_fault_is_still_there():
    """Once this fails, the compiler is mended, and what is written around its fault can go."""
    if jaxlib.__version__ != "0.10.2":
        pytest.skip(f"known of jaxlib 0.10.2 only, and this is {jaxlib.__version__}")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        generator = np.random.default_rng(0)
        shapes = ((2, 20_000), (20_000,), (20_000, 3), (2, 20_000, 3))
        arrays = [jnp.asarray(generator.normal(size=shape), jnp.float32) for shape in shapes]

        def expression(f, shared, slope, score):
            return f - (shared[None] + jnp.sum(slope * score, -1))

        assert jnp.abs(expression(*arrays) - jax.jit(expression, compiler_options=OPTIONS)(*arrays)).max() > 1
    finally:
        jax.config.update("jax_disable_most_optimizations", True)
        jax.clear_caches()
