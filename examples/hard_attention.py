"""Hard attention: from a thumbnail of a digit, choose the few patches that a classifier needs to recognise it.

f is the probability of a wrong answer plus 2% per patch. It shows what to do where f is a black box (a forest behind
`jax.pure_callback`), and what the gradient of f is worth where there is one (a network with its weights in JAX). Run

    python examples/hard_attention.py [--steps 600] [--figure hard_attention.png]
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import tyro
from sklearn import datasets, ensemble, neural_network

import doublecv as dcv
from doublecv.jax import Expectation

TRAIN, HELD_OUT, BATCH, COST = 1500, np.arange(1500, 1797), 50, 0.02
IMAGES, LABELS = map(jnp.asarray, datasets.load_digits(return_X_y=True))
PATCHES = np.kron(np.eye(16).reshape(16, 4, 4), np.ones((2, 2))).reshape(16, 64) / 16  # of 2 x 2 pixels
ESTIMATORS = dcv.RLOO(4), dcv.DisARM(4), dcv.ARMS(4), dcv.DoubleCV(4), dcv.QuadraticDoubleCV(4)


def classifiers() -> dict[str, Any]:
    """Return two functions from pictures [..., 64] to probabilities [..., 10], fitted to random patches of digits."""
    masks = (np.random.default_rng(0).random((4 * TRAIN, 16)) < np.linspace(0, 1, 4 * TRAIN)[:, None]) @ PATCHES
    data = np.tile(IMAGES[:TRAIN], (4, 1)) * masks, np.tile(LABELS[:TRAIN], 4)
    forest = ensemble.ExtraTreesClassifier(10, random_state=0).fit(*data)
    network = neural_network.MLPClassifier(64, tol=1e-3, n_iter_no_change=3, random_state=0).fit(*data)
    (w1, w2), (b1, b2) = jax.tree.map(jnp.float32, (network.coefs_, network.intercepts_))

    def ask(y: jax.Array) -> jax.Array:
        call = lambda y: np.float32(forest.predict_proba(np.reshape(y, (-1, 64))).reshape(*y.shape[:-1], 10))  # noqa: E731
        return jax.pure_callback(call, jax.ShapeDtypeStruct((*y.shape[:-1], 10), "f4"), y, vmap_method="broadcast_all")

    return {"forest": ask, "network": lambda y: jax.nn.softmax(jax.nn.relu(y @ w1 + b1) @ w2 + b2)}


def problem(classify: Any, policy: Any, chosen: Any) -> tuple[Any, dcv.Bernoulli]:
    """Return f, and q over the patches: a network chooses them after seeing thumbnails of 4 x 4 pixels."""
    images, right = IMAGES[chosen], jax.nn.one_hot(LABELS[chosen], 10)
    q = dcv.Bernoulli(logits=jnp.tanh(images @ PATCHES.T / 4 @ policy[0]) @ policy[1] + policy[2])
    return lambda x: 1 - jnp.sum(right * classify(images * (x @ PATCHES)), -1) + COST * x.sum(-1), q


def train(classify: Any, estimator: dcv.Estimator, steps: int) -> tuple[Any, tuple[jax.Array, jax.Array]]:
    """Return the policy and, 20 times along the run, the mean of f and the variance of the gradient for 100 digits."""
    w1, w2 = 0.3 * jax.random.normal(jax.random.key(0), (2, 16, 64))
    policy, optimizer, expectation = (w1, w2.T, jnp.zeros(16)), optax.adam(5e-3), Expectation(estimator)

    def loss(policy: Any, learned: Any, key: jax.Array) -> jax.Array:
        f, q = problem(classify, policy, jax.random.choice(key, TRAIN, (BATCH,)))
        return expectation(f, q, learned, jax.random.fold_in(key, 1)).mean()

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        policy, moments, learning = state
        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(policy, learning.learned, key)
        updates, moments = optimizer.update(gradients[0], moments)
        return (optax.apply_updates(policy, updates), moments, expectation.update(gradients[1], learning)), value

    def part(state: Any, keys: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        state, values = jax.lax.scan(step, state, keys)
        f, q = problem(classify, state[0], np.arange(100))
        estimates = jax.vmap(lambda key: expectation.estimate(f, q, state[2].learned, key).gradient)
        return state, (values.mean(), estimates(jax.random.split(keys[0], 10)).var(axis=0, ddof=1).mean())

    keys = jax.random.split(jax.random.key(1), (20, max(1, steps // 20)))
    learning = expectation.init(problem(classify, policy, np.arange(BATCH))[1])
    (policy, *_), record = jax.lax.scan(part, (policy, optimizer.init(policy), learning), keys)
    return policy, record


def main(steps: int = 600, figure: Path = Path("hard_attention.png")) -> None:
    """Train with each classifier and estimator, print a table and draw a figure."""
    canvas, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", subplot_kw={"xlabel": "step"})
    for axis, (name, classify) in zip(axes, classifiers().items(), strict=False):
        score = lambda x, c=classify: (c(IMAGES[HELD_OUT] * (x @ PATCHES)).argmax(-1) == LABELS[HELD_OUT]).mean()  # noqa: E731
        print(f"{name:20}  f at first  at last  variance  patches  accuracy ({score(np.ones(16)):.3f} with all 16)")
        for estimator in ESTIMATORS if name == "network" else ESTIMATORS[:3]:
            policy, (values, variances) = train(classify, estimator, steps)
            x = problem(classify, policy, HELD_OUT)[1].mean.round()
            row = values[0], values[-1], variances.mean(), x.sum(-1).mean(), score(x)
            label = dcv.label(estimator)
            print(label.ljust(20), " {:10.3f}  {:7.3f}  {:8.2g}  {:7.1f}  {:8.3f}".format(*row), flush=True)
            axis.semilogy(np.arange(1, 21) * max(1, steps // 20), variances, label=label)
        axis.legend(title=f"{name}: variance of the gradient", frameon=False, fontsize=8)
    pictures = jnp.where(x[:20] @ PATCHES, IMAGES[HELD_OUT[:20]], np.nan).reshape(20, 8, 8)
    pictures = np.pad(pictures, ((0, 0), (1, 1), (1, 1)), constant_values=16).reshape(4, 5, 10, 10)
    axes[2].imshow(pictures.swapaxes(1, 2).reshape(40, 50), cmap="gray_r")
    axes[2].set(xticks=[], yticks=[], xlabel="what the network sees", facecolor="lightskyblue")
    canvas.savefig(figure, dpi=90)


if __name__ == "__main__":
    tyro.cli(main)
