"""The catalogue of data sets: their sizes, checksums and public addresses, which are in catalogue.toml."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from doublecv.lab.data.readers import DIGITS_SPLIT


class Checksum(NamedTuple):
    """A checksum of a content: its sha256, or the id under which git stores it."""

    kind: Literal["sha256", "git blob"]
    value: str

    def of(self, content: bytes) -> Checksum:
        """Return the checksum of the same kind of a content."""
        if self.kind == "sha256":
            return Checksum(self.kind, hashlib.sha256(content).hexdigest())
        header = f"blob {len(content)}\0".encode()
        return Checksum(self.kind, hashlib.sha1(header + content, usedforsecurity=False).hexdigest())

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


@dataclass(frozen=True)
class PublishedFile:
    """A file by its unpacked content, which is the same on every mirror; the gzip wrapper around it is not.

    `bytes` is None if the length is not known. `mirrors` are addresses in the order in which they are tried.
    """

    name: str
    checksum: Checksum
    bytes: int | None = None
    mirrors: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        """The names under which it may be stored, unpacked and packed."""
        return self.name, f"{self.name}.gz"

    @property
    def limit(self) -> int:
        """The largest length that is read: the file's own, or 256 MB where it is not known."""
        return 1 << 28 if self.bytes is None else self.bytes


@dataclass(frozen=True)
class Form:
    """One of the forms in which a data set is published; `reader` is a name in `doublecv.lab.data.readers.READERS`."""

    reader: Literal["idx", "npz", "chardata"]
    files: tuple[PublishedFile, ...]
    train_images: int
    test_images: int

    @property
    def names(self) -> str:
        """The names of its files, for messages."""
        return " and ".join(file.name for file in self.files)


@dataclass(frozen=True)
class ImageSet:
    """A data set of files.

    Attributes:
        height: pixels per column.
        width: pixels per row.
        train: the number of training images to train on; those after them are for validation.
        forms: the forms in which it is published, the preferred one first.
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

    @property
    def downloadable(self) -> Form:
        """The first form that has public addresses."""
        return next(form for form in self.forms if all(file.mirrors for file in form.files))


def _read() -> dict[str, ImageSet]:
    text = files(__package__).joinpath("catalogue.toml").read_bytes()
    described = msgspec.toml.decode(text)
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
