"""The catalogue of data sets: their sizes, checksums and public addresses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from doublecv.lab.data.readers import DIGITS_SPLIT, Images, read_chardata, read_idx, read_npz


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

    Attributes:
        name: the name of the unpacked file; with .gz appended, that of the packed one.
        checksum: the checksum of the unpacked content.
        bytes: the length of the unpacked content, or None if it is not known.
        mirrors: addresses, in the order in which they are tried.
    """

    name: str
    checksum: Checksum
    bytes: int | None
    mirrors: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        """The names under which it may be stored."""
        return self.name, f"{self.name}.gz"

    @property
    def limit(self) -> int:
        """The largest length that is read: the file's own, or 256 MB where it is not known."""
        return 1 << 28 if self.bytes is None else self.bytes


@dataclass(frozen=True)
class Form:
    """One of the forms in which a data set is published, and how its training and test images are read from it."""

    files: tuple[PublishedFile, ...]
    read: Callable[[Sequence[bytes]], tuple[Images, Images]]
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
        name: its name on the command line.
        height: pixels per column.
        width: pixels per row.
        train: the number of training images to train on; those after them are for validation.
        shuffle: whether the training images are shuffled before the split, as they must be if stored by class.
        forms: the forms in which it is published, the preferred one first.
        system_folder: where a package of the operating system keeps it.
    """

    name: str
    height: int
    width: int
    train: int
    shuffle: bool
    forms: tuple[Form, ...]
    system_folder: Path | None = None

    @property
    def downloadable(self) -> Form:
        """The first form that has public addresses."""
        return next(form for form in self.forms if all(file.mirrors for file in form.files))


def _idx_set(name: str, sha256: tuple[str, str], homes: tuple[str, ...], system_folder: Path | None = None) -> ImageSet:
    """Return a data set of 28x28 images in two idx files; the files of labels are not needed."""
    files = tuple(
        PublishedFile(file, Checksum("sha256", value), 16 + count * 784, tuple(f"{home}/{file}.gz" for home in homes))
        for file, count, value in zip(
            ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"), (60_000, 10_000), sha256, strict=True
        )
    )
    form = Form(files, lambda contents: (read_idx(contents[0]), read_idx(contents[1])), 60_000, 10_000)
    return ImageSet(name, 28, 28, 50_000, shuffle=False, forms=(form,), system_folder=system_folder)


MNIST = _idx_set(
    "mnist",
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
)

FASHION_MNIST = _idx_set(
    "fashion-mnist",
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
    ),
    Path("/usr/share/datasets/fashion-mnist"),
)

OMNIGLOT = ImageSet(
    "omniglot",
    height=28,
    width=28,
    train=23_000,
    shuffle=True,
    forms=(
        Form(
            (
                PublishedFile(
                    "omniglot28.npz",
                    Checksum("sha256", "19778bad86546bf11088ab5263f70d87e97234c262201b7a6bd1badde6437c45"),
                    bytes=5_106_232,
                ),
            ),
            lambda contents: read_npz(contents[0]),
            train_images=24_345,
            test_images=8_115,
        ),
        # The file of Burda, Grosse and Salakhutdinov (2016), of which only git's id is known.
        Form(
            (
                PublishedFile(
                    "chardata.mat",
                    Checksum("git blob", "016a3536ffe5e1d38e42563a18d7a78bfaf643ec"),
                    bytes=None,
                    mirrors=("https://github.com/yburda/iwae/raw/master/datasets/OMNIGLOT/chardata.mat",),
                ),
            ),
            lambda contents: read_chardata(contents[0], height=28, width=28),
            train_images=24_345,
            test_images=8_070,
        ),
    ),
)

SETS = {image_set.name: image_set for image_set in (MNIST, FASHION_MNIST, OMNIGLOT)}

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
