"""Write a grid of images at the end of a run: data, their reconstructions, and samples of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from doublecv.lab.data import Dataset
from doublecv.lab.vae.likelihoods import observe
from doublecv.lab.vae.model import VAE

if TYPE_CHECKING:
    from jaxtyping import Float, PRNGKeyArray

COLUMNS = 10
ROWS_OF_SAMPLES = 4
ENLARGED = 4
"""The width in the picture of one pixel of an image."""


def write_pictures(path: Path, model: VAE, dataset: Dataset, key: PRNGKeyArray) -> None:
    """Write a PNG with test images, below each its reconstruction, and below these samples from the prior."""
    from matplotlib.image import imsave

    observe_key, posterior_key, prior_key = jax.random.split(key, 3)
    y = observe(observe_key, jnp.asarray(dataset.test[:COLUMNS]), model.likelihood)
    q = model.posterior(model.encoder(y))
    reconstructions = _pixels(model, model.draw(q, posterior_key, 1))[0]
    samples = _pixels(model, model.draw_prior(prior_key, ROWS_OF_SAMPLES * COLUMNS))
    shown = (np.asarray(y) + 1) / 2 if model.likelihood == "gaussian" else np.asarray(y)
    grid = _grid(np.concatenate([shown, reconstructions, samples]), dataset.height, dataset.width)
    imsave(path, grid, cmap="gray", vmin=0, vmax=1)


def _pixels(model: VAE, x: Any) -> Float[np.ndarray, "*images pixels"]:
    """Return the mean of p(y | x), scaled to [0, 1]."""
    output = model.decode(x)
    mean = (output + 1) / 2 if model.likelihood == "gaussian" else jax.nn.sigmoid(output)
    return np.asarray(mean).clip(0, 1)


def _grid(images: Float[np.ndarray, "images pixels"], height: int, width: int) -> Float[np.ndarray, "height width"]:
    rows = len(images) // COLUMNS
    framed = np.pad(images.reshape(rows, COLUMNS, height, width), ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=0.5)
    grid = framed.transpose(0, 2, 1, 3).reshape(rows * (height + 1), COLUMNS * (width + 1))
    return grid.repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
