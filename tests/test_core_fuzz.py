"""Random f and q, in shapes, types and transformations, for every estimator: what always holds.

`make fuzz` runs many more cases.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import doublecv as dcv
import doublecv.jax
import doublecv.torch
from doublecv import estimators
from fuzzing import fuzz

NAMES = [name for name in estimators.names() if not estimators.make(name, samples=4).needs.expected_f]
NARROW = {torch.float16: 0.05, torch.bfloat16: 0.1, torch.float32: 2e-4, torch.float64: 1e-9}


@st.composite
def problems(draw, names=NAMES):
    """Return an estimator, its family, shapes, a seed, a scale of the logits and one of f."""
    name, family = draw(st.sampled_from(names)), draw(st.sampled_from([dcv.Bernoulli, dcv.Categorical]))
    estimator = estimators.make(name, samples=draw(st.sampled_from([4, 6])))
    if family not in estimator.needs.families:
        (family,) = estimator.needs.families
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)]))
    variables = draw(st.integers(1, 4))
    event = (variables,) if family is dcv.Bernoulli else (variables, draw(st.integers(1, 3)))
    seed, logit_scale = draw(st.integers(0, 2**31)), draw(st.sampled_from([0.0, 1.0, 30.0]))
    return estimator, family, batch, event, seed, logit_scale, draw(st.sampled_from([1e-3, 1.0, 1e3]))


def function(event, seed, scale, xp):
    """Return one of several smooth functions of x, with a weight as its parameter."""
    generator = np.random.default_rng(seed)
    slope, kind = generator.normal(size=event), seed % 3
    axes = tuple(range(-len(event), 0))

    def f(weight, x):
        inner = ((x - 0.3) * xp.asarray(slope, dtype=x.dtype) * weight).sum(axes)
        return scale * (xp.tanh(inner) if kind == 0 else inner**2 if kind == 1 else xp.sin(3 * inner) + 2)

    return f


@fuzz(60)
@given(problems(), st.sampled_from(list(NARROW)))
def test_fuzz_torch(case, kind):
    estimator, family, batch, event, seed, logit_scale, scale = case
    generator = torch.Generator().manual_seed(seed)
    logits = (logit_scale * torch.randn(*batch, *event, generator=generator)).to(kind).requires_grad_()
    weight = torch.ones((), dtype=torch.promote_types(kind, torch.float32), requires_grad=True)
    f = function(event, seed, scale, torch)
    q = family(logits=logits)
    expectation = doublecv.torch.Expectation(estimator).init(q)
    wide = q.widen().detach()
    noise = torch.rand(estimator.noise_shape(wide), dtype=wide.logits.dtype, generator=generator)

    def of_points(x):
        return f(weight, x.to(weight.dtype))

    explicit = expectation.estimate(of_points, q, noise=noise)
    value = expectation(of_points, q, noise=noise)
    assert value.shape == batch
    value.sum().backward()
    assert logits.grad.dtype == kind
    assert logits.grad.isfinite().all()
    torch.testing.assert_close(logits.grad, explicit.gradient, rtol=NARROW[kind], atol=NARROW[kind] * scale)
    x = estimator.draw(wide, noise).to(kind)
    (wanted,) = torch.autograd.grad(of_points(x).mean(0).sum(), weight)
    torch.testing.assert_close(weight.grad, wanted, rtol=1e-3, atol=1e-3 * scale)
    for tensor in (*expectation.parameters(), *expectation.buffers()):
        assert tensor.isfinite().all()
        assert tensor.grad is None or tensor.grad.isfinite().all()


@fuzz(6)
@given(problems(), st.sampled_from(["jit", "remat", "vmap"]))
def test_fuzz_jax(case, transform):
    estimator, family, batch, event, seed, logit_scale, scale = case
    expectation, key = doublecv.jax.Expectation(estimator), jax.random.key(seed)
    logits = jnp.asarray(logit_scale * np.random.default_rng(seed).normal(size=(*batch, *event)), jnp.float32)
    f = function(event, seed, scale, jnp)
    learned = expectation.init(family(logits=logits)).learned

    def loss(logits, weight, learned):
        return expectation(lambda x: f(weight, x), family(logits=logits), learned, key).sum()

    gradients = jax.grad(loss, argnums=(0, 1, 2))

    def through_vmap(logits, weight, learned):
        batched = jax.vmap(gradients, in_axes=(0, None, None))(logits[None], weight, learned)
        return jax.tree.map(lambda leaf: leaf[0], batched)

    found = {
        "jit": jax.jit(gradients),
        "remat": jax.jit(jax.grad(jax.checkpoint(loss), argnums=(0, 1, 2))),
        "vmap": through_vmap,
    }[transform](logits, 1.0, learned)
    explicit = expectation.estimate(lambda x: f(1.0, x), family(logits=logits), learned, key)
    np.testing.assert_allclose(found[0], explicit.gradient, rtol=1e-3, atol=2e-4 * scale)
    for leaf in jax.tree.leaves(found):
        assert np.isfinite(leaf).all()
