"""The command `doublecv report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from doublecv.lab.common.options import Option, ProgramSettings


@dataclass(frozen=True)
class ReportSettings(ProgramSettings):
    """Compare the results of a sweep with the paper's: a web page, and tables as CSV, LaTeX and Markdown.

    The page is one file that opens from disk and requests nothing from any network. All files are written to
    DIR/report; an older report there is replaced. A sweep that is not complete can be reported too: unfinished runs are
    shown as far as they got, and damaged runs are listed with the reason.

    Example: doublecv report reproduction
    """

    folder: Annotated[Path, Option(metavar="DIR", positional=True)]
    """The folder of a sweep, as doublecv reproduce makes it."""


def main(settings: ReportSettings) -> None:
    """Write the report and print the paths."""
    from doublecv.lab.report.render import write

    for path in write(settings.folder):
        print(path)
