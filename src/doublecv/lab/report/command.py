"""`doublecv report`: the report of a sweep on the command line."""

from __future__ import annotations

from doublecv.lab.report import report
from doublecv.lab.report.arguments import ReportArguments


def main(arguments: ReportArguments) -> None:
    """Write the report and print the paths."""
    for path in report.write(arguments.folder):
        print(path)
