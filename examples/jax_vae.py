"""A VAE with binary latent variables in JAX, trained with RLOO, DisARM, DoubleCV and QuadraticDoubleCV.

It shows how `Expectation` is used in a loss, how the estimator's state is carried along and updated, and how to watch
the variance of the gradient. The data are scikit-learn's digits. Run

    python examples/jax_vae.py [--steps 2000] [--figure jax_vae.png]
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

PIXELS, LATENTS, BATCH = 64, 200, 100
IMAGES = jnp.asarray(load_digits().data > 7, jnp.float32)


def objective(model: Any, y: jax.Array) -> tuple[Callable[[jax.Array], jax.Array], dcv.Bernoulli]:
    """Return f and q(x | y), for which E_q f is the negative ELBO of every image y."""
    q = dcv.Bernoulli(logits=y @ model["encoder"] + model["encoder_bias"])
    held = q.detach()  # the gradient of log q(x) in the logits has mean 0

    def f(x: jax.Array) -> jax.Array:
        """Return log q(x | y) - log p(x) - log p(y | x) at samples x [K, batch, latents]; the prior is uniform."""
        pixels = dcv.Bernoulli(logits=x @ model["decoder"] + model["decoder_bias"])
        return held.log_prob(x) + LATENTS * jnp.log(2) - pixels.log_prob(jnp.broadcast_to(y, pixels.logits.shape))

    return f, q


def train(estimator: dcv.Estimator, steps: int) -> list[tuple[int, float, float]]:
    """Return, 20 times along the run, the step, the ELBO and the variance of the gradient on the first 50 images."""
    encoder, decoder = 0.1 * jax.random.normal(jax.random.key(0), (2, PIXELS, LATENTS))
    model = {"encoder": encoder, "decoder": decoder.T}
    model |= {"encoder_bias": jnp.zeros(LATENTS), "decoder_bias": jnp.zeros(PIXELS)}
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
    return record


def main(steps: int = 2000, figure: Path = Path("jax_vae.png")) -> None:
    """Train with each estimator, print a table and draw a figure."""
    canvas, (elbos, variances) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    print(f"{'estimator':20}  {'ELBO at first':>13}  {'ELBO at last':>13}  variance at last")
    for estimator in (dcv.RLOO(2), dcv.DisARM(2), dcv.DoubleCV(2), dcv.QuadraticDoubleCV(2)):
        at, elbo, variance = zip(*train(estimator, steps), strict=True)
        name = dcv.label(estimator)
        print(f"{name:20}  {elbo[0]:13.2f}  {elbo[-1]:13.2f}  {variance[-1]:16.3g}", flush=True)
        elbos.plot(at, elbo, label=name)
        variances.semilogy(at, variance)
    elbos.set(xlabel="step", ylabel="ELBO (nats per image)")
    variances.set(xlabel="step", ylabel="variance of the gradient")
    canvas.legend(loc="outside upper center", ncols=4, frameon=False)
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
