"""Bad input gets an error that names the argument, what was given and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import doublecv as dcv
from doublecv import estimators
from doublecv.jax import estimate, expect

KEY = jax.random.key(0)
Q = dcv.Bernoulli(jnp.zeros((3, 4)))


def f(x):
    return x.sum(-1)


@pytest.mark.parametrize("cls", [dcv.RLOO, dcv.DoubleCV, dcv.DisARM, dcv.ARMS])
def test_one_sample_for_leave_one_out(cls):
    with pytest.raises(ValueError, match=rf"samples must be at least 2 for {cls.__name__}, got 1: .*other samples"):
        cls(1)


@pytest.mark.parametrize("samples", [0, -1])
def test_no_sample(samples):
    with pytest.raises(ValueError, match=rf"samples must be at least 1 for Reinforce, got {samples}"):
        dcv.Reinforce(samples)


@pytest.mark.parametrize("samples", [2.0, "2", True, None])
def test_samples_that_are_no_integer(samples):
    with pytest.raises(TypeError, match=rf"samples must be an integer, got {samples!r}"):
        dcv.RLOO(samples)


def test_odd_samples_for_disarm():
    with pytest.raises(ValueError, match=r"samples must be a multiple of 2 for DisARM, got 3.*ARMS takes any number"):
        dcv.DisARM(3)


def test_unknown_option():
    with pytest.raises(ValueError, match=r"surrogate must be one of leave-one-out, mean, concrete; got 'taylor'"):
        dcv.DoubleCV(2, surrogate="taylor")
    with pytest.raises(ValueError, match=r"keep must be one of both, current, others; got 'half'"):
        dcv.DoubleCV(2, keep="half")


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name must be one of reinforce, r-star, rloo, .*; got 'gumbel'"):
        estimators.make("gumbel", samples=2)
    with pytest.raises(ValueError, match=r"name 'rloo' is registered already"):
        estimators.register("rloo", dcv.RLOO)


@pytest.mark.parametrize("call", [expect, estimate])
@pytest.mark.parametrize("wrong", [lambda x: x, lambda x: x.sum(), lambda x: x.sum((0, 2)), lambda x: 1.0])
def test_f_of_the_wrong_shape(call, wrong):
    with pytest.raises(
        ValueError, match=r"f must return shape \(2, 3\), one number for each sample .* got .*; sum over"
    ):
        call(wrong, Q, dcv.RLOO(2), {}, KEY)


def test_f_of_the_wrong_shape_at_the_mean():
    with pytest.raises(ValueError, match=r"f at the mean of q must return shape \(1, 3\)"):
        expect(lambda x: x, Q, dcv.MuProp(2), {}, KEY)


@pytest.mark.parametrize("call", [expect, estimate])
def test_coefficients(call):
    with pytest.raises(ValueError, match=r"coefficients of DoubleCV lack \['alpha'\], got \[\]; start from"):
        call(f, Q, dcv.DoubleCV(2), {}, KEY)
    with pytest.raises(ValueError, match=r"coefficients of RLOO are \[\], got \['alpha'\] besides"):
        call(f, Q, dcv.RLOO(2), {"alpha": 0.0}, KEY)
    with pytest.raises(TypeError, match=r"coefficients must be a dict like estimator.coefficients\(\), got float"):
        call(f, Q, dcv.DoubleCV(2), 0.0, KEY)


@pytest.mark.parametrize("estimator", [dcv.DisARM(2), dcv.ARMS(3)], ids=lambda e: e.name)
def test_categorical_with_an_estimator_for_bernoulli(estimator):
    q = dcv.Categorical(jnp.zeros((3, 2, 4)))
    name = type(estimator).__name__
    wanted = f"q must be a doublecv.Bernoulli for {name}, got Categorical; for Categorical take RLOO or DoubleCV"
    with pytest.raises(TypeError, match=wanted):
        expect(lambda x: x.sum((-1, -2)), q, estimator, {}, KEY)


def test_q_that_is_no_distribution():
    with pytest.raises(
        TypeError, match=r"q must be a doublecv.Bernoulli or doublecv.Categorical for RLOO, got ArrayImpl"
    ):
        expect(f, jnp.zeros((3, 4)), dcv.RLOO(2), {}, KEY)


def test_estimator_that_is_none():
    with pytest.raises(TypeError, match=r"estimator must be a doublecv estimator such as .*, got str"):
        expect(f, Q, "rloo", {}, KEY)


@pytest.mark.parametrize("logits", [jnp.zeros((3, 4), int), np.zeros(3, int), np.zeros(3, bool)])
def test_logits_of_integer_type(logits):
    with pytest.raises(TypeError, match=rf"logits must have a floating type, got {logits.dtype}"):
        dcv.Bernoulli(logits=logits)


def test_logits_that_are_no_array():
    with pytest.raises(TypeError, match=r"logits must be a NumPy, JAX or torch array, got list"):
        dcv.Bernoulli(logits=[0.0, 1.0])


def test_logits_with_too_few_axes():
    with pytest.raises(ValueError, match=r"logits of Bernoulli must have shape \[\*batch, D\], got shape \(\)"):
        dcv.Bernoulli(logits=np.zeros(()))
    with pytest.raises(ValueError, match=r"logits of Categorical must have shape \[\*batch, D, C\], got shape \(3,\)"):
        dcv.Categorical(logits=np.zeros(3))


def test_r_star_without_the_mean():
    with pytest.raises(ValueError, match=r"expected_f of RStar is None.*RStar\(samples, expected_f="):
        estimate(f, Q, dcv.RStar(2), {}, KEY)


@pytest.mark.parametrize("estimator", [dcv.RLOO(2), dcv.DoubleCV(2)], ids=lambda e: e.name)
def test_differentiating_twice(estimator):
    coefficients = estimator.coefficients()

    def value(logits):
        return expect(lambda x: jnp.sin(x).sum(-1), dcv.Bernoulli(logits), estimator, coefficients, KEY).sum()

    for second in (
        jax.grad(lambda logits: jax.grad(value)(logits).sum()),
        jax.hessian(value),
        jax.jit(jax.hessian(value)),
    ):
        with pytest.raises(TypeError, match=r"expect was differentiated twice"):
            second(Q.logits)


def test_differentiating_the_model_alone_twice_is_right():
    """f is an ordinary function of what it closes over: its second derivative is no estimate."""

    def value(scale):
        return expect(lambda x: scale**3 * x.sum(-1), Q, dcv.DoubleCV(2), {"alpha": 0.0}, KEY).sum()

    x = estimate(f, Q, dcv.DoubleCV(2), {"alpha": 0.0}, KEY).evaluation.x
    np.testing.assert_allclose(jax.hessian(value)(2.0), 12 * x.sum(-1).mean(0).sum(), rtol=1e-6)


def test_noise_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"noise must have shape \(2, 3, 4\) .*, got shape \(3, 4\)"):
        dcv.RLOO(2).draw(Q, jnp.zeros((3, 4)))


def test_evaluation_that_lacks_what_the_formula_needs():
    x, values = jnp.zeros((2, 3, 4)), jnp.zeros((2, 3))
    with pytest.raises(ValueError, match=r"evaluation.df is None, but DoubleCV needs it, with shape \(2, 3, 4\)"):
        dcv.DoubleCV(2).gradient(Q, dcv.Evaluation(x, values), {"alpha": 0.0})
    with pytest.raises(ValueError, match=r"evaluation.f must have shape \(2, 3\), got shape \(2, 4\)"):
        dcv.RLOO(2).gradient(Q, dcv.Evaluation(x, jnp.zeros((2, 4))), {})
