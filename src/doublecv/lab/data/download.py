"""Downloads: a file is there whole and verified under its name, or not at all."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.content import BrokenFile, is_packed, verified
from doublecv.lab.data.published import PublishedFile

SECONDS_WITHOUT_A_BYTE = 30
CHUNK_BYTES = 1 << 16
PARTIAL = ".part"
STALE_SECONDS = 24 * 60 * 60


class DownloadError(InputError):
    """No mirror gave the file; the message says what each of them did."""


class Bar(Protocol):
    """What pooch asks of a progress bar."""

    total: int

    def update(self, amount: int) -> None:
        """So many bytes more."""

    def reset(self) -> None:
        """From the start again."""

    def close(self) -> None:
        """Done."""


def download(file: PublishedFile, folder: Path, bar: Callable[[str], Bar]) -> Path:
    """Get the file into the folder from the first mirror that gives what was published.

    `bar` makes the progress bar of one attempt from its description.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder)
    partial = folder / f".{file.name}.{secrets.token_hex(4)}{PARTIAL}"
    failures = []
    try:
        for address in file.mirrors:
            try:
                _get(address, partial, bar(f"{file.name} from {urlsplit(address).hostname}"))
                verified(partial, file, called=address)
            except (BrokenFile, DownloadError) as error:
                failures.append(str(error))
                continue
            path = folder / file.names[is_packed(partial)]
            partial.replace(path)
            return path
    finally:
        partial.unlink(missing_ok=True)
    raise DownloadError("; ".join(failures))


def _get(address: str, partial: Path, bar: Bar) -> None:
    import pooch  # type: ignore[import-untyped]
    import requests

    # pooch leaves the connection open where a download breaks off.
    responses: list[requests.Response] = []
    with partial.open("wb") as output:
        get = pooch.HTTPDownloader(
            progressbar=bar,
            chunk_size=CHUNK_BYTES,
            timeout=SECONDS_WITHOUT_A_BYTE,
            hooks={"response": lambda response, **_: responses.append(response)},
        )
        try:
            get(address, output, None)
        except requests.HTTPError as error:
            raise DownloadError(str(error)) from error
        except requests.RequestException as error:
            cut = f"expected {bar.total} bytes, found {output.tell()} before the connection broke"
            raise DownloadError(f"{address}: {cut if bar.total else _innermost(error)}") from error
        except OSError as error:
            error.filename = error.filename or str(partial)
            raise
        finally:
            for response in responses:
                response.close()
        # The name must not be on disk before the bytes are.
        output.flush()
        os.fsync(output.fileno())


def _innermost(error: BaseException) -> BaseException:
    """The error that the layers above it hold: it says in few words what they say in many."""
    held = [part for part in (getattr(error, "reason", None), *error.args) if isinstance(part, BaseException)]
    return _innermost(held[0]) if held else error


def _remove_stale(folder: Path) -> None:
    """Remove what a killed process left; a younger partial file may be another process's at work."""
    for partial in folder.glob(f".*{PARTIAL}"):
        with suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > STALE_SECONDS:
                partial.unlink()
