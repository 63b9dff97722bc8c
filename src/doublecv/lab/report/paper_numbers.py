"""The paper's numbers by where they stand."""

from __future__ import annotations

from doublecv.lab.report import paper
from doublecv.lab.report.cells import Place
from doublecv.lab.report.content import PaperNumbers
from doublecv.lab.report.statistics import Estimate


def paper_numbers() -> PaperNumbers:
    """All of them."""
    return PaperNumbers(
        elbos={
            Place(cell.likelihood, cell.samples, cell.dataset, cell.network, cell.estimator): Estimate(
                cell.train_elbo, cell.standard_error
            )
            for cell in paper.train_elbos()
        },
        seconds={cell.estimator: cell.seconds for cell in paper.seconds_per_step()},
    )
