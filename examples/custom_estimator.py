"""An estimator of your own: one class, registered, proved unbiased by enumeration, then used to pack a knapsack.

The class is RLOO with a learned linear control variate, for an f without a gradient. You learn what an estimator has
to state, how to check it on every outcome of its samples, and how to train logits with `estimate`. Run

    python examples/custom_estimator.py [--steps 1000] [--figure custom_estimator.png]
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import tyro

import doublecv as dcv
from doublecv.estimators.leave_one_out import leave_one_out
from doublecv.estimators.reinforce import score_gradient
from doublecv.jax import estimate

ITEMS, RUNS, CAPACITY = 16, 20, 4.0
WORTH, WEIGHT = np.random.default_rng(0).uniform(0.2, 1.0, (2, ITEMS))


@dataclass(frozen=True)
class LinearRLOO(dcv.Estimator):
    """RLOO of f less a linear function of x, whose own gradient is known and added, with the equation

        g = 1/K sum_k (h(x_k) - 1/(K-1) sum_{j != k} h(x_j)) s(x_k) + M slope,    h(x) = f(x) - slope^T (x - mu)

    Unbiased for any slope, because E[slope^T (x - mu) s(x)] = M slope. The slope is learned by reducing the variance.
    """

    variables: int
    name: ClassVar[str] = "linear-rloo"
    minimum_samples: ClassVar[int] = 2

    def coefficients(self) -> dict[str, Any]:
        """A slope for every variable; 0 is RLOO."""
        return {"slope": np.zeros(self.variables)}

    def formula(self, q: Any, evaluation: dcv.Evaluation, coefficients: Any) -> Any:
        """RLOO(h) + M slope."""
        h = evaluation.f - q.dot(slope := coefficients["slope"], q.score(evaluation.x))
        return score_gradient(q, evaluation.x, h - leave_one_out(h)) + q.covariance(slope)


dcv.estimators.register("linear-rloo", partial(LinearRLOO, variables=ITEMS))


def f(x: Any) -> Any:
    """Minus the worth of the items in the knapsack where they fit (x_i = 1 is in), else what they weigh too much."""
    return jnp.where(x @ WEIGHT <= CAPACITY, -(x @ WORTH), x @ WEIGHT - CAPACITY)


def train(estimator: dcv.Estimator, steps: int, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean of f and the variance of the gradient (over 50 estimates) at every step."""
    start = {"logits": jnp.zeros(ITEMS), "coefficients": jax.tree.map(jnp.asarray, estimator.coefficients())}
    optimiser = optax.adam(0.05)

    def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        logits, coefficients = state[0]["logits"], state[0]["coefficients"]
        estimates = jax.vmap(lambda key: estimate(f, dcv.Bernoulli(logits=logits), estimator, coefficients, key))
        value, gradient, coefficient_gradient, _ = estimates(jax.random.split(key, 50))
        first = jax.tree.map(lambda a: a[0], {"logits": gradient, "coefficients": coefficient_gradient})
        updates, optimiser_state = optimiser.update(first, state[1])
        return (optax.apply_updates(state[0], updates), optimiser_state), (value.mean(), gradient.var(axis=0).mean())

    return jax.lax.scan(step, (start, optimiser.init(start)), jax.random.split(jax.random.key(seed), steps))[1]


def main(steps: int = 1000, figure: Path = Path("custom_estimator.png")) -> None:
    """Check the estimator, pack the knapsack with it and with others, print a table and draw a figure."""
    q, slope = dcv.Bernoulli(logits=np.array([0.4, -1.0, 2.0])), {"slope": np.array([1.0, -2.0, 0.5])}
    nonlinear = lambda x: np.tanh(x @ [1.0, 2.0, -1.0]) ** 2  # noqa: E731
    exact = dcv.diagnostics.exact_moments(LinearRLOO(3, variables=3), nonlinear, q, slope)
    print(f"bias, exactly: {np.abs(exact.mean - dcv.diagnostics.exact_gradient(nonlinear, q)).max():.1e}")
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
