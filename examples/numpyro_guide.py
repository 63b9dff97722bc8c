"""A NumPyro model and guide with discrete latent variables: doublecv gives the gradient that SVI lacks.

The model explains each digit of 8 x 8 pixels by ten binary causes. Handlers of NumPyro turn model and guide into
densities, and an `Expectation` takes the place of the discrete sample: no enumeration and no relaxation. Run

    python examples/numpyro_guide.py [--steps 300] [--figure numpyro_guide.png]
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist
import optax
import tyro
from numpyro import handlers
from sklearn.datasets import load_digits

import doublecv as dcv
from doublecv.jax import Expectation

PIXELS, CAUSES, BATCH, SAMPLES = 64, 10, 50, 2
IMAGES = jnp.asarray(load_digits().data > 7, jnp.float32)


def model(parameters: Any, y: jax.Array) -> None:
    """Draw binary causes, and the pixels given them."""
    with numpyro.plate("images", y.shape[0]):
        x = numpyro.sample("causes", dist.Bernoulli(logits=parameters["prior"]).to_event(1))
        pixels = dist.Bernoulli(logits=x @ parameters["weights"] + parameters["bias"])
        numpyro.sample("pixels", pixels.to_event(1), obs=y)


def guide(parameters: Any, y: jax.Array) -> None:
    """Draw the causes of the pixels."""
    causes = dist.Bernoulli(logits=y @ parameters["guide weights"] + parameters["guide bias"])
    numpyro.sample("causes", causes.to_event(1))


def log_density(program: Any, parameters: Any, y: jax.Array, x: jax.Array) -> jax.Array:
    """Return the log density of a NumPyro program with the causes x, of shape [K, images, causes], for every image."""
    sites = handlers.trace(handlers.substitute(program, {"causes": x})).get_trace(parameters, y)
    return sum(site["fn"].log_prob(site["value"]) for site in sites.values() if site["type"] == "sample")


def posterior(parameters: Any, y: jax.Array) -> dcv.Bernoulli:
    """Return the distribution of the guide's site."""
    sites = handlers.trace(handlers.seed(guide, jax.random.key(0))).get_trace(parameters, y)
    return dcv.Bernoulli(logits=sites["causes"]["fn"].base_dist.logits)


def initial() -> dict[str, jax.Array]:
    """Return small random weights."""
    shapes = {"weights": (CAUSES, PIXELS), "prior": (CAUSES,), "bias": (PIXELS,)}
    shapes |= {"guide weights": (PIXELS, CAUSES), "guide bias": (CAUSES,)}
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {name: 0.1 * jax.random.normal(key, shapes[name]) for key, name in zip(keys, shapes, strict=True)}


def train(estimator: dcv.Estimator, steps: int) -> tuple[jax.Array, jax.Array]:
    """Return the ELBO, and the variance of the gradient in all parameters over 5 estimates, at every step."""
    expectation, optimizer = Expectation(estimator), optax.adam(1e-2)

    def loss(parameters: Any, learned: Any, key: jax.Array, y: jax.Array) -> jax.Array:
        q, p = posterior(parameters, y), partial(log_density, model, parameters, y)
        return expectation(lambda x: q.detach().log_prob(x) - p(x), q, learned, key).mean()

    def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        parameters, moments, learning = state
        y = IMAGES[jax.random.randint(key, (BATCH,), 0, len(IMAGES))]
        of_loss = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)), in_axes=(None, None, 0, None))
        values, found = of_loss(parameters, learning.learned, jax.random.split(key, 5), y)
        gradients, learned_gradients = jax.tree.map(lambda leaf: leaf[0], found)
        variance = sum(found[0][name].var(axis=0).sum() for name in ("guide weights", "guide bias"))
        updates, moments = optimizer.update(gradients, moments)
        learning = expectation.update(learned_gradients, learning)
        return (optax.apply_updates(parameters, updates), moments, learning), (-values.mean(), variance)

    parameters = initial()
    start = parameters, optimizer.init(parameters), expectation.init(posterior(parameters, IMAGES[:BATCH]))
    return jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])(jax.random.split(jax.random.key(1), steps))


def main(steps: int = 300, figure: Path = Path("numpyro_guide.png")) -> None:
    """Train with two estimators, print a table and draw a figure."""
    canvas, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    print("estimator            first ELBO  last ELBO  variance of the guide's gradient")
    for name in ("rloo", "quadratic-double-cv"):
        elbo, variance = train(dcv.make(name, samples=SAMPLES), steps)
        first, last, variances = elbo[:5].mean(), elbo[-steps // 10 :].mean(), variance[-steps // 10 :].mean()
        print(f"{name:20} {first:11.2f} {last:10.2f}  {variances:.4f}", flush=True)
        axes[0].plot(elbo, label=name)
        axes[1].semilogy(variance)
    for axis, label in zip(axes, ("ELBO (nats per image)", "variance of the guide's gradient"), strict=True):
        axis.set(xlabel="step", ylabel=label)
    axes[0].legend(frameon=False)
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
