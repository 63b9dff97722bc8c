"""What every caption says of the scale of the runs below it."""

from __future__ import annotations

from collections.abc import Collection


def training_scale(steps: Collection[int], seeds: Collection[int], paper_steps: int, paper_seeds: int) -> str:
    """How the runs compare with the paper's in length and number.

    Args:
        steps: the steps of every finished run.
        seeds: for every cell the number of its finished seeds.
        paper_steps: the steps of the paper's runs.
        paper_seeds: the seeds of the paper's cells.

    >>> training_scale([20_000], [2, 2], 1_000_000, 5)
    "20,000 of the paper's 1,000,000 steps, 2 of 5 seeds"
    """
    if not steps or not any(seeds):
        return "no run is finished"
    return f"{_part(steps, paper_steps, 'steps')}, {_part(seeds, paper_seeds, 'seeds', named=False)}"


def toy_scale(iterations: int, paper_iterations: int, seeds: int) -> str:
    """The same for the toy experiment; the paper does not say from how many seeds its curves are.

    >>> toy_scale(2000, 2000, 5)
    "the paper's 2,000 iterations, 5 seeds"
    """
    return f"{_part([iterations], paper_iterations, 'iterations')}, {seeds} seed{'s' if seeds != 1 else ''}"


def _part(counts: Collection[int], paper: int, unit: str, named: bool = True) -> str:
    least, most = min(counts), max(counts)
    counted = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    if least == most == paper:
        return f"the paper's {paper:,} {unit}"
    if most > paper:
        return f"{counted} {unit} (the paper: {paper:,})"
    whose = "the paper's " if named else ""
    return f"{counted} of {whose}{paper:,} {unit}"
