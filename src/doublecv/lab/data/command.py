"""`doublecv data`: which data sets are here, and whether they are intact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from doublecv.lab.common.options import Option, ProgramSettings
from doublecv.lab.common.tables import Table, words
from doublecv.lab.data.catalogue import SETS, BrokenFile, ImageSet, read_digits
from doublecv.lab.data.fetch import cache_folder, find, read


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

    found = [set_status(each, settings.data_dir, cache_folder()) for each in (None, *SETS.values())]
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


def set_status(image_set: ImageSet | None, directory: Path | None, cache: Path) -> Status:
    """Find a data set, or the digits of scikit-learn for None, and read it as a training run would."""
    name, where, state = "digits" if image_set is None else image_set.name, "", "incomplete"
    try:
        if image_set is None:
            where, state = "scikit-learn", "broken"
            read_digits()
        elif (found := find(image_set, directory, cache)) is not None:
            first, *others = found.paths
            where, state = str(first.parent if others else first), "broken"
            read(image_set, found)
        else:
            home = urlsplit(image_set.forms[-1].files[0].mirrors[0]).hostname
            return Status(name, "not here", f"downloaded at first use from {home}")
    except BrokenFile as error:
        return Status(name, state, where, str(error))
    return Status(name, "intact", where)
