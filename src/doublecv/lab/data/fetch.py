"""Find a data set's files or download them, verify them, and split the images.

Downloads go through pooch, which names a file only after its checksum matched. Our own are the mirrors, git's
checksums, files that are packed on one mirror and not on another, and the limits: no file is read, downloaded or
unpacked beyond the length that was published.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import platformdirs

from doublecv.lab.common.errors import InputError, unknown_name
from doublecv.lab.data import catalogue
from doublecv.lab.data.catalogue import SETS, BrokenFile, Dataset, Form, ImageSet, PublishedFile

VARIABLE = "DOUBLECV_DATA"
WRAPPER = 1 << 20
"""The bytes by which a packed file may be longer than its content."""

SECONDS_WITHOUT_A_BYTE = 30
CHUNK_BYTES = 1 << 16


class DownloadError(InputError):
    """Report that no mirror served the file, and what each of them did."""


class Found(NamedTuple):
    """The files of a data set, in the order in which its form names them."""

    form: Form
    paths: tuple[Path, ...]


def load(name: str, directory: Path | None = None) -> Dataset:
    """Return the data set of that name, from `directory` or another folder, or downloaded if it is nowhere."""
    if name == "digits":
        return catalogue.read_digits()
    if name not in SETS:
        raise unknown_name("data set", str(name), ("digits", *SETS))
    return load_set(SETS[name], directory, cache_folder())


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
    form, size = found.form, (image_set.height, image_set.width)
    contents = [verified(path, file) for path, file in zip(found.paths, form.files, strict=True)]
    try:
        images = catalogue.read_images(form.reader, contents, [(form.train_images, *size), (form.test_images, *size)])
    except InputError as error:
        raise BrokenFile(f"{' and '.join(map(str, found.paths))}: {error}") from error
    train, test = (part.reshape(len(part), -1) for part in images)
    if image_set.shuffle:
        train = catalogue.shuffled(train)
    return Dataset(image_set.name, *size, train[: image_set.train], train[image_set.train :], test)


def verified(path: Path, file: PublishedFile) -> bytes:
    """Return the unpacked content of the file at `path`, or raise a `BrokenFile`."""
    if (stored := path.stat().st_size) > file.length + WRAPPER:
        raise _broken(str(path), file, f"{stored} bytes")
    return _verified(path.read_bytes(), file, str(path))


def _verified(content: bytes, file: PublishedFile, where: str) -> bytes:
    """Unpack a content, up to the length that was published, and compare its checksum."""
    stored = len(content)
    if content.startswith(b"\x1f\x8b"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                content = packed.read(file.length + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise _broken(where, file, f"{stored} bytes of broken gzip ({error})") from error
        if len(content) > file.length:
            raise _broken(where, file, f"{stored} bytes of gzip that unpack to more than {file.length}")
    if (found := file.checksum_of(content)) != file.checksum:
        raise _broken(where, file, f"{len(content)} bytes with {found}")
    return content


def _broken(where: str, file: PublishedFile, found: str) -> BrokenFile:
    return BrokenFile(f"{where}: expected at most {file.length} bytes with {file.checksum}, found {found}")


def find(image_set: ImageSet, directory: Path | None, cache: Path) -> Found | None:
    """Return the files in the first folder that has them; only the cache may have some of them, and is completed."""
    cached = cache / image_set.name
    for folder in (*named_folders(image_set, directory), cached):
        forms = [(form, [stored(folder, file) for file in form.files]) for form in image_set.forms]
        for form, paths in forms:
            if all(paths):
                return Found(form, tuple(path for path in paths if path))
        for form, paths in forms:
            if any(paths) and folder != cached:
                missing = folder / form.files[paths.index(None)].name
                there = ", ".join(path.name for path in paths if path)
                raise BrokenFile(f"{missing}: expected it, packed or not, found only {there} there")
    return None


def named_folders(image_set: ImageSet, directory: Path | None) -> list[Path]:
    """Return the folders that are searched before the cache."""
    roots = {"--data-dir": directory, f"${VARIABLE}": os.environ.get(VARIABLE)}
    folders = []
    for called, root in roots.items():
        if root:
            if not (expanded := Path(root).expanduser()).is_dir():
                raise InputError(f"{called} names {root}, which is not a folder")
            folders.append(expanded / image_set.name)
    return folders if image_set.system_folder is None else [*folders, image_set.system_folder]


def cache_folder() -> Path:
    """Return the operating system's folder for what can be downloaded again."""
    return Path(platformdirs.user_cache_dir("doublecv"))


def stored(folder: Path, file: PublishedFile) -> Path | None:
    """Return where the file is in a folder, unpacked or packed."""
    paths = folder / file.name, folder / f"{file.name}.gz"
    return next((path for path in paths if path.is_file()), None)


def download_set(image_set: ImageSet, directory: Path | None, cache: Path) -> Found:
    """Download the missing files of a data set into the cache."""
    folder, form = cache / image_set.name, image_set.forms[-1]
    try:
        return Found(form, tuple(stored(folder, file) or download(file, folder) for file in form.files))
    except DownloadError as error:
        searched = ", ".join(map(str, [*named_folders(image_set, directory), folder]))
        raise DownloadError(
            f"the data set {image_set.name} is not in {searched} and could not be downloaded: {error}; "
            f"put {' and '.join(file.name for file in form.files)} into DIR/{image_set.name} and name DIR with "
            f"--data-dir or ${VARIABLE}"
        ) from error


def download(file: PublishedFile, folder: Path) -> Path:
    """Download a file into a folder, unpacked, from the first mirror that serves what was published."""
    import pooch  # type: ignore[import-untyped]

    pooch.get_logger().setLevel("WARNING")
    known = file.checksum if file.checksum.startswith("sha256:") else None
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

    received, limit, console = bytearray(), file.length + WRAPPER, Console(stderr=True)
    shown = f"{file.name} from {urlsplit(address).hostname}"
    try:
        with requests.get(address, stream=True, timeout=SECONDS_WITHOUT_A_BYTE) as response:
            response.raise_for_status()
            chunks = int(response.headers.get("content-length", 0)) / CHUNK_BYTES or None
            for chunk in track(response.iter_content(CHUNK_BYTES), shown, chunks, console=console, transient=True):
                received += chunk
                if len(received) > limit:
                    raise _broken(address, file, f"more than {limit} bytes")
    except requests.RequestException as error:
        raise DownloadError(f"{address}: {error}") from error
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
