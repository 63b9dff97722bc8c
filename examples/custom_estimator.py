"""An estimator of your own: one class, registered, proved unbiased by enumeration, then used to pack a knapsack.

The class is RLOO with a learned linear control variate, for an f without a gradient. It shows what an estimator has to
define, how to check it on every outcome of its samples, and how to train logits with `estimate`. Run

    python examples/custom_estimator.py [--steps 1000] [--figure custom_estimator.png]
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import tyro

import doublecv as dcv
from doublecv.estimators import Applied, DescendingEstimator, Learned, Needs
from doublecv.estimators.averages import leave_one_out, score_gradient
from doublecv.jax import Expectation

ITEMS, RUNS, CAPACITY = 16, 20, 4.0
WORTH, WEIGHT = np.random.default_rng(0).uniform(0.2, 1.0, (2, ITEMS))


@dataclass(frozen=True)
class LinearRLOO(DescendingEstimator):
    r"""Estimate with RLOO of f minus a linear function of x, whose own gradient is known and added.

    .. math:: g = \mathrm{RLOO}(h) + M \, slope, \qquad h(x) = f(x) - slope^T (x - \mu).

    Unbiased for any slope, because E[slope^T (x - mu) s(x)] = M slope. The slope is learned by reducing the variance.
    """

    @property
    def needs(self) -> Needs:
        """Return the needs: two or more samples; the size of the slope comes from q."""
        return Needs(minimum_samples=2, sized=True)

    def start(self, q: Any, context: Any) -> Learned:
        """Return a slope of 0 for every variable, which is RLOO."""
        return Learned({"slope": np.zeros(q.event_shape)}, {}, {})

    def formula(self, q: Any, evaluation: Any, learned: Learned, weight: Any, context: Any) -> Applied:
        """Compute RLOO(h) + M slope."""
        h = evaluation.f - q.dot(slope := learned.numbers["slope"], q.score(evaluation.x))
        return Applied(score_gradient(q, evaluation.x, h - leave_one_out(h)) + q.covariance_product(slope), {})


dcv.estimators.register("linear-rloo", LinearRLOO)


def f(x: Any) -> Any:
    """Return minus the worth of the packed items (x_i = 1) where they fit, else their excess weight."""
    return jnp.where(x @ WEIGHT <= CAPACITY, -(x @ WORTH), x @ WEIGHT - CAPACITY)


def train(estimator: dcv.Estimator, steps: int, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the mean of f and the variance of the gradient (over 50 estimates) at every step."""
    logits, optimizer, expectation = jnp.zeros(ITEMS), optax.adam(0.05), Expectation(estimator, optax.adam(0.05))

    def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        logits, moments, learning = state
        q = dcv.Bernoulli(logits=logits)
        found = jax.vmap(lambda key: expectation.estimate(f, q, learning.learned, key))(jax.random.split(key, 50))
        gradient, learned_gradient = jax.tree.map(lambda a: a[0], (found.gradient, found.learned_gradient))
        updates, moments = optimizer.update(gradient, moments)
        state = optax.apply_updates(logits, updates), moments, expectation.update(learned_gradient, learning)
        return state, (found.value.mean(), found.gradient.var(axis=0).mean())

    start = logits, optimizer.init(logits), expectation.init(dcv.Bernoulli(logits=logits))
    return jax.lax.scan(step, start, jax.random.split(jax.random.key(seed), steps))[1]


def main(steps: int = 1000, figure: Path = Path("custom_estimator.png")) -> None:
    """Check the estimator, pack the knapsack with it and with others, print a table and draw a figure."""
    q, learned = (
        dcv.Bernoulli(logits=np.array([0.4, -1.0, 2.0])),
        Learned({"slope": np.array([1.0, -2.0, 0.5])}, {}, {}),
    )
    nonlinear = lambda x: np.tanh(x @ [1.0, 2.0, -1.0]) ** 2  # noqa: E731
    exact = dcv.exact_moments(nonlinear, q, LinearRLOO(samples=3), learned)
    print(f"bias, exactly: {np.abs(exact.mean - dcv.exact_gradient(nonlinear, q)).max():.1e}")
    best = -float(f(np.indices((2,) * ITEMS).reshape(ITEMS, -1).T).min())
    print(f"estimator    share of the best  variance of the gradient ({best:.3f} is the best worth)")
    canvas, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name in ("rloo", "disarm", "arms", "linear-rloo"):
        value, variance = jax.vmap(partial(train, dcv.estimators.make(name, samples=4), steps))(jnp.arange(RUNS))
        of_best = -value[:, -50:].mean(-1) / best
        print(f"{name:11}  {of_best.mean():.3f} +- {of_best.std() / RUNS**0.5:.3f}         {variance.mean():.4f}")
        axes[0].plot(-value.mean(0) / best, label=name)
        axes[1].semilogy(variance.mean(0))
    axes[0].set(xlabel="step", title="worth / best worth")
    axes[1].set(xlabel="step", title="variance of the gradient")
    axes[0].legend(frameon=False)
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
