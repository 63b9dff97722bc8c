"""Read and write the files of a run: JSON documents and files of JSON lines, each with a schema and checksums.

A document (config.json, settings.json, sweep.json, bench.json) is one JSON object whose last field, `checksum`, is the
CRC-32 of all its other fields. A file of lines (metrics.jsonl) has one object per line; the `checksum` of a line covers
that line and all lines before it, so that a changed, missing or exchanged line is noticed. Checksums protect against
damage, not against forgery. Files of version 0.1 have none; they are read, and reported as files without checksums.

Every fault is a `DamagedFile`, which names the file, the line, the field, what was found and what was wanted:

>>> from pathlib import Path
>>> print(DamagedFile(Path("metrics.jsonl"), "NaN", "a finite number", line=7, field="train_elbo"))
metrics.jsonl, line 7, field train_elbo: found NaN, wanted a finite number
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias, TypeVar

import msgspec

from doublecv.lab.common.errors import InputError, shortened

CHECKSUM = "checksum"
LARGEST_DOCUMENT = 64_000_000
"""Bytes; a larger document is refused before it is read."""
LONGEST_LINE = 1_000_000
"""Bytes; a longer line is refused."""

Record: TypeAlias = dict[str, Any]
"""One line: `kind`, `step`, `seed`, and numbers, or tables of numbers, by name."""

_SEAL = b', "checksum": "'
_SEAL_LENGTH = len(_SEAL) + len('00000000"}')
_DECODER = msgspec.json.Decoder(dict[str, int | float | str | dict[str, int | float | None] | None])
_PATH = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)

Document = TypeVar("Document")


@dataclass
class _Head:
    """The fields that every line has."""

    kind: str
    step: Annotated[int, msgspec.Meta(ge=0)]
    seed: Annotated[int, msgspec.Meta(ge=0)]


class DamagedFile(InputError):
    """A file of a run that is not what the laboratory wrote."""

    def __init__(self, path: Path, found: str, wanted: str, line: int | None = None, field: str = "") -> None:
        where = f"{path}{'' if line is None else f', line {line}'}{field and f', field {field}'}"
        super().__init__(f"{where}: found {found}, wanted {wanted}")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without following a link and without waiting for a pipe."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():
        raise DamagedFile(path, "a symbolic link", "a regular file")
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DamagedFile(path, "something that is not a file", "a regular file")
    return file


def seal_document(content: Mapping[str, Any]) -> bytes:
    """Return a document with its checksum, as it is written to a file."""
    plain = json.loads(json.dumps(content))
    return (json.dumps(plain | {CHECKSUM: _document_checksum(plain)}, indent=2) + "\n").encode()


def read_document(path: Path, schema: type[Document]) -> Document:
    """Read a document and convert it to `schema`, a dataclass or another type that msgspec knows."""
    return convert(path, read_fields(path), schema)


def read_fields(path: Path, sealed: bool = False) -> dict[str, Any]:
    """Read a document as a dictionary, with its checksum compared and removed.

    A document without a checksum, as version 0.1 wrote them, is read if it need not be `sealed`.
    """
    with open_regular(path) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise DamagedFile(path, f"more than {LARGEST_DOCUMENT:,} bytes", "a smaller file")
    try:
        found = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        place = re.search(r"\(byte (\d+)\)", str(error))
        line = content.count(b"\n", 0, int(place[1])) + 1 if place else None
        raise DamagedFile(path, f"something else ({shortened(str(error))})", "a JSON object", line) from error
    if CHECKSUM in found:
        given = found.pop(CHECKSUM)
        if given != (computed := _document_checksum(found)):
            raise DamagedFile(path, f"a content with checksum {computed}", shown(given), None, CHECKSUM)
    elif sealed:
        raise DamagedFile(path, "nothing", "a checksum", None, CHECKSUM)
    return found


def file_checksum(path: Path) -> str:
    """Return the CRC-32 of a file that has no checksum of its own; the run's config.json holds it."""
    with open_regular(path) as file:
        checksum = 0
        while part := file.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
    return f"{checksum:08x}"


def has_checksum(path: Path) -> bool:
    """Return whether a document, or the first line of a file of lines, carries a checksum."""
    with open_regular(path) as file:
        start = file.read(LARGEST_DOCUMENT) if path.suffix == ".json" else file.readline(LONGEST_LINE)
    return b'"checksum": "' in start


def convert(path: Path, found: Any, schema: type[Document], within: str = "", line: int | None = None) -> Document:
    """Convert what was read from `path` to `schema`; `within` names the field that holds it."""
    try:
        return msgspec.convert(found, schema)
    except msgspec.ValidationError as error:
        sentence, place = _PATH.fullmatch(str(error)).groups()  # type: ignore[union-attr]
        value = shown(_at(found, place or ""))
        wanted = sentence.partition(", got")[0].removeprefix("Expected ").replace("`", "")
        missing = re.fullmatch(r"Object missing required field (.*)", wanted)
        if missing:
            value, wanted = "nothing", "a value"
        if wanted.startswith("Invalid enum value"):
            wanted = "a value that the laboratory knows"
        name = ".".join(part for part in (within, place, missing and missing[1]) if part)
        raise DamagedFile(path, value, wanted, line, name) from error


def seal_line(record: Mapping[str, Any], checksum: int, sealed: bool = True) -> tuple[bytes, int]:
    """Return the line of a record and the checksum up to it, which the next line needs; it is 0 before the first.

    A number that is not finite is written as null. In a file that version 0.1 began the lines are not sealed.
    """
    text = json.dumps({name: _finite(value) for name, value in record.items()})[:-1].encode()
    checksum = zlib.crc32(text, checksum)
    return b'%s%s%08x"}\n' % (text, _SEAL, checksum) if sealed else text + b"}\n", checksum


@dataclass
class LineReader:
    """Iterate over the records of a file of lines, one at a time and in little memory.

    Args:
        path: the file.
        length: the bytes to read; all if None.
        unfinished: whether the last line may be incomplete, as in an unfinished run; it is then left out.

    After the last record `checksum` is that of all lines, and `sealed` says whether the lines carry checksums.
    """

    path: Path
    length: int | None = None
    unfinished: bool = False
    checksum: int = field(default=0, init=False)
    sealed: bool = field(default=False, init=False)

    def __iter__(self) -> Iterator[Record]:
        self.checksum, left = 0, self.length
        with open_regular(self.path) as file:
            number = 0
            while line := file.readline(LONGEST_LINE if left is None else min(left, LONGEST_LINE)):
                number += 1
                left = None if left is None else left - len(line)
                if not line.endswith(b"\n"):
                    if self.unfinished and len(line) < LONGEST_LINE:
                        return
                    raise DamagedFile(self.path, "the end of the file", "the rest of the line", number)
                yield self._record(line[:-1], number)

    def _record(self, line: bytes, number: int) -> Record:
        text, seal = line[:-_SEAL_LENGTH], line[-_SEAL_LENGTH:]
        sealed = seal.startswith(_SEAL)
        if number == 1:
            self.sealed = sealed
        if self.sealed:
            self.checksum = zlib.crc32(text, self.checksum)
            wanted = b'%s%08x"}' % (_SEAL, self.checksum)
            if seal != wanted:
                what = "the checksum of another text" if sealed else "no checksum"
                raise DamagedFile(self.path, what, f"{self.checksum:08x}", number, CHECKSUM)
            line = text + b"}"
        try:
            record = _DECODER.decode(line)
            msgspec.convert(record, _Head)
            if [type(value) for value in record.values()].count(str) == 1:
                return record
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        raise self._fault(line, number)

    def _fault(self, line: bytes, number: int) -> DamagedFile:
        """Find out what is wrong with a line; the slow way, taken once."""
        try:
            found = json.loads(line)
            convert(self.path, found, dict, line=number)
            convert(self.path, found, _Head, line=number)
        except DamagedFile as error:
            return error
        except (ValueError, RecursionError):
            return DamagedFile(self.path, shown(line.decode(errors="replace")), "a JSON object", number)
        for name, value in found.items():
            for key, one in value.items() if isinstance(value, dict) else [("", value)]:
                if name != "kind" and one is not None and (type(one) not in (int, float) or not abs(one) < 1e300):
                    place = f"{name}.{key}" if key else name
                    return DamagedFile(self.path, shown(one), "a finite number", number, place)
        return DamagedFile(self.path, shown(line.decode(errors="replace")), "a record", number)


def shown(value: Any) -> str:
    """Return a value as JSON, for a message."""
    try:
        return shortened(json.dumps(value))
    except (TypeError, ValueError):
        return shortened(repr(value))


def _document_checksum(content: Any) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


def _at(found: Any, place: str) -> Any:
    """Follow a path of msgspec's, such as `settings.estimators[0]`, as far as it names its steps."""
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place.replace("[...]", "")):
        try:
            found = found[int(index) if index else key]
        except (LookupError, TypeError):
            break
    return found
