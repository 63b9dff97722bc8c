"""Run `doublecv bench`: time a gradient and a training step of each estimator relative to RLOO, in JAX or PyTorch."""

from __future__ import annotations

from dataclasses import asdict

from doublecv import estimators
from doublecv.estimators import Estimator
from doublecv.lab.bench.problem import Floors, StepsPerCall, Workloads
from doublecv.lab.bench.results import BASELINE, FLOOR, BenchSettings, Row, table, timed
from doublecv.lab.bench.timing import Timing, time_interleaved
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import write_atomically
from doublecv.lab.common.records import seal_document


def main(settings: BenchSettings) -> None:
    """Measure, print the table and write the JSON file."""
    from rich.console import Console

    settings.check()
    if settings.harm:
        from doublecv.lab.bench import harm

        harm.main(settings)
        return
    library, workloads, floors, steps_per_call = _library(settings)
    rows = measure(settings, workloads, floors, steps_per_call)
    Console().print(table(rows, library))
    if settings.out is not None:
        document = {
            "library": library,
            "rounds": settings.rounds,
            "calls": settings.calls,
            "rows": [*map(asdict, rows)],
        }
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(settings.out, seal_document(document))


def measure(settings: BenchSettings, workloads: Workloads, floors: Floors, steps_per_call: StepsPerCall) -> list[Row]:
    """Return the rows of the table; the calls of the estimators of one workload and one K are interleaved."""
    rows = []
    for workload, make_call in workloads.items():
        for samples in settings.samples:
            chosen = _chosen(settings.estimators, samples)
            calls = {name: make_call(estimator) for name, estimator in chosen.items()}
            if workload in floors:
                calls[FLOOR] = floors[workload](samples)
            timings = time_interleaved(calls, settings.rounds, settings.calls, steps_per_call.get(workload, 1))
            rows += [_row(workload, samples, name, chosen.get(name), timings) for name in timings]
    return rows


def _library(settings: BenchSettings) -> tuple[str, Workloads, Floors, StepsPerCall]:
    if settings.torch:
        import torch

        from doublecv.lab.bench import torch as bench_torch

        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads", bench_torch.workloads(), {}, {}
    import jax

    from doublecv.lab.bench import jax as bench_jax

    floors, steps_per_call = {"step": bench_jax.floor}, {"step": bench_jax.STEPS}
    return f"JAX {jax.__version__} on {jax.default_backend()}", bench_jax.workloads(), floors, steps_per_call


def _chosen(given: tuple[str, ...], samples: int) -> dict[str, Estimator]:
    """Return RLOO and the chosen estimators, except those that do not support that number of samples."""
    chosen = {}
    for name in dict.fromkeys((BASELINE, *(given or timed()))):
        try:
            estimator = estimators.make(name, samples=samples)
            # REBAR and RELAX have one sample in the comparison of the paper.
            least = estimator.needs.minimum_samples
            chosen[name] = estimators.make(name, samples=least) if estimator.needs.relaxed_points else estimator
        except ValueError as error:
            if name in given or name == BASELINE:
                raise InputError(f"--samples {samples} does not fit --estimators {name}: {error}") from error
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
