"""The catalogue of data sets, which is in catalogue.toml, and the readers of their files.

Files reach a reader only after their checksums matched. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from doublecv.lab.common.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import UInt8

Images: TypeAlias = "UInt8[np.ndarray, '_images _height _width']"

SHUFFLE_SEED = 20220

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


@dataclass(frozen=True)
class PublishedFile:
    """A file by its unpacked content, which is the same on every mirror; the gzip wrapper around it is not.

    The checksum is "sha256:" and the sum, or "git:" and the id under which git stores the content. Where the length is
    not known, it is a limit of 256 MB. Mirrors are tried in their order.
    """

    name: str
    checksum: str
    length: int = 1 << 28
    mirrors: tuple[str, ...] = ()

    def checksum_of(self, content: bytes) -> str:
        """Return the checksum of a content, of the same kind as the file's own."""
        if self.checksum.startswith("sha256:"):
            return f"sha256:{hashlib.sha256(content).hexdigest()}"
        header = f"blob {len(content)}\0".encode()
        return f"git:{hashlib.sha1(header + content, usedforsecurity=False).hexdigest()}"


@dataclass(frozen=True)
class Form:
    """One of the forms in which a data set is published; `reader` is a name in `READERS`."""

    reader: Literal["idx", "npz", "chardata"]
    files: tuple[PublishedFile, ...]
    train_images: int
    test_images: int


@dataclass(frozen=True)
class ImageSet:
    """A data set of files, in one or several forms, the preferred one first; the last has public addresses.

    The training images after the first `train` are for validation; before, they are shuffled if they are stored by
    class. `system_folder` is where a package of the operating system keeps the files.
    """

    height: int
    width: int
    train: int
    forms: tuple[Form, ...]
    shuffle: bool = False
    system_folder: Path | None = None
    name: str = ""


def _read() -> dict[str, ImageSet]:
    described = msgspec.toml.decode(files(__package__).joinpath("catalogue.toml").read_bytes())
    sets = {name: {**described[name], "name": name} for name in described}
    return msgspec.convert(sets, dict[str, ImageSet], dec_hook=lambda kind, value: kind(value))


SETS = _read()
NAMES = ("digits", *SETS)
"""The data sets on the command line."""


class Size(NamedTuple):
    """The number of images in the three parts of a data set, and the pixels of an image."""

    train: int
    validation: int
    test: int
    pixels: int


def size(name: str) -> Size:
    """Return the size of a data set, in its preferred form."""
    if name == "digits":
        return Size(*DIGITS_SPLIT, pixels=64)
    image_set = SETS[name]
    form = image_set.forms[0]
    held_out = form.train_images - image_set.train
    return Size(image_set.train, held_out, form.test_images, image_set.height * image_set.width)


class BrokenFile(InputError):
    """Report a file that is not what was published: its name, what was expected and what was found."""


def shuffled(images: UInt8[np.ndarray, "images pixels"]) -> UInt8[np.ndarray, "images pixels"]:
    """Return the images in a fixed random order, for data sets that are stored by class."""
    # NumPy guarantees the stream of RandomState; that of default_rng may change.
    return images[np.random.RandomState(SHUFFLE_SEED).permutation(len(images))]


def read_images(reader: str, contents: Sequence[bytes], shapes: Sequence[tuple[int, int, int]]) -> list[Images]:
    """Read the training and the test images of these shapes, or raise an `InputError`."""
    try:
        images = READERS[reader](contents, *shapes[0][1:])
    except Exception as error:  # NumPy, SciPy and zipfile promise no particular ones
        raise InputError(f"not images in the format {reader} ({' '.join(str(error).split())[:120]})") from error
    for found, shape in zip(images, shapes, strict=True):
        if found.shape != shape or found.dtype != np.uint8:
            raise InputError(f"expected uint8 of shape {shape}, found {found.dtype} of shape {found.shape}")
    return images


def _read_idx(contents: Sequence[bytes], *_: int) -> list[Images]:
    """Read two idx files of unsigned bytes with three axes."""
    images = []
    for content in contents:
        magic, *shape = struct.unpack(">4I", content[:16])
        if magic != 0x803:
            raise ValueError(f"its first bytes are {content[:4]!r}")
        images.append(np.frombuffer(content, np.uint8, offset=16).reshape(shape))
    return images


def _read_npz(contents: Sequence[bytes], *_: int) -> list[np.ndarray]:
    """Read the arrays `train` and `test` of a NumPy archive, which may be of any type and shape."""
    with np.load(io.BytesIO(contents[0])) as archive:
        return [np.asarray(archive["train"]), np.asarray(archive["test"])]


def _read_chardata(contents: Sequence[bytes], height: int, width: int) -> list[Images]:
    """Read `data` and `testdata` of the MATLAB file of Burda, Grosse and Salakhutdinov (2016).

    Each column is an image with values in [0, 1], which MATLAB stores column by column.
    """
    from scipy.io import loadmat  # type: ignore[import-untyped]

    variables = loadmat(io.BytesIO(contents[0]), variable_names=["data", "testdata"])
    images = [np.rint(255 * variables[name].T).reshape(-1, width, height) for name in ("data", "testdata")]
    return [np.ascontiguousarray(part.astype(np.uint8).transpose(0, 2, 1)) for part in images]


READERS: dict[str, Callable[..., list[Images]]] = {"idx": _read_idx, "npz": _read_npz, "chardata": _read_chardata}
"""How images are read from the contents of the files of a form, given the height and width of an image."""


def read_digits() -> Dataset:
    """Read the 1797 digits of 8x8 pixels that come with scikit-learn, scaled from 0..16 to 0..255 and rounded."""
    from sklearn import __version__, datasets  # type: ignore[import-untyped]

    images = np.rint(np.asarray(datasets.load_digits().data) * (255 / 16)).astype(np.uint8)
    if (found := hashlib.sha256(images.tobytes()).hexdigest()) != DIGITS_SHA256:
        which = f"the digits of scikit-learn {__version__}"
        raise BrokenFile(f"{which} are not the usual ones: expected sha256 {DIGITS_SHA256}, found {found}")
    train, validation, _ = DIGITS_SPLIT
    return Dataset("digits", 8, 8, *np.split(shuffled(images), [train, train + validation]))
