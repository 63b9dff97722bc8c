"""Measure estimators at trained models, for the page "Layers and sequences": two layers of latents, and bounds.

The models are trained on Fashion-MNIST for some steps and held constant. Run

    python docs/measure_models.py [--steps 1000] [--draws 60]
"""

import argparse
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

import doublecv as dcv
from doublecv.diagnostics.meter import summarize
from doublecv.jax.diagnostics import measure as measure_gradients
from doublecv.lab.data import Dataset, load
from doublecv.lab.train.loop import run
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.vae.likelihoods import observe
from doublecv.lab.vae.objective import log_weight
from doublecv.lab.variance.measure import measure_gradient

IMAGES, SAMPLES = 50, 4


def hand_written(model, y, shift, key, samples):
    """Return a loss whose gradient in `shift` is that of leave-one-out REINFORCE on joint samples, without doublecv."""
    lower_key, upper_key = jax.random.split(key)
    lower_logits = model.encoder(y) + shift[:, : shift.shape[1] // 2]
    x1 = (jax.random.uniform(lower_key, (samples, *lower_logits.shape)) < jax.nn.sigmoid(lower_logits)).astype(float)
    upper_logits = model.upper.encoder(x1) + shift[:, shift.shape[1] // 2 :]
    x2 = (jax.random.uniform(upper_key, upper_logits.shape) < jax.nn.sigmoid(upper_logits)).astype(float)

    def log_bernoulli(x, logits):
        return (x * logits - jax.nn.softplus(logits)).sum(-1)

    log_q = log_bernoulli(x1, lower_logits) + log_bernoulli(x2, upper_logits)
    log_p = model.log_likelihood(y, (x1, x2)) + model.log_prior
    f = jax.lax.stop_gradient(log_p - log_q)
    advantage = (f - f.mean(0)) * samples / (samples - 1)
    return -(advantage * log_q).mean(0).mean()


def nested(estimator, model, learned, y, shift, key, samples):
    """Return the loss of an expectation over the second layer inside of one over the first, `samples` of each."""
    outer = inner = dcv.jax.Expectation(estimator(samples))
    outer_key, inner_key = jax.random.split(key)
    half = shift.shape[1] // 2
    q = model.posterior(model.encoder(y) + shift[:, :half], shift[:, half:])

    def of_lower(x1):
        upper = dcv.Bernoulli(logits=model.upper.encoder(x1) + shift[:, half:])

        def of_both(x2):
            lower = jnp.broadcast_to(x1, (samples, *x1.shape))
            return log_weight(model, y, q.detach(), (lower, x2))

        return inner(of_both, upper, learned[1], inner_key)

    return -outer(of_lower, q.first, learned[0], outer_key).mean()


def nested_meter(estimator, model, y, samples, draws, steps):
    """Return the meter of a nested estimate, whose coefficients were learned for some steps at the constant model."""
    expectation = dcv.jax.Expectation(estimator(samples))
    state = expectation.init(dcv.Bernoulli(logits=jnp.zeros((1, 1))))
    shift = jnp.zeros((y.shape[0], model.coordinates))
    of_loss = partial(nested, estimator, model)

    def learn(states, key):
        learned = [one.learned for one in states]
        gradients = jax.grad(of_loss)(learned, y, shift, key, samples)
        return [expectation.update(*pair) for pair in zip(gradients, states, strict=True)], None

    @jax.jit
    def measured(key):
        fit_key, key = jax.random.split(key)
        states, _ = jax.lax.scan(learn, [state, state], jax.random.split(fit_key, steps))
        learned = [one.learned for one in states]
        gradient = jax.grad(of_loss, argnums=2)
        return measure_gradients(lambda key: y.shape[0] * gradient(learned, y, shift, key, samples), key, draws)

    return measured(jax.random.key(1))


def train(**changes):
    """Train a model on a part of the images; return the settings, the model, and the images to measure at."""
    settings = TrainSettings("fashion-mnist", batch=100, bound_samples=2, evaluate_every=10**6, **changes)
    images = load(settings.dataset)
    few = Dataset(images.name, images.height, images.width, images.train[:20_000], *2 * [images.test[:100]])
    (result,) = run(settings, dataset=few)
    return settings, result.model, observe(jax.random.key(0), jnp.asarray(few.train[:IMAGES]), settings.likelihood)


def joint_meter(settings, model, y, name, draws):
    """Return the meter of an estimator on joint samples, with the best coefficients of other draws."""
    of_name = replace(settings, estimator=name)

    @jax.jit
    def measured(key):
        return measure_gradient(of_name, model, y, None, *jax.random.split(key), draws)

    return measured(jax.random.key(1))


def print_two_layers(steps, draws):
    """Print the variances of joint, nested and hand-written estimates at two layers of 200 latents each."""
    settings, model, y = train(network="two-layer", estimator="quadratic-double-cv", samples=SAMPLES, steps=steps)
    shift = jnp.zeros((IMAGES, model.coordinates))

    @jax.jit
    def by_hand(key):
        gradient = jax.grad(hand_written, argnums=2)
        return measure_gradients(lambda key: IMAGES * gradient(model, y, shift, key, SAMPLES), key, draws)

    rows = {"leave-one-out by hand, joint samples, K = 4": by_hand(jax.random.key(1))}
    for label, estimator in {"RLOO": dcv.RLOO, "quadratic": dcv.QuadraticDoubleCV}.items():
        learning = 0 if estimator is dcv.RLOO else 3 * draws
        rows[f"{label} inside of {label}, 2 x 2"] = nested_meter(estimator, model, y, 2, draws, learning)
    for name in ("rloo", "double-cv", "quadratic-double-cv"):
        rows[f"`{name}` on `Layers`, K = 4"] = joint_meter(settings, model, y, name, draws)
    print("\n| estimate | variance | relative |\n|---|---|---|")
    first = None
    for label, meter in rows.items():
        variance, error = summarize(meter)
        first = first or variance
        print(f"| {label} | {variance:.3g} +- {error:.1g} | {variance / first:.2f} |", flush=True)


def print_bounds(steps, draws):
    """Print the variances of estimators of the bound with S samples, all with 2 S evaluations, relative to VIMCO."""
    names = ("vimco", "vimco-double-cv", "rloo", "disarm", "double-cv", "quadratic-double-cv")
    print(f"\n| S | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for samples in (2, 4, 8):
        bound = {"objective": "iwae", "bound_samples_train": samples, "estimator": "vimco-double-cv", "samples": 1}
        settings, model, y = train(steps=steps, **bound)
        meters = [joint_meter(replace(settings, samples=2), model, y, name, draws) for name in names]
        variances = [summarize(meter).variance for meter in meters]
        print(f"| {samples} | " + " | ".join(f"{one / variances[0]:.2f}" for one in variances) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=60)
    arguments = parser.parse_args()
    print_two_layers(arguments.steps, arguments.draws)
    print_bounds(arguments.steps, arguments.draws)
