"""Read and write the files of a run: JSON documents and files of JSON lines, each with a schema and checksums.

A document (config.json, settings.json, sweep.json, bench.json) is one JSON object whose last field, `checksum`, is the
CRC-32 of all its other fields. A file of lines (metrics.jsonl) has one object per line; the `checksum` of a line covers
that line and all lines before it, so that a changed, missing or exchanged line is noticed. Checksums protect against
damage, not against forgery. Files of version 0.1 have none; they are read, and reported as files without checksums.

Every fault is a `DamagedFile`, which names the file, the line, the field, what was found and what was wanted:

>>> from pathlib import Path
>>> print(DamagedFile(Path("metrics.jsonl"), "found true, wanted a number", line=7, field="train_elbo"))
metrics.jsonl, line 7, field train_elbo: found true, wanted a number
"""

from __future__ import annotations

import json
import os
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
_DECODER = msgspec.json.Decoder(dict[str, Any])
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NUMBERS = {int, float, type(None)}

Document = TypeVar("Document")


@dataclass
class _Head:
    """The fields that every line has."""

    kind: str
    step: Annotated[int, msgspec.Meta(ge=0)]
    seed: Annotated[int, msgspec.Meta(ge=0)]


class DamagedFile(InputError):
    """A file of a run that is not what the laboratory wrote."""

    def __init__(self, path: Path, fault: str, line: int | None = None, field: str = "") -> None:
        super().__init__(f"{path}{'' if line is None else f', line {line}'}{field and f', field {field}'}: {fault}")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without following a link and without waiting for a pipe."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DamagedFile(path, "found something else, wanted a regular file")
    return file


def seal_document(content: Mapping[str, Any]) -> bytes:
    """Return a document with its checksum, as it is written to a file."""
    plain = json.loads(json.dumps(content))
    return (json.dumps(plain | {CHECKSUM: _document_checksum(plain)}, indent=2) + "\n").encode()


def read_document(path: Path, schema: type[Document]) -> Document:
    """Read a document and convert it to `schema`; its field `sealed`, if it has one, is whether there is a checksum."""
    found, sealed = _read(path)
    return convert(path, found | {"sealed": sealed}, schema)


def read_fields(path: Path, sealed: bool = False) -> dict[str, Any]:
    """Read a document as a dictionary; one without a checksum, as version 0.1 wrote them, if it need not be sealed."""
    found, has_checksum = _read(path)
    if sealed and not has_checksum:
        raise DamagedFile(path, "found nothing, wanted a checksum", field=CHECKSUM)
    return found


def _read(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the fields of a document, and whether they have a checksum, which is compared and removed."""
    with open_regular(path) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise DamagedFile(path, f"found more than {LARGEST_DOCUMENT:,} bytes, wanted a smaller file")
    try:
        found = _DECODER.decode(content)
    except _NOT_JSON as error:
        raise DamagedFile(path, f"wanted a JSON object: {shortened(str(error))}") from error
    if CHECKSUM not in found:
        return found, False
    given = found.pop(CHECKSUM)
    if given != (computed := _document_checksum(found)):
        raise DamagedFile(path, f"found a content with checksum {computed}, wanted {shown(given)}", field=CHECKSUM)
    return found, True


def file_checksum(path: Path) -> str:
    """Return the CRC-32 of a file that has no checksum of its own; the run's config.json holds it."""
    with open_regular(path) as file:
        return f"{zlib.crc32(file.read()):08x}"


def convert(path: Path, found: Any, schema: type[Document], within: str = "", line: int | None = None) -> Document:
    """Convert what was read from `path` to `schema`; `within` names the field that holds it."""
    try:
        return msgspec.convert(found, schema)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        raise DamagedFile(path, fault, line, f"{within}{place.removesuffix('`')}".removeprefix(".")) from error


def seal_line(record: Mapping[str, Any], checksum: int, sealed: bool = True) -> tuple[bytes, int]:
    """Return the line of a record and the checksum up to it, which the next line needs; it is 0 before the first.

    A number that is not finite is written as null. In a file that version 0.1 began the lines are not sealed.
    """
    finite = {name: None if isinstance(one, float) and not isfinite(one) else one for name, one in record.items()}
    text = json.dumps(finite)[:-1].encode()
    checksum = zlib.crc32(text, checksum)
    return b'%s%s%08x"}\n' % (text, _SEAL, checksum) if sealed else text + b"}\n", checksum


@dataclass
class LineReader:
    """Iterate over the records of a file of lines, or of its first `length` bytes, one at a time and in little memory.

    The last line of an `unfinished` run may be incomplete and is then left out. After the last record `checksum` is
    that of all lines, and `sealed` says whether the lines carry checksums.
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
                    raise DamagedFile(self.path, "found the end of the file, wanted the rest of the line", number)
                yield self._record(line[:-1], number)

    def _record(self, line: bytes, number: int) -> Record:
        text, seal = line[:-_SEAL_LENGTH], line[-_SEAL_LENGTH:]
        if number == 1:
            self.sealed = seal.startswith(_SEAL)
        if self.sealed:
            self.checksum = zlib.crc32(text, self.checksum)
            if seal != b'%s%08x"}' % (_SEAL, self.checksum):
                raise DamagedFile(self.path, f"found another, wanted {self.checksum:08x}", number, CHECKSUM)
            line = text + b"}"
        try:
            record: Record = _DECODER.decode(line)
        except _NOT_JSON as error:
            raise DamagedFile(self.path, f"wanted a JSON object: {shortened(str(error))}", number) from error
        convert(self.path, record, _Head, line=number)
        for name, value in record.items():
            numbers = value.values() if type(value) is dict else (value,)
            if name != "kind" and not {type(one) for one in numbers} <= _NUMBERS:
                raise DamagedFile(self.path, f"found {shown(value)}, wanted a number", number, name)
        return record


def shown(value: Any) -> str:
    """Return a value as JSON, for a message."""
    return shortened(json.dumps(value, default=repr))


def _document_checksum(content: Any) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
