"""The 8x8 digits that come with scikit-learn: the set that is there before anything is downloaded."""

from __future__ import annotations

import hashlib

import numpy as np

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.dataset import Dataset, shuffled

TRAIN, VALIDATION, TEST = 1400, 197, 200
LEVELS = 16
SHA256 = "b41ca9fd335466eee997366c2e6f6bbe0a1b4582afe091fc4eba35f4a254182f"


def load_digits() -> Dataset:
    """1797 images of which the pixels 0..16 are scaled to 0..255 and rounded."""
    from sklearn import __version__, datasets  # type: ignore[import-untyped]

    values = np.asarray(datasets.load_digits().data)
    images = np.rint(values * (255 / LEVELS)).astype(np.uint8)
    found = hashlib.sha256(images.tobytes()).hexdigest()
    if found != SHA256:
        raise InputError(
            f"the digits of scikit-learn {__version__} are not the usual ones: expected sha256 {SHA256}, found {found}"
        )
    train, validation, test = np.split(shuffled(images), [TRAIN, TRAIN + VALIDATION])
    return Dataset("digits", 8, 8, train, validation, test)
