"""Find a data set's files or download them, verify them, and split the images.

Downloads go through pooch, which names a file only after its checksum matched. Our own are the mirrors, git's
checksums, files that are packed on one mirror and not on another, and the limits: no file is read, downloaded or
unpacked beyond the length that was published.
"""

from __future__ import annotations

import gzip
import io
import os
import time
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import platformdirs

from doublecv.lab.common.errors import InputError, unknown_name
from doublecv.lab.data.catalogue import NAMES, SETS, Form, ImageSet, PublishedFile
from doublecv.lab.data.readers import READERS, Dataset, read_digits, shuffled

VARIABLE = "DOUBLECV_DATA"
GZIP_MAGIC = b"\x1f\x8b"
WRAPPER = 1 << 20
"""The bytes by which a packed file may be longer than its content."""

SECONDS_WITHOUT_A_BYTE = 30
CHUNK_BYTES = 1 << 16
STALE_SECONDS = 24 * 60 * 60


class BrokenFile(InputError):
    """Report a file that is not what was published: its name, what was expected and what was found."""


class DownloadError(InputError):
    """Report that no mirror served the file, and what each of them did."""


class Found(NamedTuple):
    """The files of a data set, in the order in which its form names them."""

    form: Form
    paths: tuple[Path, ...]


def load(name: str, directory: Path | None = None) -> Dataset:
    """Return the data set of that name, downloading it if it is nowhere else.

    The folders that are searched are `directory`, $DOUBLECV_DATA, that of the operating system's package, and the
    user's cache, in this order.
    """
    if name not in NAMES:
        raise unknown_name("data set", str(name), NAMES)
    return read_digits() if name == "digits" else load_set(SETS[name], directory, cache_folder())


def load_set(image_set: ImageSet, directory: Path | None, cache: Path) -> Dataset:
    """Find a data set or download it into the cache; verify, read and split it."""
    found = find(image_set, directory, cache) or download_set(image_set, directory, cache)
    try:
        return read(image_set, found)
    except BrokenFile as error:
        if found.paths[0].is_relative_to(cache):
            raise BrokenFile(f"{error}; remove the file and it will be downloaded again") from error
        raise


def read(image_set: ImageSet, found: Found) -> Dataset:
    """Verify the files of a data set and split their images."""
    form, where = found.form, " and ".join(map(str, found.paths))
    size = image_set.height, image_set.width
    contents = [verified(path, file) for path, file in zip(found.paths, form.files, strict=True)]
    try:
        train, test = READERS[form.reader](contents, size)
    except InputError as error:
        raise BrokenFile(f"{where}: {error}") from error
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


def verified(path: Path, file: PublishedFile) -> bytes:
    """Return the unpacked content of the file at `path`, or raise a `BrokenFile`."""
    if (stored := path.stat().st_size) > file.limit + WRAPPER:
        raise _broken(str(path), file, f"{stored} bytes")
    return _verified(path.read_bytes(), file, str(path))


def _verified(content: bytes, file: PublishedFile, where: str) -> bytes:
    """Unpack a content, up to the length that was published, and compare its checksum."""
    stored = len(content)
    if content.startswith(GZIP_MAGIC):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                content = packed.read(file.limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise _broken(where, file, f"{stored} bytes of broken gzip ({error})") from error
        if len(content) > file.limit:
            raise _broken(where, file, f"{stored} bytes of gzip that unpack to more than {file.limit}")
    if (found := file.checksum.of(content)) != file.checksum:
        raise _broken(where, file, f"{len(content)} bytes with {found}")
    return content


def _broken(where: str, file: PublishedFile, found: str) -> BrokenFile:
    expected = str(file.checksum) if file.bytes is None else f"{file.bytes} bytes with {file.checksum}"
    return BrokenFile(f"{where}: expected {expected}, found {found}")


def find(image_set: ImageSet, directory: Path | None, cache: Path) -> Found | None:
    """Return the files in the first folder that has them; a folder with only some of them is an error.

    In the cache some may be missing: an interrupted download is completed.
    """
    cached = cache / image_set.name
    for folder in (*named_folders(image_set, directory), cached):
        forms = [(form, [stored(folder, file) for file in form.files]) for form in image_set.forms]
        for form, paths in forms:
            if all(paths):
                return Found(form, tuple(path for path in paths if path))
        for form, paths in forms:
            if any(paths) and folder != cached:
                missing = form.files[paths.index(None)]
                there = ", ".join(path.name for path in paths if path)
                wanted = " or ".join(missing.names)
                raise BrokenFile(f"{folder / missing.name}: expected {wanted}, found only {there} there")
    return None


def named_folders(image_set: ImageSet, directory: Path | None) -> list[Path]:
    """Return the folders that are searched before the cache."""
    roots = [] if directory is None else [("--data-dir", Path(directory))]
    if value := os.environ.get(VARIABLE):
        roots.append((f"${VARIABLE}", Path(value).expanduser()))
    for called, root in roots:
        if not root.is_dir():
            raise InputError(f"{called} names {root}, which is not a folder")
    folders = [root / image_set.name for _, root in roots]
    return folders if image_set.system_folder is None else [*folders, image_set.system_folder]


def cache_folder() -> Path:
    """Return the operating system's folder for what can be downloaded again."""
    return Path(platformdirs.user_cache_dir("doublecv"))


def stored(folder: Path, file: PublishedFile) -> Path | None:
    """Return where the file is in a folder, packed or not."""
    return next((folder / name for name in file.names if (folder / name).is_file()), None)


def download_set(image_set: ImageSet, directory: Path | None, cache: Path) -> Found:
    """Download the missing files of a data set into the cache."""
    folder, form = cache / image_set.name, image_set.downloadable
    try:
        paths = [stored(folder, file) or download(file, folder) for file in form.files]
    except DownloadError as error:
        searched = ", ".join(map(str, [*named_folders(image_set, directory), folder]))
        wanted = ", or ".join(form.names for form in image_set.forms)
        raise DownloadError(
            f"the data set {image_set.name} is not in {searched} and could not be downloaded: {error}; "
            f"put {wanted} into DIR/{image_set.name} and name DIR with --data-dir or ${VARIABLE}"
        ) from error
    return Found(form, tuple(paths))


def download(file: PublishedFile, folder: Path) -> Path:
    """Download a file into a folder, unpacked, from the first mirror that serves what was published."""
    import pooch  # type: ignore[import-untyped]

    pooch.get_logger().setLevel("WARNING")
    known = f"sha256:{file.checksum.value}" if file.checksum.kind == "sha256" else None
    _remove_stale(folder)
    failures = []
    for address in file.mirrors:
        mirror = pooch.create(path=folder, base_url="", registry={file.name: known}, urls={file.name: address})
        try:
            return Path(mirror.fetch(file.name, downloader=partial(_get, file=file)))
        except (BrokenFile, DownloadError) as error:
            failures.append(str(error))
    raise DownloadError("; ".join(failures))


def _get(address: str, output: str, _: Any, file: PublishedFile) -> None:
    """Download an address, unpack and verify it in memory, and write it where pooch wants it."""
    import requests
    from rich.console import Console
    from rich.progress import track

    received, limit, promised = bytearray(), file.limit + WRAPPER, 0
    shown = f"{file.name} from {urlsplit(address).hostname}"
    try:
        with requests.get(address, stream=True, timeout=SECONDS_WITHOUT_A_BYTE) as response:
            response.raise_for_status()
            promised = int(response.headers.get("content-length", 0))
            chunks = response.iter_content(CHUNK_BYTES)
            console = Console(stderr=True)
            for chunk in track(chunks, shown, promised / CHUNK_BYTES or None, console=console, transient=True):
                received += chunk
                if len(received) > limit:
                    raise _broken(address, file, f"more than {limit} bytes")
    except requests.HTTPError as error:
        raise DownloadError(str(error)) from error
    except requests.RequestException as error:
        interrupted = f"expected {promised} bytes, found {len(received)} before the connection broke"
        raise DownloadError(f"{address}: {interrupted if promised else _innermost(error)}") from error
    content = _verified(bytes(received), file, address)
    try:
        with open(output, "wb") as partial_file:
            partial_file.write(content)
            # The name must not be on disk before the bytes are.
            partial_file.flush()
            os.fsync(partial_file.fileno())
    except OSError as error:
        error.filename = error.filename or output
        raise


def _innermost(error: BaseException) -> BaseException:
    """Return the error at the root of nested ones, which says in few words what they say in many."""
    held = [part for part in (getattr(error, "reason", None), *error.args) if isinstance(part, BaseException)]
    return _innermost(held[0]) if held else error


def _remove_stale(folder: Path) -> None:
    """Remove pooch's temporary files of killed processes; a younger one may belong to a running process."""
    for temporary in folder.glob("tmp*"):
        with suppress(FileNotFoundError):
            if time.time() - temporary.stat().st_mtime > STALE_SECONDS:
                temporary.unlink()
