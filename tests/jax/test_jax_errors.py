"""Bad input gets an error that names the argument, what was given and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import doublecv as dcv
from doublecv import estimators
from doublecv.estimators import Evaluation, fixed_coefficients
from doublecv.jax import Expectation, fold

KEY = jax.random.key(0)
Q = dcv.Bernoulli(jnp.zeros((3, 4)))


def f(x):
    return x.sum(-1)


def call(f, q, estimator, learned=None, key=KEY, **options):
    """Call the expectation; the learned state is the initial one where that can be made."""
    if learned is None:
        learned = estimator.init(q if isinstance(q, dcv.Bernoulli) else Q)
    return Expectation(estimator)(f, q, learned, key, **options)


def estimate(f, q, estimator, learned=None, key=KEY, **options):
    return Expectation(estimator).estimate(f, q, estimator.init() if learned is None else learned, key, **options)


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


@pytest.mark.parametrize("name", estimators.names())
def test_the_number_of_samples_by_another_name(name):
    cls = type(estimators.make(name, samples=4))
    with pytest.raises(TypeError, match=rf"{cls.__name__} has no option K; the number of samples is called samples"):
        cls(K=4)


@pytest.mark.parametrize("option", ["n_samples", "num_samples"])
def test_the_number_of_samples_as_other_libraries_call_it(option):
    with pytest.raises(TypeError, match=rf"RLOO has no option {option}; the number of samples is called samples"):
        dcv.RLOO(**{option: 4})
    with pytest.raises(TypeError, match=r"RLOO has no option temperature; its options are samples"):
        dcv.RLOO(samples=4, temperature=1.0)
    with pytest.raises(TypeError, match=r"samples is missing, the number K of samples: make\('rloo', samples=4\)"):
        estimators.make("rloo", **{option: 4})


@pytest.mark.parametrize("probs", [[1.2, 0.3], [-0.1, 0.3], [float("nan"), 0.3]])
def test_probabilities_that_are_none(probs):
    with pytest.raises(ValueError, match="probs must be probabilities from 0 to 1"):
        dcv.Bernoulli(probs=jnp.array(probs))


@pytest.mark.parametrize("wrong", [lambda x: np.asarray(x).sum(-1), lambda x: x.sum(-1) if x.sum() > 0 else x[..., 0]])
def test_f_that_cannot_be_traced(wrong):
    with pytest.raises(TypeError, match=r"f turns x into a NumPy array or a Python number.*jax.pure_callback"):
        call(wrong, Q, dcv.RLOO(2))
    assert estimate(wrong, Q, dcv.RLOO(2)).gradient.shape == (3, 4)


def test_context():
    with pytest.raises(TypeError, match=r"context must be a JAX array \[\*batch, features\], got list"):
        call(f, Q, dcv.RLOO(2), context=[1.0])
    expectation = Expectation(dcv.Relax(1))
    learned = expectation.init(Q, context=jnp.zeros((3, 5))).learned
    for context, given in ((None, "none"), (jnp.zeros((3, 6)), "6")):
        with pytest.raises(ValueError, match=rf"context must have 5 features for each batch element.*, got {given}"):
            expectation(f, Q, learned, KEY, context=context)
    for context, given in (([1.0], "list"), (jnp.zeros(()), "a scalar")):
        with pytest.raises(TypeError, match=rf"context must be an array \[\*batch, features\], got {given}"):
            expectation.init(Q, context=context)


def test_logits_of_numpy_are_taken():
    assert call(f, dcv.Bernoulli(np.zeros((3, 4), np.float32)), dcv.DoubleCV(2)).shape == (3,)


def test_odd_samples_for_disarm():
    with pytest.raises(ValueError, match=r"samples must be a multiple of 2 for DisARM, got 3.*ARMS takes any number"):
        dcv.DisARM(3)


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name must be that of a registered estimator, got 'gumbel'; the names are"):
        estimators.make("gumbel", samples=2)
    with pytest.raises(ValueError, match="got 'double_cv'; did you mean 'double-cv'"):
        estimators.make("double_cv", samples=2)
    with pytest.raises(ValueError, match=r"name 'rloo' is already registered"):
        estimators.register("rloo", dcv.RLOO)


@pytest.mark.parametrize("entrance", [call, estimate])
@pytest.mark.parametrize("wrong", [lambda x: x.sum(), lambda x: x.sum((0, 2)), lambda x: 1.0, lambda x: x[..., None]])
def test_f_of_the_wrong_shape(entrance, wrong):
    with pytest.raises(
        ValueError, match=r"f must return shape \(2, 3\), one number for each sample .* got .*; sum over"
    ):
        entrance(wrong, Q, dcv.RLOO(2))


def test_one_number_per_variable():
    with pytest.raises(ValueError, match=r"q has 4 variables per batch element.*logits\[\.\.\., None\]"):
        call(lambda x: x, Q, dcv.RLOO(2))


def test_categorical_logits_of_shape_batch_categories():
    """[B, C] means B variables; one variable per example was meant."""
    q = dcv.Categorical(jnp.zeros((8, 10)))
    with pytest.raises(ValueError, match=r"q has 8 variables per batch element.*logits\[\.\.\., None, :\]"):
        call(lambda x: x.sum(-1), q, dcv.RLOO(2), dcv.RLOO(2).init())
    with pytest.raises(
        ValueError, match=r"got shape \(10,\); for one variable per example add an axis: logits\[\.\.\., N"
    ):
        dcv.Categorical(jnp.zeros(10))


def test_aux_without_saying_so():
    with pytest.raises(ValueError, match="if the second result is auxiliary output, say has_aux=True"):
        call(lambda x: (f(x), x), Q, dcv.RLOO(2))
    with pytest.raises(TypeError, match=r"f must return \(values, aux\) with has_aux=True, got an array of shape"):
        call(f, Q, dcv.RLOO(2), has_aux=True)


@pytest.mark.parametrize("entrance", [call, estimate])
def test_learned_state(entrance):
    with pytest.raises(
        ValueError, match=r"learned.numbers of DoubleCV must have the names \['alpha'\], got \[\]; start"
    ):
        entrance(f, Q, dcv.DoubleCV(2, learning="gradient"), fixed_coefficients({}))
    with pytest.raises(ValueError, match=r"learned.numbers of RLOO must have the names \[\], got \['alpha'\]"):
        entrance(f, Q, dcv.RLOO(2), fixed_coefficients({"alpha": 0.0}))
    with pytest.raises(TypeError, match=r"learned must be the learned state of the estimator .*, got dict"):
        entrance(f, Q, dcv.DoubleCV(2, learning="gradient"), {"alpha": 0.0})
    with pytest.raises(TypeError, match=r"learned is a State; pass state.learned"):
        entrance(f, Q, dcv.DoubleCV(2, learning="gradient"), Expectation(dcv.DoubleCV(2, learning="gradient")).init(Q))


@pytest.mark.parametrize("estimator", [dcv.LearnedSurrogate(dcv.RLOO(2)), dcv.Relax(1)], ids=lambda e: type(e).__name__)
def test_the_state_of_an_estimator_with_sizes(estimator):
    with pytest.raises(ValueError, match=r"learned.numbers of \w+ must have the names .*, got \['alpha'\]"):
        call(f, Q, estimator, fixed_coefficients({"alpha": 0.0}))


@pytest.mark.parametrize("entrance", ["__call__", "estimate"])
def test_the_state_of_another_estimator_with_the_same_names(entrance):
    state, expectation = Expectation(dcv.QuadraticDoubleCV(3)).init(Q), Expectation(dcv.QuadraticDoubleCV(2))
    with pytest.raises(
        ValueError, match=r"learned.averages\['\w+'\] of QuadraticDoubleCV must have shape .*, got .* another estimator"
    ):
        getattr(expectation, entrance)(f, Q, state.learned, KEY)


def test_update():
    expectation = Expectation(dcv.DoubleCV(2, learning="gradient"))
    state = expectation.init(Q)
    with pytest.raises(
        TypeError, match=r"update takes the gradient in state.learned and the state, got State and Learned"
    ):
        expectation.update(state, state.learned)


@pytest.mark.parametrize("estimator", [dcv.DisARM(2), dcv.ARMS(3)], ids=str)
def test_categorical_with_an_estimator_for_bernoulli(estimator):
    q = dcv.Categorical(jnp.zeros((3, 2, 4)))
    name = type(estimator).__name__
    with pytest.raises(
        TypeError, match=f"q must be a doublecv.Bernoulli for {name}, got Categorical; for Categorical take"
    ):
        call(lambda x: x.sum((-1, -2)), q, estimator)


def test_q_that_is_no_distribution():
    with pytest.raises(
        TypeError, match=r"q must be a doublecv.Bernoulli or doublecv.Categorical for RLOO, got ArrayImpl"
    ):
        call(f, jnp.zeros((3, 4)), dcv.RLOO(2))


def test_estimator_that_is_none():
    with pytest.raises(TypeError, match=r"estimator must be .*, got the name 'rloo'; make it by doublecv.make\('rloo'"):
        Expectation("rloo")
    with pytest.raises(TypeError, match=r"got the class RLOO; call it first, for example RLOO\(samples=4\)"):
        Expectation(dcv.RLOO)
    with pytest.raises(TypeError, match=r"base must be .*, got the name 'rloo'; make it by doublecv.make\('rloo'"):
        dcv.LearnedSurrogate("rloo")


def test_the_family_of_names_by_its_name():
    with pytest.raises(TypeError, match=r"family must be a class .* such as doublecv.Bernoulli, got 'bernoulli'"):
        dcv.names("bernoulli")


@pytest.mark.parametrize("transform", [jax.jacfwd, lambda loss: lambda v: jax.jvp(loss, (v,), (v,))])
def test_differentiating_in_forward_mode(transform):
    def loss(logits):
        return call(f, dcv.Bernoulli(logits=logits), dcv.RLOO(2)).sum()

    with pytest.raises(TypeError, match=r"differentiated in forward mode .*; take jax.grad, jax.vjp or jax.jacrev"):
        transform(loss)(jnp.zeros((3, 4)))


@pytest.mark.parametrize("entrance", [call, estimate])
def test_swapped_f_and_q(entrance):
    with pytest.raises(TypeError, match="f and q are swapped: the function comes first"):
        entrance(Q, f, dcv.RLOO(2))
    with pytest.raises(TypeError, match=r"f must be a function from points .*, got float"):
        entrance(1.0, Q, dcv.RLOO(2))


@pytest.mark.parametrize("entrance", [call, estimate])
@pytest.mark.parametrize("key", [None, 0, 1.5, "key", np.zeros(2), jnp.zeros(3)])
def test_what_is_no_key(entrance, key):
    with pytest.raises(TypeError, match=r"key must be a JAX random key such as jax.random.key\(0\), got"):
        entrance(f, Q, dcv.RLOO(2), key=key)


@pytest.mark.parametrize("entrance", [call, estimate])
def test_several_keys(entrance):
    with pytest.raises(TypeError, match="key must be a JAX random key"):
        entrance(f, Q, dcv.RLOO(2), key=jax.random.split(KEY, 3))


def test_an_old_key_is_a_key():
    assert call(f, Q, dcv.RLOO(2), key=jax.random.PRNGKey(0)).shape == (3,)


@pytest.mark.parametrize("entrance", [call, estimate])
def test_torch_handed_to_jax(entrance):
    with pytest.raises(TypeError, match=r"logits of q is a torch tensor; use doublecv.torch.Expectation"):
        entrance(f, dcv.Bernoulli(torch.zeros(3, 4)), dcv.RLOO(2))
    with pytest.raises(TypeError, match="logits of q is a torch tensor"):
        Expectation(dcv.RLOO(2)).init(dcv.Bernoulli(torch.zeros(3, 4)))


@pytest.mark.parametrize("entrance", [call, estimate])
def test_torch_returned_to_jax(entrance):
    with pytest.raises(TypeError, match="f must return a JAX array, got Tensor"):
        entrance(lambda x: torch.zeros(2, 3), Q, dcv.RLOO(2))


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


NO_GRADIENT = {
    "a threshold": lambda x: (x > 0.5).astype(x.dtype).sum(-1),
    "an index": lambda x: jnp.arange(16.0).reshape(2, 2, 2, 2)[tuple(jnp.moveaxis(x.astype(int), -1, 0))],
    "stop_gradient": lambda x: jax.lax.stop_gradient(x).sum(-1),
    "rounding": lambda x: jnp.round(x).sum(-1),
    "no dependence": lambda x: jnp.ones(x.shape[:-1]),
}


NEEDS_GRADIENT = ["double-cv", "quadratic-double-cv", "rodeo", "muprop", "rebar"]


@pytest.mark.parametrize("entrance", [call, estimate])
@pytest.mark.parametrize("case", NO_GRADIENT)
@pytest.mark.parametrize("name", NEEDS_GRADIENT)
def test_a_gradient_that_is_identically_zero(name, case, entrance):
    with pytest.raises(
        TypeError, match=rf"the gradient of f in x is zero everywhere, but {name} needs it.*rloo, disarm"
    ):
        entrance(NO_GRADIENT[case], Q, estimators.make(name, samples=2))


@pytest.mark.parametrize("case", NO_GRADIENT)
def test_no_gradient_where_none_is_needed(case):
    assert call(NO_GRADIENT[case], Q, dcv.RLOO(2)).shape == (3,)


@pytest.mark.parametrize("name", NEEDS_GRADIENT)
def test_a_gradient_that_is_zero_at_these_points(name):
    """f may be constant in one step, or flat at the corners: it is differentiable, so this is no mistake."""
    for flat in (lambda x: 0 * x.sum(-1), lambda x: (x**2 * (3 - 2 * x)).sum(-1)):
        run = jax.jit(lambda q, flat=flat: estimate(flat, q, estimators.make(name, samples=2)).gradient)
        assert np.all(np.isfinite(run(Q)))


def alpha():
    return jax.tree.map(jnp.asarray, dcv.DoubleCV(2, learning="gradient").init())


@pytest.mark.parametrize("estimator", [dcv.RLOO(2), dcv.DoubleCV(2, learning="gradient")], ids=str)
@pytest.mark.parametrize("case", ["logits, logits", "logits, theta", "theta, logits", "hessian", "mixed hessian"])
def test_differentiating_twice(estimator, case):
    """In the logits, in what f closes over, and mixed in both orders."""

    def value(logits, theta):
        return call(lambda x: jnp.sin(theta * x).sum(-1), dcv.Bernoulli(logits), estimator).sum()

    of_logits, of_theta = jax.grad(value), jax.grad(value, argnums=1)
    second = {
        "logits, logits": jax.grad(lambda logits, theta: of_logits(logits, theta).sum()),
        "logits, theta": jax.grad(lambda logits, theta: of_logits(logits, theta).sum(), argnums=1),
        "theta, logits": jax.grad(of_theta),
        "hessian": jax.jit(jax.hessian(value)),
        "mixed hessian": jax.jit(jax.jacfwd(of_theta)),
    }[case]
    with pytest.raises(TypeError, match="the expectation was differentiated twice"):
        second(Q.logits, 1.3)


def test_differentiating_only_the_model_twice_is_right():
    """f is an ordinary function of what it closes over: its second derivative is no estimate."""

    def value(scale):
        return call(lambda x: scale**3 * x.sum(-1), Q, dcv.DoubleCV(2, learning="gradient")).sum()

    x = estimate(f, Q, dcv.DoubleCV(2, learning="gradient")).evaluation.x
    np.testing.assert_allclose(jax.hessian(value)(2.0), 12 * x.sum(-1).mean(0).sum(), rtol=1e-6)


def test_noise_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"noise must have shape \(2, 3, 4\) .*, got shape \(3, 4\)"):
        dcv.RLOO(2).draw(Q, jnp.zeros((3, 4)))


def test_evaluation_that_lacks_what_the_formula_needs():
    x, values = jnp.zeros((2, 3, 4)), jnp.zeros((2, 3))
    with pytest.raises(ValueError, match=r"evaluation.df is None, but DoubleCV needs it, with shape \(2, 3, 4\)"):
        dcv.DoubleCV(2, learning="gradient").apply(Q, Evaluation(x, values), alpha())
    with pytest.raises(ValueError, match=r"evaluation.f must have shape \(2, 3\), got shape \(2, 4\)"):
        dcv.RLOO(2).apply(Q, Evaluation(x, jnp.zeros((2, 4))))


def test_fold():
    data = jnp.ones((5, 2))
    with pytest.raises(ValueError, match=r"data must have the batch axis 3 in front, got shape \(5, 2\)"):
        call(fold(lambda z, y: z.sum(-1), data), Q, dcv.RLOO(2))
    with pytest.raises(ValueError, match=r"f must return one number per example, 6 of them, got"):
        call(fold(lambda z: z.sum()), Q, dcv.RLOO(2))
    with pytest.raises(TypeError, match=r"data must be JAX arrays, got float; close over anything else in f"):
        call(fold(lambda z, y: z.sum(-1), 3.0), Q, dcv.RLOO(2))
