"""`doublecv data`: which data sets are here, and whether they are intact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from doublecv.lab.common.errors import InputError
from doublecv.lab.common.options import Option, ProgramSettings
from doublecv.lab.common.tables import Table, words
from doublecv.lab.data.catalogue import SETS, ImageSet
from doublecv.lab.data.fetch import BrokenFile, cache_folder, find, read
from doublecv.lab.data.readers import read_digits


@dataclass(frozen=True)
class DataSettings(ProgramSettings):
    """List the data sets, where each was found, and whether it is what was published.

    Each is searched for in --data-dir, in $DOUBLECV_DATA, where Debian's package puts it, and in the user's cache. A
    data set that is in none of them is downloaded when it is first used.

    Example: doublecv data --data-dir images
    """

    data_dir: Annotated[Path | None, Option(metavar="DIR")] = None
    """The folder that holds the data sets, each in a folder of its own name."""


def main(settings: DataSettings) -> None:
    """Print the table, and below it what is wrong with the data sets that are broken."""
    from rich.console import Console

    found = [digits_status(), *(set_status(each, settings.data_dir, cache_folder()) for each in SETS.values())]
    rows = [{"data set": words(one.name), "state": words(one.state), "where": words(one.where)} for one in found]
    Console().print(Table.of("data", "Data sets", "", rows))
    for one in found:
        if one.problem:
            print(one.problem)


class Status(NamedTuple):
    """A row of the table, and what is wrong if anything is."""

    name: str
    state: str
    where: str
    problem: str = ""


def digits_status() -> Status:
    """Read the digits of scikit-learn."""
    try:
        read_digits()
    except InputError as error:
        return Status("digits", "broken", "scikit-learn", str(error))
    return Status("digits", "intact", "scikit-learn")


def set_status(image_set: ImageSet, directory: Path | None, cache: Path) -> Status:
    """Find a data set and read it as a training run would."""
    name = image_set.name
    try:
        found = find(image_set, directory, cache)
    except BrokenFile as error:
        return Status(name, "incomplete", "", str(error))
    if found is None:
        home = urlsplit(image_set.forms[-1].files[0].mirrors[0]).hostname
        return Status(name, "not here", f"downloaded at first use from {home}")
    first, *others = found.paths
    where = str(first.parent if others else first)
    try:
        read(image_set, found)
    except BrokenFile as error:
        return Status(name, "broken", where, str(error))
    return Status(name, "intact", where)
