"""Choosing features with binary gates: how few of 30 measurements of a tumour does a diagnosis need?

A logistic regression sees its inputs through gates x ~ Bernoulli; an open gate costs something (as in Louizos, Welling
and Kingma, 2018). It trains gates with unbiased gradients (DoubleCV, RLOO) and with two biased methods that are in use:
straight-through, and concrete (Gumbel-softmax) gates. All take the same steps on 10 splits of the data. Run

    python examples/feature_gates.py [--steps 2000] [--figure feature_gates.png]
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import tyro
from sklearn import datasets, linear_model, model_selection, preprocessing

import doublecv as dcv
from doublecv.jax import Expectation

SAMPLES, SPLITS, COSTS, FEATURES = 4, 10, np.array([0.001, 0.003, 0.01, 0.03]), 30
UNBIASED = {name: Expectation(dcv.make(name, samples=SAMPLES)) for name in ("double-cv", "rloo")}


def split(seed: int) -> tuple[Any, ...]:
    """Return inputs and held-out inputs, labels and held-out labels (1 is benign, -1 malignant)."""
    inputs, labels = datasets.load_breast_cancer(return_X_y=True)
    inputs, held_out, *labels = model_selection.train_test_split(inputs, 2 * labels - 1, random_state=seed)
    scaler = preprocessing.StandardScaler().fit(inputs)
    return scaler.transform(inputs), scaler.transform(held_out), *labels


def mean(method: str, f: Any, gates: jax.Array, learned: Any, key: jax.Array) -> jax.Array:
    """Return the mean of f over K samples of the gates, with the gradient of the method."""
    if method in UNBIASED:
        return UNBIASED[method](f, dcv.Bernoulli(logits=gates), learned, key)
    noisy = gates + jax.random.logistic(key, (SAMPLES, FEATURES))
    if method == "concrete":  # gates between 0 and 1, of temperature 2/3 (Maddison, Mnih and Teh, 2017)
        return f(jax.nn.sigmoid(noisy * 1.5)).mean()
    probability = jax.nn.sigmoid(gates)  # the backward pass takes samples for it (Bengio et al., 2013)
    return f(probability + jax.lax.stop_gradient((noisy > 0) - probability)).mean()


def fit(method: str, steps: int, cost: jax.Array, inputs: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return which gates are more likely open than not after training, and E f."""
    parameters = {"model": jnp.zeros(FEATURES + 1), "gates": jnp.zeros(FEATURES)}
    rates = {"model": optax.adam(0.1), "gates": optax.adam(0.03)}
    optimizer = optax.partition(rates, {name: name for name in rates})
    expectation = UNBIASED.get(method, UNBIASED["rloo"])  # RLOO learns nothing, and neither do the biased methods
    learning = expectation.init(dcv.Bernoulli(logits=parameters["gates"]))

    def f(model: jax.Array, x: jax.Array) -> jax.Array:
        log_odds = (x * model[1:]) @ inputs.T + model[0]
        return jax.nn.softplus(-labels * log_odds).mean(-1) + cost * x.sum(-1)

    def step(state: Any, key: jax.Array) -> tuple[Any, None]:
        parameters, moments, learning = state
        loss = lambda p, learned: mean(method, partial(f, p["model"]), p["gates"], learned, key)  # noqa: E731
        gradients, learned_gradients = jax.grad(loss, argnums=(0, 1))(parameters, learning.learned)
        updates, moments = optimizer.update(gradients, moments)
        learning = expectation.update(learned_gradients, learning)
        return (optax.apply_updates(parameters, updates), moments, learning), None

    keys = jax.random.split(jax.random.key(0), steps)
    (parameters, *_), _ = jax.lax.scan(step, (parameters, optimizer.init(parameters), learning), keys)
    x = jax.random.bernoulli(keys[0], jax.nn.sigmoid(parameters["gates"]), (1000, FEATURES))
    return parameters["gates"] > 0, f(parameters["model"], x).mean()


def accuracy(data: Any, is_open: Any) -> float:
    """Return the held-out accuracy of a logistic regression that is fitted to the open features only."""
    inputs, held_out, labels, held_out_labels = data
    return linear_model.LogisticRegression().fit(inputs * is_open, labels).score(held_out * is_open, held_out_labels)


def main(steps: int = 2000, figure: Path = Path("feature_gates.png")) -> None:
    """Fit with every method, cost and split; print a table and draw a figure."""
    splits = [split(seed) for seed in range(SPLITS)]
    inputs, _, labels, _ = (jnp.asarray(np.stack(part), jnp.float32) for part in zip(*splits, strict=True))
    everything = np.mean([accuracy(data, 1) for data in splits])
    canvas, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    axes.axhline(everything, color="gray", linestyle="dotted", label="all 30 features")
    print(f"method             cost  features  held-out accuracy     E f    (all 30 features: {everything:.3f})")
    for method in (*UNBIASED, "straight-through", "concrete"):
        of_splits = jax.vmap(partial(fit, method, steps), in_axes=(None, 0, 0))
        is_open, value = map(np.asarray, jax.jit(jax.vmap(of_splits, in_axes=(0, None, None)))(COSTS, inputs, labels))
        scores = np.array([[accuracy(*pair) for pair in zip(splits, row, strict=True)] for row in is_open])
        rows = COSTS, is_open.sum(-1).mean(-1), scores.mean(-1), scores.std(-1, ddof=1) / SPLITS**0.5, value.mean(-1)
        axes.errorbar(*rows[1:4], label=method, marker="o", capsize=3)
        for row in zip(*rows, strict=True):
            print("{:16}  {:5.3f}  {:8.1f}     {:.3f} +- {:.3f}  {:6.4f}".format(method, *row), flush=True)
    axes.set(xlabel="features", ylabel="held-out accuracy")
    axes.legend(frameon=False)
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
