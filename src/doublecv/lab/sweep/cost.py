"""Estimate the cost of a run in multiplications, for `--list` and the time left.

A layer takes one pass of its matrix product forward and two backward (the gradients of its inputs and of its weights).
The points of the relaxed control variates are differentiated twice, which takes two more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version

from doublecv import estimators
from doublecv.lab.bench.problem import STEPS
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.files import write_atomically
from doublecv.lab.data.catalogue import size
from doublecv.lab.data.fetch import cache_folder
from doublecv.lab.sweep.plan import SweepRun, processor
from doublecv.lab.sweep.targets import own_samples

COMPILATION = 1e11
"""The cost of compiling a program, some seconds."""

TOY_OPERATION = 400
"""The cost of one binary variable in one estimate of the toy problem."""

CACHE = "speed.json"

MEASURE = """
from doublecv.diagnostics.timing import median_times
from doublecv.estimators import make
from doublecv.lab.bench.jax import step
print(median_times([step(make("rloo", 2))], 5)[0])
"""
"""Print the seconds of `STEPS` training steps, for a process of its own that has one thread, as a run has."""


def work(run: SweepRun) -> float:
    """Return the multiplications of a complete run."""
    settings = run.settings
    if run.kind == "toy":
        records = settings["iterations"] / settings["every"]
        draws = settings["draws"] * records * settings["seeds"] * len(settings["estimators"])
        variables = draws * settings["samples"] * settings["dimension"]
        return float(TOY_OPERATION * variables + COMPILATION * len(settings["estimators"]))
    if run.kind == "bench":
        timed = [(name, samples) for samples in settings["samples"] for name in settings["estimators"]]
        steps: int = STEPS * settings["calls"] * settings["rounds"]
        return 2 * COMPILATION * len(timed) + steps * sum(
            step_work(name, own_samples(name, samples), "nonlinear", 784, 100) for name, samples in timed
        )
    images = size(settings["dataset"])
    encoder, decoder = _weights(settings["network"], images.pixels, settings["latents"])
    samples, steps = settings["samples"], settings["steps"]
    one_step = step_work(
        settings["estimator"], samples, settings["network"], images.pixels, settings["batch"], settings["latents"]
    )
    return float(
        COMPILATION
        + steps * one_step
        + steps / settings["evaluate_every"] * (images.train + images.validation) * (encoder + samples * decoder)
        + images.test * (2 * encoder + (samples + settings["bound_samples"]) * decoder)
    )


def step_work(name: str, samples: int, network: str, pixels: int, batch: int, latents: int = 200) -> float:
    """Return the multiplications of one training step."""
    encoder, decoder = _weights(network, pixels, latents)
    estimator = estimators.make(name, samples)
    passes = 5 if estimator.needs.relaxed_points else 3
    return float(batch * (3 * encoder + passes * estimator.evaluations * decoder))


def _weights(network: str, pixels: int, latents: int, hidden: int = 200) -> tuple[int, int]:
    """Return the numbers of weights of the encoder and of the decoder."""
    if network == "linear":
        return pixels * latents, latents * pixels
    weights = pixels * hidden + hidden * hidden + hidden * latents
    return weights, weights


def multiplications_per_second() -> float:
    """Return the speed of one core in training, from the user's cache or measured now."""
    from doublecv.lab.sweep.worker import single_threaded

    machine = {"processor": processor(), "jax": version("jax")}
    path = cache_folder() / CACHE
    with suppress(OSError, ValueError, KeyError, TypeError):
        held = json.loads(path.read_bytes())
        if {key: held[key] for key in machine} == machine and 0 < held["multiplications_per_second"] < 1e18:
            return float(held["multiplications_per_second"])
    print("measuring a training step ...", file=sys.stderr)
    environment = os.environ | single_threaded()
    found = subprocess.run(
        [sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise InputError(f"a training step could not be measured: {(found.stderr.splitlines() or ['no reason'])[-1]}")
    speed = STEPS * step_work("rloo", 2, "nonlinear", 784, 100) / float(found.stdout)
    # A cache that cannot be written costs another measurement the next time.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(machine | {"multiplications_per_second": speed}).encode())
    return speed
