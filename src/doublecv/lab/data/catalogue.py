"""The catalogue of data sets: their sizes, checksums and public addresses, which are in catalogue.toml."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from doublecv.lab.data.readers import DIGITS_SPLIT


@dataclass(frozen=True)
class PublishedFile:
    """A file by its unpacked content, which is the same on every mirror; the gzip wrapper around it is not.

    Attributes:
        name: its name, unpacked; ".gz" is appended where it is packed.
        checksum: "sha256:" and the sum, or "git:" and the id under which git stores the content.
        length: its bytes; a limit of 256 MB where the length is not known.
        mirrors: addresses, in the order in which they are tried.
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
    """One of the forms in which a data set is published; `reader` is a name in `doublecv.lab.data.readers.READERS`."""

    reader: Literal["idx", "npz", "chardata"]
    files: tuple[PublishedFile, ...]
    train_images: int
    test_images: int


@dataclass(frozen=True)
class ImageSet:
    """A data set of files.

    Attributes:
        train: the number of training images to train on; those after them are for validation.
        forms: the forms in which it is published, the preferred one first; the last has public addresses.
        shuffle: whether the training images are shuffled before the split, as they must be if stored by class.
        system_folder: where a package of the operating system keeps it.
        name: its name on the command line.
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
