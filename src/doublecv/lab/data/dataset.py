"""A set of images, ready for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import UInt8

SHUFFLE_SEED = 20220


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as rows of height * width pixels from 0 (black) to 255, in three parts that share no image."""

    name: str
    height: int
    width: int
    train: UInt8[np.ndarray, "train pixels"]
    validation: UInt8[np.ndarray, "validation pixels"]
    test: UInt8[np.ndarray, "test pixels"]


def shuffled(images: UInt8[np.ndarray, "images pixels"]) -> UInt8[np.ndarray, "images pixels"]:
    """The images in an order that is the same everywhere and always, for sets that are stored in classes."""
    # NumPy promises the stream of RandomState for good, that of default_rng it may change.
    return images[np.random.RandomState(SHUFFLE_SEED).permutation(len(images))]
