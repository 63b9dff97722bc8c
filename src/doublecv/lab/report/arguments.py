"""What `doublecv report` takes. No JAX here: its help comes at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ReportArguments:
    """Put the numbers of a sweep beside the paper's: a page to look at, and tables as CSV, LaTeX and Markdown.

    The page is one file that opens from disk and asks nothing of any network. All go into DIR/report; an older report
    there is replaced. A sweep that is not finished has a report as well, with the runs that are.

    Example: doublecv report reproduction
    """

    folder: Annotated[Path, tyro.conf.arg(metavar="DIR"), tyro.conf.Positional]
    """The folder of a sweep, as doublecv reproduce makes it."""
