"""What an estimator costs: milliseconds a gradient and a training step, relative to RLOO, in JAX or in PyTorch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from doublecv import estimators
from doublecv.estimators import Estimator
from doublecv.lab.bench.timing import Timing, time_interleaved
from doublecv.lab.common.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from doublecv.lab.bench.problem import Floors, StepsACall, Workloads

BASELINE = "rloo"
"""The estimator that the others are relative to."""

FLOOR = "floor"
"""The line of the matrix products alone."""

NOT_TIMED = frozenset({"r-star"})
"""R* needs the exact mean of f, which a decoder does not have."""


@dataclass(frozen=True)
class BenchSettings:
    """Time every estimator on a VAE with 200 binary latent variables and 784 pixels, batches of 100.

    Example: doublecv bench --estimators double-cv disarm --samples 2
    """

    torch: bool = False
    """Time PyTorch in the place of JAX."""
    estimators: tuple[str, ...] = ()
    """Names of registered estimators; all if none is given. RLOO is always timed."""
    samples: tuple[int, ...] = (2, 4)
    """The numbers of samples K."""
    rounds: int = 7
    """Rounds of measurement; what is reported are medians over them."""
    calls: int = 10
    """Calls of each estimator in a round, one estimator after the other; the fastest is the round's time."""
    threads: int | None = None
    """The threads of PyTorch; its own choice if left out."""
    out: Path | None = None
    """A JSON file for the times of all rounds."""

    def check(self) -> None:
        """Raise an `InputError` where a setting cannot work."""
        for field in ("rounds", "calls"):
            if (value := getattr(self, field)) < 1:
                raise InputError(f"{field} must be at least 1, got {value}")
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}")
        if not self.samples:
            raise InputError("samples must be one number at least, got none")
        for name in self.estimators:
            if name not in estimators.names():
                raise InputError(f"estimators must be among {', '.join(estimators.names())}; got {name!r}")
            if name in NOT_TIMED:
                raise InputError(f"estimators cannot include {name!r}: it needs the exact mean of f")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        workload: "gradient" for the gradient of the expectation alone, "step" for a whole training step.
        baseline_samples: the K of RLOO, which the line is relative to.
        estimator: the estimator's name in the registry, or "floor" for the matrix products alone.
        samples: the estimator's own K: 1 for REBAR and RELAX, as in the paper.
        evaluations: the number of points at which one estimate evaluates f.
        milliseconds: the median over the rounds.
        ratio: the median over the rounds of the time relative to that of RLOO in the same round.
        floor_ratio: the same relative to the floor; None where no floor was timed.
        rounds: the milliseconds of every round.
    """

    workload: str
    baseline_samples: int
    estimator: str
    samples: int
    evaluations: int
    milliseconds: float
    ratio: float
    floor_ratio: float | None
    rounds: tuple[float, ...]


def main(settings: BenchSettings) -> None:
    """Measure, print the table and write the JSON file."""
    from rich.console import Console

    settings.check()
    library, workloads, floors, steps_a_call = _library(settings)
    rows = measure(settings, workloads, floors, steps_a_call)
    Console().print(table(rows, library))
    if settings.out is not None:
        document = {
            "library": library,
            "rounds": settings.rounds,
            "calls": settings.calls,
            "rows": [*map(asdict, rows)],
        }
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        settings.out.write_text(json.dumps(document, indent=2) + "\n")


def measure(settings: BenchSettings, workloads: Workloads, floors: Floors, steps_a_call: StepsACall) -> list[Row]:
    """The rows of the table; the estimators of one workload and one K are timed in turn, call by call."""
    rows = []
    for workload, make_call in workloads.items():
        for samples in settings.samples:
            chosen = _chosen(settings.estimators, samples)
            calls = {name: make_call(estimator) for name, estimator in chosen.items()}
            if workload in floors:
                calls[FLOOR] = floors[workload](samples)
            timings = time_interleaved(calls, settings.rounds, settings.calls, steps_a_call.get(workload, 1))
            rows += [_row(workload, samples, name, chosen.get(name), timings) for name in timings]
    return rows


def table(rows: list[Row], library: str) -> Table:
    """The rows as a table for the terminal."""
    from rich import box
    from rich.table import Table

    drawn = Table(
        title=f"milliseconds in {library}",
        caption="medians over rounds; gradient: of the expectation alone; step: a whole step of training; "
        "floor: the step's matrix products alone",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("workload", "K", "estimator"):
        drawn.add_column(heading, no_wrap=True)
    for heading in ("evals\nof f", "ms", "/ RLOO", "/ floor"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    before = rows[0]
    for row in rows:
        if (row.workload, row.baseline_samples) != (before.workload, before.baseline_samples):
            drawn.add_section()
        before = row
        drawn.add_row(
            row.workload,
            str(row.samples),
            row.estimator,
            str(row.evaluations) if row.evaluations else "",
            f"{row.milliseconds:.2f}",
            f"{row.ratio:.2f}",
            f"{row.floor_ratio:.2f}" if row.floor_ratio is not None else "",
        )
    return drawn


def _library(settings: BenchSettings) -> tuple[str, Workloads, Floors, StepsACall]:
    if settings.torch:
        import torch

        from doublecv.lab.bench import torch as bench_torch

        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads", bench_torch.workloads(), {}, {}
    import jax

    from doublecv.lab.bench import jax as bench_jax
    from doublecv.lab.bench import training as bench_training

    floors, steps_a_call = {"step": bench_training.floor}, {"step": bench_training.STEPS}
    return f"JAX {jax.__version__} on {jax.default_backend()}", bench_jax.workloads(), floors, steps_a_call


def _chosen(given: tuple[str, ...], samples: int) -> dict[str, Estimator]:
    """RLOO and the chosen estimators, as far as they exist for that number of samples."""
    chosen = {}
    for name in dict.fromkeys((BASELINE, *(given or estimators.names()))):
        if name in NOT_TIMED:
            continue
        try:
            estimator = estimators.make(name, samples=samples)
            least = estimator.minimum_samples
            chosen[name] = estimators.make(name, samples=least) if estimator.relaxed_points else estimator
        except ValueError as error:
            if name in given or name == BASELINE:
                raise InputError(f"samples do not fit the estimator {name!r}: {error}") from error
    return chosen


def _row(
    workload: str, baseline_samples: int, name: str, estimator: Estimator | None, timings: dict[str, Timing]
) -> Row:
    timing = timings[name]
    return Row(
        workload,
        baseline_samples,
        name,
        estimator.samples if estimator is not None else baseline_samples,
        estimator.evaluations if estimator is not None else 0,
        timing.median,
        timing.relative_to(timings[BASELINE]),
        timing.relative_to(timings[FLOOR]) if FLOOR in timings else None,
        timing.milliseconds,
    )


if __name__ == "__main__":
    from doublecv.lab.cli import main as doublecv

    doublecv(["bench"])
