"""`make demo`: the paper's claim in half a minute."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from doublecv.lab.toy_command import run_with_progress
from doublecv.lab.toy_figures import write_overview
from doublecv.lab.toy_settings import ToySettings
from doublecv.lab.toy_table import table

FOLDER = Path("demo")

TOY = ToySettings(estimators=("rloo", "disarm", "double-cv"), seeds=2, every=20)


def main() -> None:
    """The toy comparison in short form."""
    FOLDER.mkdir(exist_ok=True)
    toy(Console())


def toy(console: Console) -> None:
    """RLOO, DisARM and Double CV on the toy problem, as a table and a figure."""
    results = run_with_progress(TOY)
    figure = FOLDER / "toy.png"
    write_overview(results, figure)
    console.print(table(results))
    console.print(f"{figure} shows variance, objective and mean probability", highlight=False)


if __name__ == "__main__":
    main()
