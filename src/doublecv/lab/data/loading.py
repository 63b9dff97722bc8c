"""From the name of a set to its images."""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from pathlib import Path

import numpy as np

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.content import BrokenFile, verified
from doublecv.lab.data.dataset import Dataset, shuffled
from doublecv.lab.data.datasets import SETS
from doublecv.lab.data.digits import load_digits
from doublecv.lab.data.download import DownloadError, download
from doublecv.lab.data.find import VARIABLE, Found, cache_folder, find, named_folders, stored
from doublecv.lab.data.published import ImageSet

NAMES = ("digits", *SETS)


def load(name: str, directory: Path | None = None) -> Dataset:
    """The set of that name, found in `directory`/name or wherever else it may be, otherwise downloaded.

    Searched are `directory`, $DOUBLECV_DATA, the operating system's packages and the user's cache, in this order.
    """
    if name not in NAMES:
        close = get_close_matches(str(name), NAMES, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"the sets are {', '.join(NAMES)}"
        raise InputError(f"unknown data set {name!r}; {remedy}")
    return load_digits() if name == "digits" else load_set(SETS[name], directory, cache_folder())


def load_set(image_set: ImageSet, directory: Path | None, cache: Path) -> Dataset:
    """A set of files: found or downloaded into the cache, verified, read and split."""
    found = find(image_set, directory, cache)
    if found is None:
        found = download_set(image_set, directory, cache)
    try:
        return read(image_set, found)
    except BrokenFile as error:
        if found.paths[0].is_relative_to(cache):
            raise BrokenFile(f"{error}; remove the file and it will be downloaded again") from error
        raise


def read(image_set: ImageSet, found: Found) -> Dataset:
    """Verify the files and split what is in them."""
    form, where = found.form, " and ".join(map(str, found.paths))
    contents = [verified(path, file) for path, file in zip(found.paths, form.files, strict=True)]
    try:
        train, test = form.read(contents)
    except InputError as error:
        raise BrokenFile(f"{where}: {error}") from error
    size = (image_set.height, image_set.width)
    for part, images, count in (("training", train, form.train_images), ("test", test, form.test_images)):
        if images.shape != (count, *size) or images.dtype != np.uint8:
            raise BrokenFile(
                f"{where}: expected the {part} images as uint8 of shape {(count, *size)}, "
                f"found {images.dtype} of shape {images.shape}"
            )
    train, test = train.reshape(len(train), -1), test.reshape(len(test), -1)
    if image_set.shuffle:
        train = shuffled(train)
    return Dataset(image_set.name, *size, train[: image_set.train], train[image_set.train :], test)


def download_set(image_set: ImageSet, directory: Path | None, cache: Path) -> Found:
    """Download those of the set's files into the cache that are not there, with a progress bar."""
    from doublecv.lab.data.progress import DownloadBar, download_progress

    folder = cache / image_set.name
    form = image_set.downloadable
    try:
        with download_progress() as progress:
            paths = [
                stored(folder, file) or download(file, folder, partial(DownloadBar, progress)) for file in form.files
            ]
    except DownloadError as error:
        searched = ", ".join(map(str, [*named_folders(image_set, directory), folder]))
        wanted = ", or ".join(form.names for form in image_set.forms)
        raise DownloadError(
            f"the data set {image_set.name} is not in {searched} and could not be downloaded: {error}; "
            f"put {wanted} into DIR/{image_set.name} and name DIR with --data-dir or ${VARIABLE}"
        ) from error
    return Found(form, tuple(paths))
