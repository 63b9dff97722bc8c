"""A VAE with binary latent variables in JAX, trained with RLOO, DisARM, DoubleCV and QuadraticDoubleCV.

You learn how `expect` stands in a loss, where an estimator's coefficients live (beside the model's parameters, with an
optimiser of their own) and how to watch the variance of the gradient. The data are scikit-learn's digits. Run

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
from doublecv.jax import estimate, expect

PIXELS, LATENTS, BATCH = 64, 200, 100
IMAGES = jnp.asarray(load_digits().data > 7, jnp.float32)


def objective(model: Any, y: jax.Array) -> tuple[Callable[[jax.Array], jax.Array], dcv.Bernoulli]:
    """f and q(x | y), whose expectation E_q f is the negative ELBO of every image y."""
    q = dcv.Bernoulli(logits=y @ model["encoder"] + model["encoder_bias"])
    held = q.detach()  # the gradient of log q(x) in the logits has mean 0

    def f(x: jax.Array) -> jax.Array:
        """log q(x | y) - log p(x) - log p(y | x) at samples x of shape [K, batch, latents]; the prior is uniform."""
        pixels = dcv.Bernoulli(logits=x @ model["decoder"] + model["decoder_bias"])
        return held.log_prob(x) + LATENTS * jnp.log(2) - pixels.log_prob(jnp.broadcast_to(y, pixels.logits.shape))

    return f, q


def train(estimator: dcv.Estimator, steps: int) -> list[tuple[int, float, float]]:
    """For every 20th of the training: the step, the ELBO, and the variance of the gradient on the first 50 images."""
    encoder, decoder = 0.1 * jax.random.normal(jax.random.key(0), (2, PIXELS, LATENTS))
    model = {"encoder": encoder, "decoder": decoder.T}
    model |= {"encoder_bias": jnp.zeros(LATENTS), "decoder_bias": jnp.zeros(PIXELS)}
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
    return record


def main(steps: int = 2000, figure: Path = Path("jax_vae.png")) -> None:
    """Train with each estimator, print a table and draw a figure."""
    canvas, (elbos, variances) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    print(f"{'estimator':20}  {'ELBO at first':>13}  {'ELBO at last':>13}  variance at last")
    for estimator in (dcv.RLOO(2), dcv.DisARM(2), dcv.DoubleCV(2), dcv.QuadraticDoubleCV(2)):
        at, elbo, variance = zip(*train(estimator, steps), strict=True)
        print(f"{estimator.name:20}  {elbo[0]:13.2f}  {elbo[-1]:13.2f}  {variance[-1]:16.3g}", flush=True)
        elbos.plot(at, elbo, label=estimator.name)
        variances.semilogy(at, variance)
    elbos.set(xlabel="step", ylabel="ELBO (nats an image)")
    variances.set(xlabel="step", ylabel="variance of the gradient")
    canvas.legend(loc="outside upper center", ncols=4, frameon=False)
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
