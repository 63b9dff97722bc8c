"""Measure the variance of gradients on paths, of bounds and of routing, for the page "Layers and sequences".

Coefficients are solved for on one set of draws, and the variance is that of other draws. Run

    python docs/measure_paths.py
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import doublecv as dcv
from doublecv.arrays import log_mean_exp
from doublecv.estimators import Evaluation
from doublecv.estimators.judgement import least_variance
from doublecv.jax.drawing import uniform

DRAWS, UNITS = 2000, 30


def function(kind, size, seed=0):
    """Return f of a flat sample: a tanh network or a quadratic."""
    generator = np.random.default_rng(seed)
    weights, head = generator.normal(size=(size, UNITS)) / size**0.5, generator.normal(size=UNITS)
    matrix, slope = generator.normal(size=(size, size)) / size, generator.normal(size=size) / size**0.5
    if kind == "tanh network":
        return lambda x: jnp.tanh(2 * x @ weights) @ head
    return lambda x: ((x @ matrix) * x).sum(-1) + x @ slope


def parts_of(estimator, q, f, weights, key):
    """Return g0 and h of DRAWS independent estimates, pulled back to the weights of a linear model of the logits."""
    visit = q.visit(estimator.samples, uniform(key))
    df = jax.grad(lambda x: f(x).sum())(visit.x)
    parts = estimator.parts(visit.q, Evaluation(visit.x, f(visit.x), df))
    stacked = parts.stack(estimator.needs.coefficients)
    pulled_back = jnp.einsum("pkbn,kbm->pbmn", stacked, visit.x) * (weights != 0)
    flat = (stacked.shape[0], DRAWS, -1)
    return jnp.concatenate([pulled_back.reshape(flat), stacked.sum(1)], axis=-1)


def ratio(parts, reference=None):
    """Return the variance with the best coefficients of other draws, relative to that of g0 or to the reference."""
    first, second = parts(jax.random.key(0)), parts(jax.random.key(1))
    centred = (first - first.mean(1, keepdims=True)).reshape(first.shape[0], -1)
    coefficients = least_variance(centred @ centred.T / centred.shape[1])
    combined = second[0] + jnp.tensordot(coefficients, second[1:], 1)
    return float(combined.var(0).sum() / (second[0].var(0).sum() if reference is None else reference))


def chain(size, coupling, categories=None, seed=1):
    """Return an autoregressive q of `size` coordinates, and the weights of its logits."""
    generator = np.random.default_rng(seed)
    step = np.arange(size) if categories is None else np.arange(size) // categories
    weights = generator.normal(size=(size, size)) * coupling / size**0.5 * (step[:, None] < step[None])
    bias = generator.normal(size=size) / 2

    def logits_of(x):
        shape = x.shape
        return (x.reshape(*shape[:2], size) @ weights + bias).reshape(shape)

    length = size if categories is None else size // categories
    return dcv.Autoregressive(logits_of, length, categories, batch_shape=(DRAWS,)), weights


def layers(sizes, coupling, seed=1):
    """Return stochastic layers of bits, and the weights of their logits."""
    generator = np.random.default_rng(seed)
    size = sum(sizes)
    step = np.repeat(np.arange(len(sizes)), sizes)
    weights = generator.normal(size=(size, size)) * coupling / size**0.5 * (step[:, None] < step[None])
    bias, ends = generator.normal(size=size) / 2, np.cumsum(sizes)

    def conditional(index, *earlier):
        x = jnp.concatenate(earlier, axis=-1)
        columns = slice(ends[index - 1], ends[index])
        return dcv.Bernoulli(logits=x @ weights[: ends[index - 1], columns] + bias[columns])

    first = dcv.Bernoulli(logits=jnp.broadcast_to(jnp.asarray(bias[: sizes[0]], jnp.float32), (DRAWS, sizes[0])))
    return dcv.Layers(first, *(partial(conditional, i) for i in range(1, len(sizes)))), weights


def print_paths():
    """Print the table of Double CV and the quadratic form on paths."""
    problems = {
        "20 bits, one after another, weakly coupled": chain(20, 0.5),
        "20 bits, one after another, strongly coupled": chain(20, 3.0),
        "8 categories of 4, one after another": chain(32, 1.0, 4),
        "two layers of 15 and 15 bits": layers((15, 15), 1.0),
        "three layers of 10 bits": layers((10, 10, 10), 1.0),
    }
    print("| q | f | Double CV, K = 2 | K = 4 | quadratic, K = 2 | K = 4 |\n|---|---|---|---|---|---|")
    for name, (q, weights) in problems.items():
        for kind in ("tanh network", "quadratic"):
            f = function(kind, weights.shape[0])
            cells = [
                ratio(jax.jit(partial(parts_of, estimator(K), q, f, weights)))
                for estimator in (dcv.DoubleCV, dcv.QuadraticDoubleCV)
                for K in (2, 4)
            ]
            print(f"| {name} | {kind} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)


def ratio_of_draws(estimator, q, f, df):
    """Return the variance relative to that of g0, for a q with given logits in NumPy."""

    def parts(seed):
        x = estimator.draw(q, np.random.default_rng(seed).uniform(size=estimator.noise_shape(q)))
        evaluation = Evaluation(x, f(x), df(x), f(q.mean), df(q.mean))
        stacked = estimator.parts(q, evaluation).stack(estimator.needs.coefficients)
        return stacked.reshape(*stacked.shape[:2], -1)

    return ratio(lambda key: parts(int(jax.random.key_data(key)[-1])))


def weights_of(size, spread):
    """Return log w, its gradient and q: a tanh network of `size` bits, whose standard deviation is `spread`."""
    generator = np.random.default_rng(0)
    weights, head = 2 * generator.normal(size=(size, UNITS)) / size**0.5, generator.normal(size=UNITS)
    q = dcv.Bernoulli(logits=np.broadcast_to(np.linspace(-1, 1, size), (DRAWS, size)))
    scaled = head * spread / (np.tanh(q.sample(generator.uniform(size=q.noise_shape)) @ weights) @ head).std()

    def f(x):
        return np.tanh(x @ weights) @ scaled

    def df(x):
        return ((1 - np.tanh(x @ weights) ** 2) * scaled) @ weights.T

    return f, df, q


def joint_ratio(estimator, samples, f, df, q):
    """Return the variance of an estimator of the bound as an f of S samples, relative to VIMCO at equal evaluations.

    The estimator takes two groups of S samples, and VIMCO's variance is that of a mean over two groups.
    """
    size = q.event_shape[0]
    joint = dcv.Bernoulli(logits=np.concatenate([q.logits] * samples, axis=-1))

    def split(x):
        return x.reshape(*x.shape[:-1], samples, size)

    def bound(x):
        return log_mean_exp(f(split(x)), axis=-1)

    def gradient(x):
        share = np.exp(f(split(x)) - bound(x)[..., None]) / samples
        return (share[..., None] * df(split(x))).reshape(x.shape)

    def parts(key):
        x = estimator.draw(joint, np.random.default_rng(int(key)).uniform(size=estimator.noise_shape(joint)))
        stacked = estimator.parts(joint, Evaluation(x, bound(x), gradient(x))).stack(estimator.needs.coefficients)
        return split(stacked).sum(-2)

    def vimco(key):
        x = q.sample(np.random.default_rng(int(key)).uniform(size=(samples, *q.noise_shape)))
        return dcv.MultiSampleBound(samples, control=False).parts(q, Evaluation(x, f(x))).g0

    return ratio(lambda key: parts(jax.random.key_data(key)[-1]), vimco(2).var(0).sum() / 2)


def print_bounds():
    """Print the tables of the bound's control variates, and of estimators of a plain expectation."""
    problems = [(size, spread) for size in (20, 100) for spread in (0.5, 2.0)]
    print("\n| variables | spread of log w | S = 2 | S = 4 | S = 8 |\n|---|---|---|---|---|")
    for size, spread in problems:
        f, df, q = weights_of(size, spread)
        cells = [ratio_of_draws(dcv.MultiSampleBound(S), q, f, df) for S in (2, 4, 8)]
        print(f"| {size} | {spread} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)
    print("\n| variables | spread of log w | Double CV, S = 2 | S = 8 | S = 20 | quadratic, S = 2 | S = 8 | S = 20 |")
    print("|---|---|---|---|---|---|---|---|")
    for size, spread in problems:
        cells = [
            joint_ratio(estimator(2), S, *weights_of(size, spread))
            for estimator in (dcv.DoubleCV, dcv.QuadraticDoubleCV)
            for S in (2, 8, 20)
        ]
        print(f"| {size} | {spread} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |", flush=True)


def routing(shared):
    """Return f and q of a mixture of experts: each of several inputs is sent to one of 8 experts.

    With `shared`, the outputs for 16 inputs are added to what passes by the experts, and their mean is classified, as
    in a layer of a network with residual connections. Otherwise each of 4 inputs has a squared error of its own.
    """
    generator = np.random.default_rng(0)
    inputs, experts, outputs, classes = (16, 8, 6, 5) if shared else (4, 8, 6, 5)
    made = generator.normal(size=(inputs, experts, outputs))
    target, past = generator.normal(size=(2, inputs, outputs))
    head = generator.normal(size=(outputs, classes))
    q = dcv.Categorical(logits=np.broadcast_to(generator.normal(size=(inputs, experts)), (DRAWS, inputs, experts)))

    def f(x):
        routed = jnp.einsum("...ie,ieo->...io", x, made)
        if shared:
            return -jax.nn.log_softmax(jnp.tanh(past + routed).mean(-2) @ head)[..., 0]
        return ((jnp.tanh(routed) - target) ** 2).sum((-1, -2))

    return f, q


def print_routing():
    """Print the variance of sparse mixtures of experts."""
    print("\n| loss | estimator | all experts run, K = 2 | K = 4 | chosen experts run, K = 2 | K = 4 |")
    print("|---|---|---|---|---|---|")
    for loss in ("of each input", "shared by 16 inputs"):
        f, q = routing(loss != "of each input")
        gradient = jax.jit(jax.grad(lambda x, f=f: f(x).sum()))

        def value(x, f=f):
            return np.asarray(f(x), dtype=float)

        def df(x, gradient=gradient):
            return np.asarray(gradient(x), dtype=float)

        def sparse_df(x, df=df):
            """Return the gradient of a program that runs the chosen experts only; at the mean all of them run."""
            return df(x) * (x > 0)

        for name, estimator in {
            "Double CV": dcv.DoubleCV,
            "quadratic": dcv.QuadraticDoubleCV,
            "Double CV at the mean": partial(dcv.DoubleCV, control="mean"),
        }.items():
            cells = [ratio_of_draws(estimator(K), q, value, of) for of in (df, sparse_df) for K in (2, 4)]
            print(f"| {loss} | {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    print_paths()
    print_bounds()
    print_routing()
