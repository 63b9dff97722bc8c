"""Measure the variance of estimators at the parameters of a trained model, which is held constant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from doublecv.diagnostics.meter import Meter, summarize
from doublecv.estimators import Learned
from doublecv.jax import State
from doublecv.jax.diagnostics import best_coefficients
from doublecv.jax.diagnostics import measure as measure_draws
from doublecv.lab.common.errors import InputError
from doublecv.lab.data import Dataset, load
from doublecv.lab.train import checkpoint
from doublecv.lab.train import settings as train_settings
from doublecv.lab.train.loop import identity
from doublecv.lab.train.settings import TrainSettings
from doublecv.lab.train.step import loss, make_expectation, make_objective, start_estimator, start_state
from doublecv.lab.vae.likelihoods import observe
from doublecv.lab.vae.model import VAE
from doublecv.lab.variance.command import Measurement, VarianceSettings, measurable

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


def measure(folder: Path, asked: VarianceSettings, measured: Sequence[Measurement] = ()) -> Iterator[Measurement]:
    """Yield the variances of the estimators at the model of a run, for every K that of RLOO, or of VIMCO, first.

    All are measured on the same images and with the same number of draws. Coefficients in which the estimate is linear
    are the best ones, solved from separate draws; others are learned with the model held constant for `fit_steps`
    steps. An estimator that does not support K samples is skipped. Earlier measurements are yielded and not repeated.
    """
    known = {(one.steps, one.estimator, one.samples): one for one in measured}
    settings = train_settings.read(folder)
    dataset = load(settings.dataset, asked.data_dir or settings.data_dir)
    step, model = _newest_model(folder, settings, dataset)
    images = jnp.asarray(dataset.train)
    first = "rloo" if settings.objective == "elbo" else "vimco"
    for K in asked.samples:
        of_first = None
        for name in dict.fromkeys((first, *(asked.estimators or measurable()))):
            of_name = replace(settings, estimator=name, samples=K, decoder_samples="shared")
            try:
                of_name.check()
            except InputError:
                continue
            if (before := known.get((step, name, K))) is not None:
                variance, standard_error = before.variance, before.standard_error
            else:
                counts, key = (asked.draws, asked.fit_steps), jax.random.key(settings.seed)
                variance, standard_error = summarize(_program(_of_the_loss(of_name), *counts, model, images, key))
            of_first = variance if of_first is None else of_first
            place = str(folder.resolve()), settings.dataset, settings.likelihood, step, settings.estimator
            found = variance, standard_error, variance / of_first
            bound_samples = 1 if settings.objective == "elbo" else settings.bound_samples_train
            yield Measurement(*place, name, K, of_name.evaluations, *found, settings.network, bound_samples)


def _newest_model(folder: Path, settings: TrainSettings, dataset: Dataset) -> tuple[int, VAE]:
    """Return the step and the model of the newest checkpoint, of the first seed if several run in parallel."""
    if settings.seeds > 1 and not settings.parallel_seeds:
        raise InputError(f"{folder} holds several runs; name one of them, such as {folder}/seed-{settings.seed}")
    start = partial(start_state, settings, *dataset.train.shape)
    seeds = settings.seed if not settings.parallel_seeds else jnp.asarray(settings.seed_numbers)
    like = jax.eval_shape(jax.vmap(start) if settings.parallel_seeds else start, seeds)
    found = checkpoint.load_newest(folder, like, identity(settings, dataset), lambda _: None)
    if found is None:
        raise InputError(f"{folder} has no checkpoint; resume the run with doublecv train --resume {folder}")
    model: VAE = found.state.model
    if settings.parallel_seeds:
        model = jax.tree.map(lambda leaf: leaf[0], model)
    return found.step, model


def _of_the_loss(settings: TrainSettings) -> TrainSettings:
    """Return the settings that the loss depends on, with defaults for all others, so that models share a program."""
    every = ("steps", "record_every", "evaluate_every", "checkpoint_every", "bound_samples")
    run = ("dataset", "seed", "seeds", "parallel_seeds", "learning_rate", "data_dir")
    unused = {name: getattr(TrainSettings, name) for name in (*every, *run)}
    return replace(settings, **unused, coefficient_learning_rate=settings.coefficient_rate)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _program(settings: TrainSettings, draws: int, fit_steps: int, model: VAE, images: Any, key: PRNGKeyArray) -> Meter:
    batch_key, observe_key, fit_key, measure_key = jax.random.split(key, 4)
    y = _observed(settings, images, batch_key, observe_key)
    learned = _fit(settings, model, images, fit_key, fit_steps)
    return measure_gradient(settings, model, y, learned, fit_key, measure_key, draws)


def measure_gradient(
    settings: TrainSettings,
    model: VAE,
    y: Float[Array, "batch pixels"],
    learned: Learned | None,
    fit_key: PRNGKeyArray,
    measure_key: PRNGKeyArray,
    draws: int,
) -> Meter:
    """Return the meter of each image's gradient in its logits over independent draws.

    Without a learned state, an estimator that is linear in its coefficients is measured with the best ones, solved from
    as many separate draws, and another one with its initial state.
    """
    estimator = settings.make_estimator()
    if learned is None and estimator.needs.coefficients:
        q, f = make_objective(settings, model, y)
        learned = best_coefficients(f, q, estimator, fit_key, draws)
    elif learned is None:
        learned = start_estimator(settings, model).learned
    shift = jnp.zeros((y.shape[0], model.coordinates))

    def gradient(key: Any) -> Any:
        return y.shape[0] * jax.grad(loss, argnums=3)(settings, model, learned, shift, y, key)

    return measure_draws(gradient, measure_key, draws)


def _fit(settings: TrainSettings, model: VAE, images: Any, key: PRNGKeyArray, steps: int) -> Learned | None:
    """Return the learned state after that many steps with the model held constant; None if it can be solved for."""
    expectation, state = make_expectation(settings), start_estimator(settings, model)
    if expectation.estimator.needs.coefficients or not state.learned.numbers:
        return None
    shift = jnp.zeros((settings.batch, model.coordinates))

    def next_step(step: Any, state: Any) -> Any:
        *batch_keys, draw_key = jax.random.split(jax.random.fold_in(key, step), 3)
        y = _observed(settings, images, *batch_keys)
        gradient = jax.grad(loss, argnums=2)(settings, model, state.learned, shift, y, draw_key)
        return expectation.update(gradient, state)

    fitted: State = jax.lax.fori_loop(0, steps, next_step, state)
    return fitted.learned


def _observed(settings: TrainSettings, images: Any, batch_key: Any, observe_key: Any) -> Float[Array, "batch pixels"]:
    """Return observations of a random batch."""
    batch = images[jax.random.randint(batch_key, (settings.batch,), 0, images.shape[0])]
    return observe(observe_key, batch, settings.likelihood)
