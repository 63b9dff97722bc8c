"""How much work a run is, in multiplications: what lists of targets and remaining times are reckoned with.

A layer takes one pass of its matrix product forward and two backward (its inputs' and its weights' gradient). The
points of the relaxed control variates are differentiated twice, which takes two more.
"""

from __future__ import annotations

from doublecv import estimators
from doublecv.lab.sweep.sweep import SweepRun
from doublecv.lab.sweep.targets import own_samples

IMAGES = {
    "digits": (1_500, 300),
    "mnist": (60_000, 10_000),
    "fashion-mnist": (60_000, 10_000),
    "omniglot": (24_345, 8_115),
}
"""Training with validation, and test."""

PROGRAM = 1e11
"""What it costs to compile a program, in multiplications: some seconds."""

TOY_OPERATION = 400
"""What drawing one binary variable and its share of the toy problem's estimate costs, in multiplications."""

BENCH_STEPS = 10
"""Steps that the benchmark's every call makes."""


def work(run: SweepRun) -> float:
    """The multiplications of a whole run."""
    settings = run.settings
    if run.kind == "toy":
        records = settings["iterations"] / settings["every"]
        draws = settings["draws"] * records * settings["seeds"] * len(settings["estimators"])
        variables = draws * settings["samples"] * settings["dimension"]
        return float(TOY_OPERATION * variables + PROGRAM * len(settings["estimators"]))
    if run.kind == "bench":
        timed = [(name, samples) for samples in settings["samples"] for name in settings["estimators"]]
        steps: int = BENCH_STEPS * settings["calls"] * settings["rounds"]
        return 2 * PROGRAM * len(timed) + steps * sum(
            step_work(name, own_samples(name, samples), "nonlinear", 784, 100) for name, samples in timed
        )
    pixels = 64 if settings["dataset"] == "digits" else 784
    seen, tested = IMAGES[settings["dataset"]]
    encoder, decoder = _weights(settings["network"], pixels, settings["latents"])
    samples, steps = settings["samples"], settings["steps"]
    return float(
        PROGRAM
        + steps * step_work(settings["estimator"], samples, settings["network"], pixels, settings["batch"])
        + steps / settings["evaluate_every"] * seen * (encoder + samples * decoder)
        + tested * (2 * encoder + (samples + settings["bound_samples"]) * decoder)
    )


def step_work(name: str, samples: int, network: str, pixels: int, batch: int, latents: int = 200) -> float:
    """The multiplications of one training step."""
    encoder, decoder = _weights(network, pixels, latents)
    estimator = estimators.make(name, samples)
    passes = 5 if estimator.relaxed_points else 3
    return float(batch * (3 * encoder + passes * estimator.evaluations * decoder))


def _weights(network: str, pixels: int, latents: int, hidden: int = 200) -> tuple[int, int]:
    """The weights of the encoder and of the decoder."""
    if network == "linear":
        return pixels * latents, latents * pixels
    weights = pixels * hidden + hidden * hidden + hidden * latents
    return weights, weights
