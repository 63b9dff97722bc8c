"""The content of a file, unpacked and verified."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.published import PublishedFile

GZIP_MAGIC = b"\x1f\x8b"


class BrokenFile(InputError):
    """A file that is not what was published; the message names it, what was expected and what was found."""


def is_packed(path: Path) -> bool:
    """Whether the file is wrapped in gzip, by its content: some servers unwrap what is called .gz on the way."""
    with path.open("rb") as file:
        return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def verified(path: Path, file: PublishedFile, called: str | None = None) -> bytes:
    """The unpacked content of the file at `path`, called by that other name in errors, or a BrokenFile."""
    called = called or str(path)
    content = path.read_bytes()
    if content.startswith(GZIP_MAGIC):
        stored = len(content)
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            found = f"{stored} bytes of broken gzip ({error})"
            raise BrokenFile(f"{called}: expected {_expected(file)}, found {found}") from error
    if not file.checksum.matches(content):
        found = f"{len(content)} bytes with {file.checksum.of(content)}"
        raise BrokenFile(f"{called}: expected {_expected(file)}, found {found}")
    return content


def _expected(file: PublishedFile) -> str:
    return str(file.checksum) if file.bytes is None else f"{file.bytes} bytes with {file.checksum}"
