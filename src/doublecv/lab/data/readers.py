"""Readers of the published files: idx, NumPy archives, MATLAB files, and the digits of scikit-learn.

A reader takes the bytes of a file and believes none of them: a size in a header is compared with the bytes that are
there before anything is allocated, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from doublecv.lab.common.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

Images: TypeAlias = "UInt8[np.ndarray, 'images height width']"

SHUFFLE_SEED = 20220

LARGEST_ARRAY = 1 << 27
"""The largest unpacked array that a NumPy archive may hold, in bytes; Omniglot's has 19 MB."""

DIGITS_SHA256 = "b41ca9fd335466eee997366c2e6f6bbe0a1b4582afe091fc4eba35f4a254182f"
DIGITS_SPLIT = (1400, 197, 200)


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
    """Return the images in a fixed random order, for data sets that are stored by class."""
    # NumPy guarantees the stream of RandomState; that of default_rng may change.
    return images[np.random.RandomState(SHUFFLE_SEED).permutation(len(images))]


def read_idx(content: bytes) -> Images:
    """Read the images of an idx file of unsigned bytes with three axes."""
    magic = bytes([0, 0, 0x08, 3])
    if content[:4] != magic:
        raise InputError(f"not an idx file of images: expected it to start with {magic!r}, found {content[:4]!r}")
    header = 4 + 4 * 3
    if len(content) < header:
        raise InputError(f"the idx header is truncated: expected {header} bytes, found {len(content)}")
    shape = struct.unpack(">3I", content[4:header])
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise InputError(f"the idx header promises {shape}: expected {expected} bytes, found {len(content)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_npz(content: bytes) -> tuple[Images, Images]:
    """Read the arrays `train` and `test`, both [images, height, width], of a NumPy archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _read_npy(archive, "train"), _read_npy(archive, "test")
    except InputError:
        raise
    except Exception as error:  # zipfile raises almost any kind for a damaged archive
        raise InputError(f"not a NumPy archive with the arrays train and test: {_one_line(error)}") from error


def _read_npy(archive: zipfile.ZipFile, name: str) -> Images:
    size = archive.getinfo(f"{name}.npy").file_size
    if size > LARGEST_ARRAY:
        raise InputError(f"{name}: expected at most {LARGEST_ARRAY} bytes, found {size}")
    with archive.open(f"{name}.npy") as member:
        file = io.BytesIO(member.read(size + 1))
    try:
        version = np.lib.format.read_magic(file)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran_order, dtype = reader(file)
    except Exception as error:  # NumPy evaluates the header as Python literals
        raise InputError(f"{name}: not a NumPy array ({_one_line(error)})") from error
    if dtype != np.uint8 or fortran_order or len(shape) != 3 or min(shape) < 0:
        raise InputError(f"{name}: expected uint8 images of 3 axes in C order, found {dtype} of shape {shape}")
    pixels = file.read()
    if len(pixels) != math.prod(shape):
        raise InputError(f"{name}: the header promises {shape}: expected {math.prod(shape)} bytes, found {len(pixels)}")
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def read_chardata(content: bytes, height: int, width: int) -> tuple[Images, Images]:
    """Read `data` and `testdata` of the MATLAB file of Burda, Grosse and Salakhutdinov (2016).

    Each column is an image with values in [0, 1], which MATLAB stores column by column.
    """
    from scipy.io import loadmat  # type: ignore[import-untyped]

    try:
        variables = loadmat(io.BytesIO(content), variable_names=["data", "testdata"])
        train, test = (np.asarray(variables[name]) for name in ("data", "testdata"))
    except Exception as error:  # SciPy promises no particular ones
        raise InputError(f"not a MATLAB file with data and testdata ({_one_line(error)})") from error
    return _upright("data", train, height, width), _upright("testdata", test, height, width)


def _upright(
    name: str, columns: Float[np.ndarray, "pixels images"], height: int, width: int
) -> UInt8[np.ndarray, "images {height} {width}"]:
    if columns.ndim != 2 or columns.shape[0] != height * width:
        raise InputError(f"{name}: expected {height * width} rows, one for each pixel, found {len(columns)}")
    if columns.dtype.kind not in "fiu" or columns.size == 0:
        raise InputError(f"{name}: expected numbers, found {columns.dtype} of shape {columns.shape}")
    low, high = columns.min(), columns.max()
    if not (low >= 0 and high <= 1):
        raise InputError(f"{name}: expected values in [0, 1], found {low} to {high}")
    by_column = columns.T.reshape(-1, width, height)
    return np.ascontiguousarray(np.rint(255 * by_column).astype(np.uint8).transpose(0, 2, 1))


Reader: TypeAlias = Callable[[Sequence[bytes], tuple[int, int]], tuple[Images, Images]]

READERS: dict[str, Reader] = {
    "idx": lambda contents, _: (read_idx(contents[0]), read_idx(contents[1])),
    "npz": lambda contents, _: read_npz(contents[0]),
    "chardata": lambda contents, size: read_chardata(contents[0], *size),
}
"""How the training and test images are read from the files of a form; the second argument is the size of an image."""


def read_digits() -> Dataset:
    """Read the 1797 digits of 8x8 pixels that come with scikit-learn, scaled from 0..16 to 0..255 and rounded."""
    from sklearn import __version__, datasets  # type: ignore[import-untyped]

    images = np.rint(np.asarray(datasets.load_digits().data) * (255 / 16)).astype(np.uint8)
    if (found := hashlib.sha256(images.tobytes()).hexdigest()) != DIGITS_SHA256:
        raise InputError(
            f"the digits of scikit-learn {__version__} are not the usual ones: "
            f"expected sha256 {DIGITS_SHA256}, found {found}"
        )
    train, validation, _ = DIGITS_SPLIT
    return Dataset("digits", 8, 8, *np.split(shuffled(images), [train, train + validation]))


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]
