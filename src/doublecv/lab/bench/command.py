"""Run `doublecv bench`: time a gradient and a training step of each estimator relative to RLOO, in JAX or PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

import numpy as np

from doublecv import estimators
from doublecv.diagnostics.timing import round_times
from doublecv.estimators import Estimator
from doublecv.lab.bench.problem import BASELINE, FLOOR, BenchSettings, Row, Workload, table
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import write_atomically
from doublecv.lab.common.records import seal_document
from doublecv.lab.train.settings import trainable


def main(settings: BenchSettings) -> None:
    """Measure, print the table and write the JSON file."""
    from rich.console import Console

    settings.check()
    if settings.harm:
        from doublecv.lab.bench import harm

        harm.main(settings)
        return
    library, workloads = _library(settings)
    rows = list(measure(settings, workloads))
    Console().print(table(rows, library))
    if settings.out is not None:
        described = {"library": library, "rounds": settings.rounds, "calls": settings.calls}
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(settings.out, seal_document(described | {"rows": [*map(asdict, rows)]}))


def _library(settings: BenchSettings) -> tuple[str, Mapping[str, Workload]]:
    if settings.torch:
        import torch

        from doublecv.lab.bench import torch as bench_torch

        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads", bench_torch.WORKLOADS
    import jax

    from doublecv.lab.bench import jax as bench_jax

    return f"JAX {jax.__version__} on {jax.default_backend()}", bench_jax.WORKLOADS


def measure(settings: BenchSettings, workloads: Mapping[str, Workload]) -> Iterator[Row]:
    """Yield the rows of the table; the estimators of one workload and one K take turns."""
    for workload, (make_call, floor, steps) in workloads.items():
        for samples in settings.samples:
            chosen = _chosen(settings.estimators, samples)
            calls = {name: make_call(estimator) for name, estimator in chosen.items()}
            if floor is not None:
                calls[FLOOR] = floor(samples)
            seconds = np.array(round_times(list(calls.values()), settings.rounds * settings.calls))
            # The fastest call of a round is the one that other processes disturbed least.
            of_rounds = seconds.reshape(len(calls), settings.rounds, settings.calls).min(axis=-1)
            milliseconds = dict(zip(calls, 1000 / steps * of_rounds, strict=True))
            for name, mine in milliseconds.items():
                estimator = chosen.get(name)
                yield Row(
                    workload,
                    samples,
                    name,
                    samples if estimator is None else estimator.samples,
                    0 if estimator is None else estimator.evaluations,
                    float(np.median(mine)),
                    float(np.median(mine / milliseconds[BASELINE])),
                    float(np.median(mine / milliseconds[FLOOR])) if floor is not None else None,
                    tuple(mine.tolist()),
                )


def _chosen(given: tuple[str, ...], samples: int) -> dict[str, Estimator]:
    """Return RLOO and the chosen estimators, except those that do not support that number of samples."""
    chosen = {}
    for name in dict.fromkeys((BASELINE, *(given or trainable()))):
        try:
            estimator = estimators.make(name, samples=samples)
            # REBAR and RELAX have one sample in the comparison of the paper.
            least = estimator.needs.minimum_samples
            chosen[name] = estimators.make(name, samples=least) if estimator.needs.relaxed_points else estimator
        except ValueError as error:
            if name in given or name == BASELINE:
                raise InputError(f"--samples {samples} does not fit --estimators {name}: {error}") from error
    return chosen
