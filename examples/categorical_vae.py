"""A VAE with categorical latent variables in JAX: 20 variables of 8 categories each, one-hot.

You learn that `Categorical`, with logits of shape [batch, variables, categories], takes the place of `Bernoulli`, and
which estimators are for it (DisARM and ARMS are not: no one-hot sample has an antithetic partner). Run

    python examples/categorical_vae.py [--steps 2000] [--figure categorical_vae.png]
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
import tyro
from sklearn.datasets import load_digits

import doublecv as dcv
from doublecv.jax import estimate, expect

PIXELS, VARIABLES, CATEGORIES, BATCH = 64, 20, 8, 100
IMAGES = jnp.asarray(load_digits().data > 7, jnp.float32)


def pixels(model: Any, x: jax.Array) -> dcv.Bernoulli:
    """p(y | x) for one-hot x of shape [..., variables, categories]."""
    return dcv.Bernoulli(logits=jnp.tensordot(x, model["decoder"], 2) + model["decoder_bias"])


def objective(model: Any, y: jax.Array) -> tuple[Callable[[jax.Array], jax.Array], dcv.Categorical]:
    """f and q(x | y), whose expectation E_q f is the negative ELBO of every image y; the prior is uniform."""
    q = dcv.Categorical(logits=jnp.tensordot(y, model["encoder"], 1) + model["encoder_bias"])
    held = q.detach()  # the gradient of log q(x) in the logits has mean 0
    log_prior = -VARIABLES * jnp.log(CATEGORIES)
    return lambda x: held.log_prob(x) - log_prior - pixels(model, x).log_prob(y + jnp.zeros((len(x), 1, 1))), q


def train(estimator: dcv.Estimator, steps: int) -> tuple[Any, list[tuple[int, float, float]]]:
    """The model and, for every 20th of the training: the step, the ELBO, and the variance of the gradient."""
    encoder, decoder = 0.1 * jax.random.normal(jax.random.key(0), (2, PIXELS, VARIABLES, CATEGORIES))
    model = {"encoder": encoder, "encoder_bias": jnp.zeros((VARIABLES, CATEGORIES))}
    model |= {"decoder": jnp.moveaxis(decoder, 0, -1), "decoder_bias": jnp.zeros(PIXELS)}
    parameters = {"model": model, "coefficients": jax.tree.map(jnp.asarray, estimator.coefficients())}
    # Coefficients that are running averages take plain descent with rate 0.01; the others, any optimiser.
    rules = {"model": optax.adam(1e-3), "coefficients": optax.sgd(0.01) if estimator.averaged else optax.adam(1e-2)}
    optimiser = optax.multi_transform(rules, {name: name for name in rules})

    def loss(parameters: Any, y: jax.Array, key: jax.Array) -> jax.Array:
        f, q = objective(parameters["model"], y)
        return expect(f, q, estimator, parameters["coefficients"], key).mean()

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        parameters, optimiser_state = state
        batch_key, sample_key = jax.random.split(key)
        y = jax.random.choice(batch_key, IMAGES, (BATCH,))
        value, gradients = jax.value_and_grad(loss)(parameters, y, sample_key)
        updates, optimiser_state = optimiser.update(gradients, optimiser_state)
        return (optax.apply_updates(parameters, updates), optimiser_state), value

    @jax.jit
    def advance(state: Any, keys: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        state, losses = jax.lax.scan(step, state, keys)
        f, q = objective(state[0]["model"], IMAGES[:50])
        estimates = jax.vmap(lambda key: estimate(f, q, estimator, state[0]["coefficients"], key).gradient)
        return state, losses.mean(), estimates(jax.random.split(keys[0], 10)).var(axis=0, ddof=1).mean()

    state, record, chunk = (parameters, optimiser.init(parameters)), [], max(1, steps // 20)
    for done in range(chunk, steps + 1, chunk):
        state, value, variance = advance(state, jax.random.split(jax.random.key(done), chunk))
        record.append((done, -float(value), float(variance)))
    return state[0]["model"], record


def main(steps: int = 2000, figure: Path = Path("categorical_vae.png")) -> None:
    """Train with each estimator, print a table and draw a figure."""
    canvas, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    print(f"{'estimator':20}  {'ELBO at first':>13}  {'ELBO at last':>13}  variance at last")
    for estimator in (dcv.RLOO(2), dcv.DoubleCV(2), dcv.QuadraticDoubleCV(2)):
        model, record = train(estimator, steps)
        at, elbo, variance = zip(*record, strict=True)
        print(f"{estimator.name:20}  {elbo[0]:13.2f}  {elbo[-1]:13.2f}  {variance[-1]:16.3g}", flush=True)
        axes[0].plot(at, elbo, label=estimator.name)
        axes[1].semilogy(at, variance)
    axes[0].set(xlabel="step", title="ELBO (nats an image)")
    axes[1].set(xlabel="step", title="variance of the gradient")
    axes[0].legend(frameon=False)
    painted = (model["decoder"] - model["decoder"].mean(1, keepdims=True))[:6].reshape(6, CATEGORIES, 8, 8)
    painted = jnp.pad(painted, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=jnp.nan)
    axes[2].imshow(painted.swapaxes(1, 2).reshape(60, 10 * CATEGORIES), cmap="PuOr")
    axes[2].set(xticks=[], yticks=[], xlabel="category", ylabel="variable", title="what each category paints")
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
