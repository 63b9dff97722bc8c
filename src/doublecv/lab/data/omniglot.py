"""Omniglot at 28x28 pixels, in the two forms in which it goes around."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from doublecv.lab.common.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

    from doublecv.lab.data.published import Images


def read_npz(content: bytes) -> tuple[Images, Images]:
    """The arrays `train` and `test` of a NumPy archive, both [images, height, width]."""
    with np.load(io.BytesIO(content)) as archive:
        return archive["train"], archive["test"]


def read_chardata(content: bytes, height: int, width: int) -> tuple[Images, Images]:
    """`data` and `testdata` of the MATLAB file of Burda, Grosse and Salakhutdinov (2016).

    Each column is an image with values in [0, 1], itself stored column by column as MATLAB does.
    """
    from scipy.io import loadmat  # type: ignore[import-untyped]

    variables = loadmat(io.BytesIO(content), variable_names=["data", "testdata"])
    return _images("data", variables["data"], height, width), _images("testdata", variables["testdata"], height, width)


def _images(
    name: str, columns: Float[np.ndarray, "pixels images"], height: int, width: int
) -> UInt8[np.ndarray, "images {height} {width}"]:
    if columns.shape[0] != height * width:
        raise InputError(f"{name}: expected {height * width} rows, one for each pixel, found {columns.shape[0]}")
    low, high = columns.min(), columns.max()
    if not (low >= 0 and high <= 1):
        raise InputError(f"{name}: expected values in [0, 1], found {low} to {high}")
    by_column = columns.T.reshape(-1, width, height)
    return np.ascontiguousarray(np.rint(255 * by_column).astype(np.uint8).transpose(0, 2, 1))
