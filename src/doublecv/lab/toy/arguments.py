"""What `doublecv toy` takes. No JAX here: its help comes at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from doublecv.lab.toy.settings import ToySettings


@dataclass(frozen=True)
class ToyArguments(ToySettings):
    """Maximise E_q 1/D sum_i (x_i - p0)^2 over D logits with each estimator, and follow its variance.

    The defaults are the setting of Figure 1 of Titsias and Shi (2022).

    Example: doublecv toy --estimators rloo double-cv --dimension 10 --seeds 2 --out toy
    """

    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """A new folder for metrics.csv, config.json and the figures. Without it only the table is printed."""

    @property
    def settings(self) -> ToySettings:
        """The settings without the folder."""
        return ToySettings(**{field.name: getattr(self, field.name) for field in fields(ToySettings)})
