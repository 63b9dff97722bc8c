"""A discrete and a Gaussian latent variable in one JAX model: a class, and the style within it.

Each digit of 8 x 8 pixels has a categorical variable and two Gaussian ones whose mean depends on it. The Gaussian is
reparameterised inside f, with noise from outside, and gets its ordinary gradient; the logits of the categorical get
that of the estimator. Both come from one backward pass. Run

    python examples/discrete_and_gaussian.py [--steps 400] [--figure discrete_and_gaussian.png]
"""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
import tyro
from sklearn.datasets import load_digits

import doublecv as dcv
from doublecv.jax import Expectation

PIXELS, CLASSES, STYLE, HIDDEN, BATCH, SAMPLES = 64, 10, 2, 64, 50, 2
IMAGES = jnp.asarray(load_digits().data > 7, jnp.float32)


def initial() -> dict[str, Any]:
    """Return random weights of four dense layers, and zero biases."""
    sizes = {"class": (PIXELS, CLASSES), "style": (PIXELS + CLASSES, 2 * STYLE)}
    sizes |= {"hidden": (CLASSES + STYLE, HIDDEN), "pixels": (HIDDEN, PIXELS)}
    keys = jax.random.split(jax.random.key(0), len(sizes))
    return {
        name: (jax.random.normal(key, size) / size[0] ** 0.5, jnp.zeros(size[1]))
        for key, (name, size) in zip(keys, sizes.items(), strict=True)
    }


def dense(parameters: dict[str, Any], name: str, *inputs: jax.Array) -> jax.Array:
    """Return a dense layer of the concatenated inputs."""
    weights, bias = parameters[name]
    return jnp.concatenate(inputs, axis=-1) @ weights + bias


def negative_elbo(parameters: Any, y: jax.Array, q: dcv.Categorical, noise: jax.Array, x: jax.Array) -> jax.Array:
    """Return one number for each of the K samples x of the class, of shape [K, images, 1, classes]."""
    category = x[..., 0, :]
    images = jnp.broadcast_to(y, (*category.shape[:2], PIXELS))
    mean, log_scale = jnp.split(dense(parameters, "style", images, category), 2, axis=-1)
    style = mean + jnp.exp(log_scale) * noise
    divergence = (0.5 * (mean**2 + jnp.exp(2 * log_scale) - 1) - log_scale).sum(-1)
    pixels = dcv.Bernoulli(logits=dense(parameters, "pixels", jnp.tanh(dense(parameters, "hidden", category, style))))
    return divergence + q.log_prob(x) + math.log(CLASSES) - pixels.log_prob(images)


def train(estimator: dcv.Estimator, steps: int) -> tuple[jax.Array, jax.Array]:
    """Return the ELBO, and the variance of the gradient in the logits' weights over 5 estimates, at every step."""
    expectation, optimizer = Expectation(estimator), optax.adam(5e-3)

    def loss(parameters: Any, learned: Any, key: jax.Array, y: jax.Array) -> jax.Array:
        q = dcv.Categorical(logits=dense(parameters, "class", y)[:, None, :])
        of_noise, of_class = jax.random.split(key)
        noise = jax.random.normal(of_noise, (SAMPLES, BATCH, STYLE))
        return expectation(lambda x: negative_elbo(parameters, y, q.detach(), noise, x), q, learned, of_class).mean()

    def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        parameters, moments, learning = state
        y = IMAGES[jax.random.randint(key, (BATCH,), 0, len(IMAGES))]
        of_loss = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)), in_axes=(None, None, 0, None))
        values, found = of_loss(parameters, learning.learned, jax.random.split(key, 5), y)
        gradients, learned_gradients = jax.tree.map(lambda leaf: leaf[0], found)
        updates, moments = optimizer.update(gradients, moments)
        state = optax.apply_updates(parameters, updates), moments, expectation.update(learned_gradients, learning)
        return state, (-values.mean(), found[0]["class"][0].var(axis=0).sum())

    parameters = initial()
    q = dcv.Categorical(logits=jnp.zeros((BATCH, 1, CLASSES)))
    start = parameters, optimizer.init(parameters), expectation.init(q)
    return jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])(jax.random.split(jax.random.key(1), steps))


def main(steps: int = 400, figure: Path = Path("discrete_and_gaussian.png")) -> None:
    """Train with three estimators, print a table and draw a figure."""
    canvas, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    print("estimator            first ELBO  last ELBO  variance of the gradient of the logits' weights")
    for name in ("rloo", "carms", "quadratic-double-cv"):
        elbo, variance = train(dcv.make(name, samples=SAMPLES), steps)
        part = max(1, steps // 10)
        print(
            f"{name:20} {elbo[:5].mean():11.2f} {elbo[-part:].mean():10.2f}  {variance[-part:].mean():.4f}", flush=True
        )
        axes[0].plot(elbo, label=name)
        axes[1].semilogy(variance)
    axes[0].set(xlabel="step", ylabel="ELBO (nats per image)")
    axes[1].set(xlabel="step", ylabel="variance of the gradient")
    axes[0].legend(frameon=False)
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
