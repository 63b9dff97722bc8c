"""The training program: one compiled loop over steps, from the bytes of the images to the moved parameters.

    program = make_step(settings, dataset)
    state = program.start()
    state, report = program.chunk(state, 0, 200)          # steps 0 to 199; `state` is donated
    state, report = program.chunk(state, 200, 200)

All randomness of a step is a function of the seed and of the step's number, so a run that is cut anywhere and goes on
from its state ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from doublecv.estimators import Estimator, Relax, Surrogate, make
from doublecv.jax import expect
from doublecv.lab.common.devices import ONE, Devices, split
from doublecv.lab.common.errors import InputError
from doublecv.lab.data import Dataset
from doublecv.lab.train import variance_tracker
from doublecv.lab.train.optimizers import Adam, CoefficientOptimiser, Moments
from doublecv.lab.train.random_bits import GENERATOR
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.vae.batches import observe, order_of_epoch
from doublecv.lab.vae.model import HIDDEN, VAE
from doublecv.lab.vae.objective import elbo
from doublecv.lab.vae.relax_network import RelaxNetwork, relax_with_input

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8, UInt32

MODEL, NETWORK, ORDER, OBSERVE, DRAW = range(5)
"""What a random key is for; folded into the seed's key."""


class State(NamedTuple):
    """All that one step hands to the next.

    Attributes:
        model: the autoencoder.
        moments: Adam's averages of its gradient.
        coefficients: the estimator's.
        coefficient_moments: Adam's averages of their gradient.
        tracker: the averages of the gradients' variance.
        order: the images in the order of this epoch.
        key: the words of the seed's key, which stay as they are.
    """

    model: VAE
    moments: Moments
    coefficients: dict[str, Any]
    coefficient_moments: Moments
    tracker: variance_tracker.Tracker
    order: Int[Array, "images"]
    key: UInt32[Array, "2"]


class Report(NamedTuple):
    """What a chunk tells the host, every number with an axis of seeds in front if they run in parallel.

    Attributes:
        elbo: the mean of the training ELBO over the chunk's steps and batches.
        encoder_variance: the variance of the encoder's gradient.
        logits_variance: the variance of the logits' gradient.
        first_bad_step: the first step with a loss or a gradient that was not finite; -1 if there was none.
    """

    elbo: Any
    encoder_variance: Any
    logits_variance: Any
    first_bad_step: Any


class Program(NamedTuple):
    """The compiled parts of a training run.

    Attributes:
        start: makes the state before step 0.
        chunk: from a state, which is donated, the number of its next step and how many steps, to state and report.
        images: the training images, on one device.
    """

    start: Callable[[], State]
    chunk: Callable[[State, int, int], tuple[State, Report]]
    images: UInt8[Array, "images pixels"]


def make_step(
    settings: TrainSettings, dataset: Dataset, seeds: Sequence[int] | None = None, devices: Devices = ONE
) -> Program:
    """The training program on the data set's training images.

    Args:
        settings: what to train.
        dataset: the images.
        seeds: seeds that run in parallel, as one program with one more axis in front of state and report; without
            them `settings.seed` alone runs, with no such axis.
        devices: what shares each batch; a state that did not come from the program must be placed there.
    """
    settings.check()
    count, pixels = dataset.train.shape
    if settings.batch > count:
        raise InputError(
            f"--batch must be at most {count}, the training images of {dataset.name}; got {settings.batch}"
        )
    images = devices.place(jnp.asarray(dataset.train))
    start = partial(start_state, settings, count, pixels)
    chunk = partial(_chunk, settings)
    if seeds is not None:
        start, chunk = jax.vmap(start), jax.vmap(chunk, in_axes=(0, None, None, None))
    compiled = devices.compile(chunk, donate_argnums=0)
    numbers = settings.seed if seeds is None else jnp.asarray(seeds)
    return Program(
        start=lambda: devices.compile(start)(numbers),
        chunk=lambda state, step, steps: compiled(state, images, jnp.int32(step), jnp.int32(steps)),
        images=devices.here(images),
    )


def start_state(settings: TrainSettings, images: int, pixels: int, seed: Int[Array, ""] | int) -> State:
    """The state before step 0."""
    key = jax.random.key(seed, impl=GENERATOR)
    model = make_model(settings, pixels, jax.random.fold_in(key, MODEL))
    logits = model.encoder.outputs
    coefficients = start_coefficients(settings, model, jax.random.fold_in(key, NETWORK))
    return State(
        model,
        _model_optimiser(settings).start(model),
        coefficients,
        coefficient_optimiser(settings).start(coefficients),
        variance_tracker.start(model.encoder, logits),
        order_of_epoch(jax.random.fold_in(key, ORDER), 0, images),
        jax.random.key_data(key),
    )


def make_model(settings: TrainSettings, pixels: int, key: PRNGKeyArray) -> VAE:
    """Return the autoencoder before training."""
    return VAE(
        pixels,
        settings.latents,
        key,
        categories=settings.categories if settings.latent == "categorical" else None,
        hidden=HIDDEN if settings.network == "nonlinear" else (),
        likelihood=settings.likelihood,
    )


def start_coefficients(settings: TrainSettings, model: VAE, key: PRNGKeyArray) -> dict[str, Any]:
    """The coefficients that the estimator starts with; the key is for the network of RELAX."""
    estimator = sized_estimator(settings, model)
    if isinstance(estimator, Relax):
        pixels, logits = model.encoder.inputs, model.encoder.outputs
        estimator = relax_with_input(RelaxNetwork(pixels, logits, key), jnp.zeros(pixels), settings.samples)
    coefficients: dict[str, Any] = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), estimator.coefficients())
    return coefficients


def sized_estimator(settings: TrainSettings, model: VAE) -> Estimator:
    """The estimator of the settings, for the sizes of the model."""
    estimator = make(settings.estimator, settings.samples)
    if isinstance(estimator, Surrogate):
        variables = model.encoder.outputs
        features = model.encoder.layers[-1].weight.shape[0] + variables
        return replace(
            estimator, variables=variables, features=features, directions=min(estimator.directions, variables)
        )
    return estimator


def estimator_at(
    settings: TrainSettings, model: VAE, coefficients: dict[str, Any], y: Float[Array, "*batch pixels"]
) -> Estimator:
    """The estimator at a batch: the network of RELAX reads y, and a surrogate the encoder's hidden layer and logits."""
    estimator = sized_estimator(settings, model)
    if isinstance(estimator, Relax):
        return relax_with_input(coefficients["network"], y, settings.samples)
    if isinstance(estimator, Surrogate):
        hidden = model.encoder.hidden(y)
        return replace(estimator, context=jnp.concatenate([hidden, model.encoder.layers[-1](hidden)], axis=-1))
    return estimator


def _model_optimiser(settings: TrainSettings) -> Adam:
    return Adam(settings.rate)


def coefficient_optimiser(settings: TrainSettings) -> CoefficientOptimiser:
    """Adam with a longer memory for the relaxed control variates, whose coefficients' gradient is the noisiest."""
    estimator = make(settings.estimator, settings.samples)
    first_decay = 0.999 if estimator.relaxed_points else 0.9
    return CoefficientOptimiser(Adam(settings.coefficient_rate, first_decay), estimator.averaged)


def _chunk(
    settings: TrainSettings,
    state: State,
    images: UInt8[Array, "images pixels"],
    first: Int[Array, ""],
    steps: Int[Array, ""],
) -> tuple[State, Report]:
    def one_more(step: Any, carry: Any) -> Any:
        state, total, first_bad_step = carry
        state, value, finite = _step(settings, state, images, step)
        bad = jnp.where(finite | (first_bad_step >= 0), first_bad_step, step)
        return state, total + value, bad

    state, total, first_bad_step = jax.lax.fori_loop(
        first, first + steps, one_more, (state, jnp.float32(0), jnp.int32(-1))
    )
    done = first + steps
    # A weight's gradient can overflow although its layer's bias has a finite one: the averages keep the trace of it.
    trace = jnp.isfinite(sum(jnp.sum(leaf) for leaf in jax.tree.leaves((state.moments, state.coefficient_moments))))
    report = Report(
        total / steps,
        variance_tracker.encoder_variance(state.tracker, state.moments.second.encoder, done),
        variance_tracker.logits_variance(state.tracker, done),
        jnp.where(trace | (first_bad_step >= 0), first_bad_step, done - 1),
    )
    return state, report


def _step(
    settings: TrainSettings, state: State, images: UInt8[Array, "images pixels"], step: Int[Array, ""]
) -> tuple[State, Float[Array, ""], Any]:
    """One step: the state after it, the batch's ELBO, and whether all was finite."""
    batch, order = _next_batch(settings, state, images.shape[0], step)
    y = split(observe(key_of(state, OBSERVE, step), images[split(batch)], settings.likelihood))
    shift = split(jnp.zeros((settings.batch, state.tracker.logits.shape[0])))
    value, gradients = jax.value_and_grad(partial(loss, settings), argnums=(0, 1, 2))(
        state.model, state.coefficients, shift, y, key_of(state, DRAW, step)
    )
    gradient, coefficient_gradient, logits_gradient = gradients
    # The gradient of a bias is the sum of all that reaches its layer, so the small leaves tell of the large ones.
    small = [leaf for leaf in jax.tree.leaves((gradient, coefficient_gradient)) if leaf.ndim < 2]
    finite = jnp.all(jnp.stack([jnp.isfinite(value), *(jnp.all(jnp.isfinite(leaf)) for leaf in small)]))
    # A run stops where something is not finite. As a factor it makes every update wait for all uses of the old
    # parameters, so that the compiler moves them in place, without a copy.
    model, moments = _model_optimiser(settings).update(
        state.model, gradient, state.moments, step, finite.astype(jnp.float32)
    )
    coefficients, coefficient_moments = coefficient_optimiser(settings).update(
        state.coefficients, coefficient_gradient, state.coefficient_moments, step
    )
    tracker = variance_tracker.update(state.tracker, gradient.encoder, settings.batch * logits_gradient)
    state = State(model, moments, coefficients, coefficient_moments, tracker, order, state.key)
    return state, -value, finite


def loss(
    settings: TrainSettings,
    model: VAE,
    coefficients: dict[str, Any],
    shift: Float[Array, "batch logits"],
    y: Float[Array, "batch pixels"],
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """-ELBO, the mean over the batch; `shift` is 0, and its gradient that of the logits."""
    estimator = estimator_at(settings, model, coefficients, y)
    pullback = None
    if estimator.relaxed_points:
        # The coefficients of the relaxed control variates reduce the encoder's gradient, not the logits'.
        held, static = eqx.partition(jax.lax.stop_gradient(model.encoder), eqx.is_array)
        pullback = jax.vjp(lambda arrays: model.posterior(eqx.combine(arrays, static)(y)).logits, held)[1]
    q = model.posterior(model.encoder(y) + shift)
    f, outside = elbo(model, y, q, settings.kl)
    return -jnp.mean(expect(f, q, estimator, coefficients, key, pullback=pullback) + outside)


def _next_batch(
    settings: TrainSettings, state: State, images: int, step: Int[Array, ""]
) -> tuple[Int[Array, "batch"], Int[Array, "images"]]:
    """The images of this step, and the order of its epoch, drawn where a new one begins."""
    steps_an_epoch = images // settings.batch
    epoch, place = step // steps_an_epoch, step % steps_an_epoch
    order = jax.lax.cond(
        place == 0,
        lambda: order_of_epoch(key_of(state, ORDER), epoch, images),
        lambda: state.order,
    )
    return jax.lax.dynamic_slice(order, (place * settings.batch,), (settings.batch,)), order


def key_of(state: State, *numbers: Int[Array, ""] | int) -> PRNGKeyArray:
    """The key for a purpose, and for further numbers such as that of the step."""
    key: Any = jax.random.wrap_key_data(state.key, impl=GENERATOR)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    folded: PRNGKeyArray = key
    return folded
