"""Training runs of a sweep that nobody ran."""

from pathlib import Path

from doublecv.lab.sweep.plan import SweepRun


def made_up(estimator, seed=1, samples=2, dataset="mnist", steps=10, name=None):
    settings = {"dataset": dataset, "likelihood": "bernoulli", "network": "nonlinear", "samples": samples}
    settings |= {"estimator": estimator, "seed": seed, "steps": steps}
    name = name or f"{dataset}-{estimator}-{samples}-{seed}-{steps}"
    return SweepRun(name, "train", Path(name), settings, ())
