"""A VAE with categorical latent variables in JAX: 20 variables of 8 categories each, one-hot.

`Categorical`, with logits of shape [batch, variables, categories], takes the place of `Bernoulli`. Not every estimator
supports it: DisARM and ARMS do not, because a one-hot sample has no antithetic partner. Run

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
from doublecv.jax import Expectation

PIXELS, VARIABLES, CATEGORIES, BATCH = 64, 20, 8, 100
IMAGES = jnp.asarray(load_digits().data > 7, jnp.float32)


def pixels(model: Any, x: jax.Array) -> dcv.Bernoulli:
    """Return p(y | x) for one-hot x of shape [..., variables, categories]."""
    return dcv.Bernoulli(logits=jnp.tensordot(x, model["decoder"], 2) + model["decoder_bias"])


def objective(model: Any, y: jax.Array) -> tuple[Callable[[jax.Array], jax.Array], dcv.Categorical]:
    """Return f and q(x | y), for which E_q f is the negative ELBO of every image y; the prior is uniform."""
    q = dcv.Categorical(logits=jnp.tensordot(y, model["encoder"], 1) + model["encoder_bias"])
    held = q.detach()  # the gradient of log q(x) in the logits has mean 0
    log_prior = -VARIABLES * jnp.log(CATEGORIES)
    return lambda x: held.log_prob(x) - log_prior - pixels(model, x).log_prob(y + jnp.zeros((len(x), 1, 1))), q


def train(estimator: dcv.Estimator, steps: int) -> tuple[Any, list[tuple[int, float, float]]]:
    """Return the model and, 20 times along the run, the step, the ELBO and the variance of the gradient."""
    encoder, decoder = 0.1 * jax.random.normal(jax.random.key(0), (2, PIXELS, VARIABLES, CATEGORIES))
    model = {"encoder": encoder, "encoder_bias": jnp.zeros((VARIABLES, CATEGORIES))}
    model |= {"decoder": jnp.moveaxis(decoder, 0, -1), "decoder_bias": jnp.zeros(PIXELS)}
    expectation, optimizer = Expectation(estimator), optax.adam(1e-3)
    learning = expectation.init(objective(model, IMAGES[:BATCH])[1])

    def loss(model: Any, learned: Any, y: jax.Array, key: jax.Array) -> jax.Array:
        f, q = objective(model, y)
        return expectation(f, q, learned, key).mean()

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        model, moments, learning = state
        batch_key, sample_key = jax.random.split(key)
        y = jax.random.choice(batch_key, IMAGES, (BATCH,))
        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(model, learning.learned, y, sample_key)
        updates, moments = optimizer.update(gradients[0], moments)
        return (optax.apply_updates(model, updates), moments, expectation.update(gradients[1], learning)), value

    @jax.jit
    def advance(state: Any, keys: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        state, losses = jax.lax.scan(step, state, keys)
        f, q = objective(state[0], IMAGES[:50])
        estimates = jax.vmap(lambda key: expectation.estimate(f, q, state[2].learned, key).gradient)
        return state, losses.mean(), estimates(jax.random.split(keys[0], 10)).var(axis=0, ddof=1).mean()

    state, record, chunk = (model, optimizer.init(model), learning), [], max(1, steps // 20)
    for done in range(chunk, steps + 1, chunk):
        state, value, variance = advance(state, jax.random.split(jax.random.key(done), chunk))
        record.append((done, -float(value), float(variance)))
    return state[0], record


def main(steps: int = 2000, figure: Path = Path("categorical_vae.png")) -> None:
    """Train with each estimator, print a table and draw a figure."""
    canvas, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    print(f"{'estimator':20}  {'ELBO at first':>13}  {'ELBO at last':>13}  variance at last")
    for estimator in (dcv.RLOO(2), dcv.DoubleCV(2), dcv.QuadraticDoubleCV(2)):
        model, record = train(estimator, steps)
        at, elbo, variance = zip(*record, strict=True)
        print(f"{dcv.label(estimator):20}  {elbo[0]:13.2f}  {elbo[-1]:13.2f}  {variance[-1]:16.3g}", flush=True)
        axes[0].plot(at, elbo, label=dcv.label(estimator))
        axes[1].semilogy(at, variance)
    axes[0].set(xlabel="step", title="ELBO (nats per image)")
    axes[1].set(xlabel="step", title="variance of the gradient")
    axes[0].legend(frameon=False)
    painted = (model["decoder"] - model["decoder"].mean(1, keepdims=True))[:6].reshape(6, CATEGORIES, 8, 8)
    painted = jnp.pad(painted, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=jnp.nan)
    axes[2].imshow(painted.swapaxes(1, 2).reshape(60, 10 * CATEGORIES), cmap="PuOr")
    axes[2].set(xticks=[], yticks=[], xlabel="category", ylabel="variable", title="what each category paints")
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
