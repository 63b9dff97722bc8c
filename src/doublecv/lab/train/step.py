"""Compile the training program: one loop over steps, from the bytes of the images to the updated parameters.

::

    program = make_step(settings, dataset)
    state = program.start()
    state, report = program.chunk(state, 0, 200)          # steps 0 to 199; `state` is donated
    state, report = program.chunk(state, 200, 200)

All randomness of a step is a function of the seed and of the number of the step, so that a run that is interrupted
anywhere and resumed from its state ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from doublecv.estimators import Learned
from doublecv.jax import Expectation
from doublecv.jax import State as EstimatorState
from doublecv.jax.rule import Function
from doublecv.lab.common.devices import ONE, Devices, shard_batch
from doublecv.lab.common.errors import InputError
from doublecv.lab.data import Dataset
from doublecv.lab.train import optimizers
from doublecv.lab.train.optimizers import adam
from doublecv.lab.train.random_bits import GENERATOR, permutation
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.vae.likelihoods import observe
from doublecv.lab.vae.model import HIDDEN, VAE, Posterior
from doublecv.lab.vae.objective import elbo, importance_weighted_bound

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8, UInt32

MODEL, ORDER, OBSERVE, DRAW, DECODER = 0, 2, 3, 4, 5
"""The purposes of random keys; they are folded into the key of the seed."""

RELAXED_FIRST_DECAY = 0.999
r"""Adam's :math:`\beta_1` for relaxed control variates, whose gradient is noisy (as in the paper's program)."""


class State(NamedTuple):
    """Hold everything that one step passes to the next.

    `order` is the order of the images in this epoch. `key` has the words of the seed's key; they never change.
    """

    model: VAE
    optimizer: optimizers.AdamState
    estimator: EstimatorState
    tracker: optimizers.Tracker
    order: Int[Array, "images"]
    key: UInt32[Array, "2"]


class Report(NamedTuple):
    """Hold the numbers that a chunk returns, each with a leading axis of seeds if they run in parallel.

    `elbo` is the mean of the objective over the steps of the chunk. `first_bad_step` is the first step with a loss or a
    gradient that was not finite; -1 if there was none.
    """

    elbo: Any
    encoder_variance: Any
    logits_variance: Any
    first_bad_step: Any


class Program(NamedTuple):
    """Hold the compiled parts of a training run.

    `start` returns the state before step 0. `chunk` takes a state, which is donated, the number of its next step, and a
    number of steps; it returns the state after them and the report.
    """

    start: Callable[[], State]
    chunk: Callable[[State, int, int], tuple[State, Report]]


def make_step(
    settings: TrainSettings, dataset: Dataset, seeds: Sequence[int] | None = None, devices: Devices = ONE
) -> Program:
    """Return the training program on the training images of the data set.

    With `seeds`, they run in parallel, as one program with a leading axis of seeds in state and report; otherwise only
    `settings.seed` runs, without that axis. A state that did not come from the program must be placed on the devices.
    """
    settings.check()
    count, pixels = dataset.train.shape
    if settings.batch > count:
        raise InputError(
            f"--batch must be at most {count}, the number of training images of {dataset.name}; got {settings.batch}"
        )
    images = devices.replicate(jnp.asarray(dataset.train))
    start = partial(start_state, settings, count, pixels)
    chunk = partial(_chunk, settings)
    if seeds is not None:
        start, chunk = jax.vmap(start), jax.vmap(chunk, in_axes=(0, None, None, None))
    compiled = devices.compile(chunk, donate_argnums=0)
    numbers = settings.seed if seeds is None else jnp.asarray(seeds)
    return Program(
        start=lambda: devices.compile(start)(numbers),
        chunk=lambda state, step, steps: compiled(state, images, jnp.int32(step), jnp.int32(steps)),
    )


def start_state(settings: TrainSettings, images: int, pixels: int, seed: Int[Array, ""] | int) -> State:
    """Return the state before step 0."""
    key = jax.random.key(seed, impl=GENERATOR)
    model = make_model(settings, pixels, jax.random.fold_in(key, MODEL))
    return State(
        model,
        adam(settings.rate).init(model),
        start_estimator(settings, model),
        optimizers.start_tracker(model.inference, model.coordinates),
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
        two_layers=settings.network == "two-layer",
    )


def make_expectation(settings: TrainSettings) -> Expectation:
    """Return the expectation with the estimator of the settings and the optimizer of the paper for its numbers."""
    estimator = settings.make_estimator()
    first_decay = RELAXED_FIRST_DECAY if estimator.needs.relaxed_points else 0.9
    return Expectation(estimator, adam(settings.coefficient_rate, first_decay))


def start_estimator(settings: TrainSettings, model: VAE) -> EstimatorState:
    """Return the state of the estimator before training."""
    expectation = make_expectation(settings)
    y = jnp.zeros((1, model.encoder.inputs))
    q, _ = make_objective(settings, model, y)
    return expectation.init(q, context=make_context(expectation, model, y))


def make_objective(
    settings: TrainSettings,
    model: VAE,
    y: Float[Array, "batch pixels"],
    shift: Float[Array, "batch coordinates"] | None = None,
) -> tuple[Posterior, Function]:
    """Return the distribution that is drawn from, and f; `shift` is added to the logits of q."""
    logits, upper_shift = model.encoder(y), jnp.zeros(())
    if shift is not None:
        logits, upper_shift = logits + shift[:, : logits.shape[-1]], shift[:, logits.shape[-1] :]
    q = model.posterior(logits, upper_shift)
    if settings.objective == "elbo":
        # Where the decoder has samples of its own, the estimator's must not train it.
        held = jax.lax.stop_gradient(model) if settings.decoder_samples == "independent" else model
        return q, elbo(held, y, q)
    samples, joint = settings.bound_samples_train, not settings.make_estimator().needs.bound
    f = importance_weighted_bound(model, y, q, samples, joint=joint)
    if joint:
        return model.posterior(logits, upper_shift, samples), f
    groups = jnp.broadcast_to(logits, (settings.samples, *logits.shape))
    return model.posterior(groups, upper_shift), f


def make_context(
    expectation: Expectation, model: VAE, y: Float[Array, "*batch pixels"]
) -> Float[Array, "*batch features"] | None:
    """Return the features of each image for an estimator that uses them.

    The network of RELAX reads the image itself, as in the paper; other estimators get the last hidden layer of the
    encoder. The logits are linear in it, so they would add nothing to a function that is linear in the context.
    """
    needs = expectation.estimator.needs
    if not needs.context or needs.relaxed_points:
        return y if needs.context else None
    return model.encoder.hidden(y)


def _chunk(
    settings: TrainSettings,
    state: State,
    images: UInt8[Array, "images pixels"],
    first: Int[Array, ""],
    steps: Int[Array, ""],
) -> tuple[State, Report]:
    def next_step(step: Any, carry: Any) -> Any:
        state, total, first_bad_step = carry
        state, value, finite = _step(settings, state, images, step)
        bad = jnp.where(finite | (first_bad_step >= 0), first_bad_step, step)
        return state, total + value, bad

    state, total, first_bad_step = jax.lax.fori_loop(
        first, first + steps, next_step, (state, jnp.float32(0), jnp.int32(-1))
    )
    done = first + steps
    # The gradient of a weight can overflow although that of its bias is finite; the optimizers' averages show it.
    averages = jax.tree.leaves((state.optimizer, state.estimator.optimizer))
    finite = jnp.isfinite(sum(jnp.sum(leaf) for leaf in averages))
    report = Report(
        total / steps,
        optimizers.encoder_variance(state.tracker, state.optimizer.second.inference, done),
        optimizers.logits_variance(state.tracker, done),
        jnp.where(finite | (first_bad_step >= 0), first_bad_step, done - 1),
    )
    return state, report


def _step(
    settings: TrainSettings, state: State, images: UInt8[Array, "images pixels"], step: Int[Array, ""]
) -> tuple[State, Float[Array, ""], Any]:
    """Make one step; return the state after it, the objective on the batch, and whether all numbers were finite."""
    batch, order = _next_batch(settings, state, images.shape[0], step)
    y = shard_batch(observe(key_of(state, OBSERVE, step), images[shard_batch(batch)], settings.likelihood))
    shift = shard_batch(jnp.zeros((settings.batch, state.tracker.logits.shape[0])))
    value, gradients = jax.value_and_grad(partial(loss, settings), argnums=(0, 1, 2))(
        state.model, state.estimator.learned, shift, y, key_of(state, DRAW, step)
    )
    gradient, learned_gradient, logits_gradient = gradients
    # The gradient of a bias sums over all that reaches its layer, so the small arrays also speak for the large ones.
    small = [leaf for leaf in jax.tree.leaves((value, gradient, learned_gradient.numbers)) if leaf.ndim < 2]
    finite = jnp.all(jnp.isfinite(jnp.concatenate([leaf.reshape(-1) for leaf in small])))
    # The run stops if something is not finite; `scale` also lets XLA update the parameters in place (see `adam`).
    updates, optimizer = adam(settings.rate).update(gradient, state.optimizer, scale=finite.astype(jnp.float32))
    model = optax.apply_updates(state.model, updates)
    estimator = make_expectation(settings).update(learned_gradient, state.estimator)
    tracker = optimizers.update_tracker(state.tracker, gradient.inference, settings.batch * logits_gradient)
    return State(model, optimizer, estimator, tracker, order, state.key), -value, finite


def loss(
    settings: TrainSettings,
    model: VAE,
    learned: Learned,
    shift: Float[Array, "batch coordinates"],
    y: Float[Array, "batch pixels"],
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """Return the negative objective, the mean over the batch; `shift` is 0, and its gradient is that of the logits.

    For the logits of a second layer, of which every sample has its own, it is the sum over the samples.
    """
    expectation = make_expectation(settings)
    context = make_context(expectation, model, y)
    pullback = None
    if expectation.estimator.needs.relaxed_points:
        # The numbers of a relaxed control variate minimise the variance of the encoder's gradient, not the logits'.
        held, static = eqx.partition(jax.lax.stop_gradient(model.encoder), eqx.is_array)
        copies = 1 if settings.objective == "elbo" else settings.bound_samples_train

        def logits_of(arrays: Any) -> Any:
            return model.posterior(eqx.combine(arrays, static)(y), copies=copies).logits

        _, pullback = jax.vjp(logits_of, held)
    q, f = make_objective(settings, model, y, shift)
    value = expectation(f, q, learned, key, context=context, pullback=pullback)
    if settings.decoder_samples == "independent":
        value = value + _decoder_term(settings, model, y, q.detach(), jax.random.fold_in(key, DECODER))
    return -jnp.mean(value)


def _decoder_term(
    settings: TrainSettings, model: VAE, y: Float[Array, "batch pixels"], q: Posterior, key: PRNGKeyArray
) -> Float[Array, "batch"]:
    """Return 0 with the gradient of the ELBO in the decoder, estimated from K independent samples of q.

    The paper's program trains the decoder this way with DisARM and ARMS, whose samples are coupled. f is evaluated at
    K more points than the estimator needs; the program evaluates DisARM at K/2 more, because it reuses K/2 independent
    samples as the first samples of the pairs, which does not change the distribution of either gradient.
    """
    value = jnp.mean(elbo(model, y, q)(model.draw(q, key, settings.samples)), axis=0)
    term: Array = value - jax.lax.stop_gradient(value)
    return term


def _next_batch(
    settings: TrainSettings, state: State, images: int, step: Int[Array, ""]
) -> tuple[Int[Array, "batch"], Int[Array, "images"]]:
    """Return the indices of this step's images and the order of its epoch, which is drawn at its first step."""
    steps_per_epoch = images // settings.batch
    epoch, index = step // steps_per_epoch, step % steps_per_epoch
    order = jax.lax.cond(index == 0, lambda: order_of_epoch(key_of(state, ORDER), epoch, images), lambda: state.order)
    return jax.lax.dynamic_slice(order, (index * settings.batch,), (settings.batch,)), order


def order_of_epoch(key: PRNGKeyArray, epoch: Int[Array, ""] | int, images: int) -> Int[Array, "images"]:
    """Return the order of the images in an epoch, a function of the key and the epoch only."""
    return permutation(jax.random.fold_in(key, epoch), images)


def key_of(state: State, *numbers: Int[Array, ""] | int) -> PRNGKeyArray:
    """Return the key for a purpose and for further numbers, such as that of the step."""
    key: Any = jax.random.wrap_key_data(state.key, impl=GENERATOR)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    folded: PRNGKeyArray = key
    return folded
