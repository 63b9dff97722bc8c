"""`doublecv data`: which data sets are here, and whether they are intact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import tyro
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.content import BrokenFile
from doublecv.lab.data.datasets import SETS
from doublecv.lab.data.digits import load_digits
from doublecv.lab.data.find import cache_folder, find
from doublecv.lab.data.loading import read
from doublecv.lab.data.published import ImageSet


@dataclass(frozen=True)
class DataArguments:
    """List the data sets, where each was found, and whether it is what was published.

    Each is searched in --data-dir, in $DOUBLECV_DATA, where Debian's packages are, and in the user's cache;
    what is in none of them is downloaded when it is first used.

    Example: doublecv data --data-dir images
    """

    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The folder that holds the sets, each in a folder of its own name."""


class Status(NamedTuple):
    """A line of the table, and what is wrong if anything is."""

    name: str
    state: str
    where: str
    problem: str | None = None


def main(arguments: DataArguments) -> None:
    """Print the table, and below it what is wrong with the sets that are broken."""
    lines = [digits_status(), *(set_status(each, arguments.data_dir, cache_folder()) for each in SETS.values())]
    table = Table("data set", "state", Column("where", overflow="fold"))
    for line in lines:
        table.add_row(line.name, line.state, Text(line.where))
    console = Console()
    console.print(table)
    for line in lines:
        if line.problem is not None:
            console.print(line.problem, highlight=False, soft_wrap=True, markup=False)


def digits_status() -> Status:
    """The digits are where scikit-learn is."""
    try:
        load_digits()
    except InputError as error:
        return Status("digits", "broken", "scikit-learn", str(error))
    return Status("digits", "intact", "scikit-learn")


def set_status(image_set: ImageSet, directory: Path | None, cache: Path) -> Status:
    """Find the set, and read it as a training run would."""
    name = image_set.name
    try:
        found = find(image_set, directory, cache)
    except BrokenFile as error:
        return Status(name, "incomplete", "", str(error))
    if found is None:
        home = urlsplit(image_set.downloadable.files[0].mirrors[0]).hostname
        return Status(name, "not here", f"downloaded at first use from {home}")
    first, *others = found.paths
    where = str(first.parent if others else first)
    try:
        read(image_set, found)
    except BrokenFile as error:
        return Status(name, "broken", where, str(error))
    return Status(name, "intact", where)
