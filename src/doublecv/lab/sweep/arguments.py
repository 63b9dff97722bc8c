"""What `doublecv reproduce` takes. No JAX here: its help comes at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ReproduceArguments:
    """Carry out the runs behind tables and figures of Titsias and Shi (2022): --list shows which.

    A sweep can be stopped at any moment and goes on when the same command is given again.

    Example: doublecv reproduce table-k2-bernoulli --steps 20000 --seeds 1 2 --only dataset=mnist --out reproduction
    """

    targets: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")] = ()
    """Tables and figures by the names of the list, or `all`."""
    list: bool = False
    """Show the targets, the number of their runs, and the time that they would take here."""
    steps: int | None = None
    """Steps of a training run; without it the paper's 1,000,000. Fewer than 2000 shorten the toy problem as well."""
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """The seeds."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE,...")] = ()
    """A part of the targets: dataset=, likelihood=, network=, samples=, estimator=. Data sets and estimators that the
    paper does not have are taken as well."""
    cluster: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[ADDRESS]")] = None
    """Run on Ray: on the cluster at ADDRESS, or without it on one that is started on this machine."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The folder of the sweep, a new one or one to go on with."""
