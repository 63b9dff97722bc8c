"""How a data set is published: its files, what they must contain, and where they are to be had."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import UInt8

Images: TypeAlias = "UInt8[np.ndarray, 'images height width']"


class Checksum(NamedTuple):
    """What identifies a content: its sha256, or the id under which git stores it."""

    kind: Literal["sha256", "git blob"]
    value: str

    def matches(self, content: bytes) -> bool:
        """Whether the content is the one meant."""
        return self.of(content) == self

    def of(self, content: bytes) -> Checksum:
        """The checksum of the same kind of another content."""
        if self.kind == "sha256":
            return Checksum(self.kind, hashlib.sha256(content).hexdigest())
        header = f"blob {len(content)}\0".encode()
        return Checksum(self.kind, hashlib.sha1(header + content, usedforsecurity=False).hexdigest())

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


@dataclass(frozen=True)
class PublishedFile:
    """A file by its unpacked content, which is the same on every mirror; the gzip wrapper around it is not."""

    name: str
    checksum: Checksum
    bytes: int | None
    """Of the unpacked content, where it is known."""
    mirrors: tuple[str, ...] = ()
    """Addresses, the first tried first."""

    @property
    def names(self) -> tuple[str, str]:
        """The names under which it may be stored, unpacked or not."""
        return self.name, f"{self.name}.gz"


@dataclass(frozen=True)
class Form:
    """One of the forms in which a set is published, and how its training and test images are read from it."""

    files: tuple[PublishedFile, ...]
    read: Callable[[Sequence[bytes]], tuple[Images, Images]]
    train_images: int
    test_images: int

    @property
    def names(self) -> str:
        """Its files in words."""
        return " and ".join(file.name for file in self.files)


@dataclass(frozen=True)
class ImageSet:
    """A data set: its forms, the one preferred first, and how its training images are split."""

    name: str
    height: int
    width: int
    train: int
    """So many of the training images are trained on; those after them are for validation."""
    shuffle: bool
    """Whether the training images are shuffled before they are split: a set that is stored in classes must be."""
    forms: tuple[Form, ...]
    system_folder: Path | None = None
    """Where a package of the operating system keeps it."""

    @property
    def downloadable(self) -> Form:
        """The form that has a public home."""
        return next(form for form in self.forms if all(file.mirrors for file in form.files))
