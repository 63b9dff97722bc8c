"""An autoregressive policy with a differentiable reward in JAX: 16 coupled spins, drawn one after another.

A sequence model proposes spins, and its reward is the free energy E(x) + T log q(x) of a spin glass (as in Wu, Wang and
Zhang, 2019). The energy can be differentiated in the spins, so the control variates of `QuadraticDoubleCV` apply along
the sequence. The exact free energy, over all 65,536 states, shows how far the model is from the best. Run

    python examples/spin_glass.py [--steps 400] [--figure spin_glass.png]
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import tyro

import doublecv as dcv
from doublecv.jax import Expectation

SPINS, SAMPLES, BATCH, TEMPERATURE, HIDDEN = 16, 4, 4, 1.0, 8
COUPLINGS = np.triu(np.random.default_rng(0).normal(size=(SPINS, SPINS)), 1) / SPINS**0.5


def energy(x: jax.Array) -> jax.Array:
    """Return the energy of the spins 2x - 1."""
    spins = 2 * x - 1
    return -((spins @ COUPLINGS) * spins).sum(-1)


def initial() -> dict[str, jax.Array]:
    """Return small random weights."""
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "in": 0.1 * jax.random.normal(keys[0], (SPINS, HIDDEN, SPINS)),
        "out": 0.1 * jax.random.normal(keys[1], (HIDDEN, SPINS)),
        "bias": jnp.zeros(SPINS),
    }


def logits_of(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Return the logits of all spins; those of spin t depend on the spins before t only."""
    causal = jnp.triu(jnp.ones((SPINS, SPINS)), 1)[:, None, :]
    hidden = jnp.tanh(jnp.einsum("...i,iht->...ht", x, parameters["in"] * causal))
    return (hidden * parameters["out"]).sum(-2) + parameters["bias"]


def policy(parameters: dict[str, jax.Array]) -> dcv.Autoregressive:
    """Return the distribution of BATCH independent sequences."""
    return dcv.Autoregressive(lambda x: logits_of(parameters, x), SPINS, batch_shape=(BATCH,))


def train(estimator: dcv.Estimator, steps: int) -> tuple[jax.Array, jax.Array]:
    """Return the free energy at every step, and the variance of the gradient of all weights over 10 estimates."""
    expectation, optimizer = Expectation(estimator), optax.adam(3e-3)

    def loss(parameters: Any, learned: Any, key: jax.Array) -> jax.Array:
        q = policy(parameters)
        return expectation(lambda x: energy(x) + TEMPERATURE * q.detach().log_prob(x), q, learned, key).mean()

    def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        parameters, moments, learning = state
        of_loss = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)), in_axes=(None, None, 0))
        values, found = of_loss(parameters, learning.learned, jax.random.split(key, 10))
        variance = sum(leaf.var(axis=0).sum() for leaf in jax.tree.leaves(found[0]))
        gradients, learned_gradients = jax.tree.map(lambda leaf: leaf[0], found)
        updates, moments = optimizer.update(gradients, moments)
        state = optax.apply_updates(parameters, updates), moments, expectation.update(learned_gradients, learning)
        return state, (values.mean(), variance)

    parameters = initial()
    start = parameters, optimizer.init(parameters), expectation.init(policy(parameters))
    return jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])(jax.random.split(jax.random.key(1), steps))


def main(steps: int = 400, figure: Path = Path("spin_glass.png")) -> None:
    """Train with three estimators, print a table and draw a figure."""
    states = np.indices((2,) * SPINS).reshape(SPINS, -1).T
    exact = -TEMPERATURE * float(jax.nn.logsumexp(-energy(jnp.asarray(states, jnp.float32)) / TEMPERATURE))
    print(f"estimator            free energy  variance of the gradient (the exact free energy is {exact:.3f})")
    canvas, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name in ("rloo", "double-cv", "quadratic-double-cv"):
        value, variance = train(dcv.make(name, samples=SAMPLES), steps)
        last = max(1, steps // 10)
        print(f"{name:20} {value[-last:].mean():11.3f}  {variance.mean():.4f}", flush=True)
        axes[0].plot(np.convolve(value - exact, np.ones(last) / last, "valid"), label=name)
        axes[1].semilogy(np.convolve(variance, np.ones(last) / last, "valid"))
    axes[0].set(xlabel="step", ylabel="free energy above the exact one", yscale="log")
    axes[1].set(xlabel="step", ylabel="variance of the gradient")
    axes[0].legend(frameon=False)
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
