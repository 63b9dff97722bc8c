"""Measure the variance relative to RLOO where it is most likely to be larger.

Along runs of few variables, and where variables become almost certain within a few steps, every variance is exact. In
the very step in which f changes its scale, it is estimated on problems of the benchmark. Run

    python docs/measure_harm.py

which writes `few_variables.md`, `drift.md` and `very_step.md` to `docs/results` for the page "Never worse than RLOO".
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

import doublecv as dcv
from doublecv.estimators import Evaluation
from doublecv.jax import harm
from doublecv.lab.bench.command import RECOMMENDED

STEPS, EVERY, FALL_AT = 500, 5, 300
AFTER = (0, 1, 2, 5, 10, 20, 50, 100, 190)
"""The steps after a fall of f at which the variance is measured."""

DRIFT_AT, DRIFT_STEPS = 200, 40
"""The step at which the logits begin to grow, and for how many steps they are followed."""

ESTIMATORS = {"Double CV": dcv.DoubleCV(samples=2), "Quadratic": dcv.QuadraticDoubleCV(samples=2)}


def network(rng, variables):
    """Return a tanh network and its gradient."""
    inner, outer = rng.normal(size=(variables, 20)) * 2 / np.sqrt(variables), rng.normal(size=20)
    bias = rng.normal(size=20) / 2

    def df(x):
        return ((1 - np.tanh(x @ inner + bias) ** 2) * outer) @ inner.T

    return (lambda x: np.tanh(x @ inner + bias) @ outer), df


def along(rng, variables, length, of_line, slope_of_line):
    """Return a function of (x - 1/2)^T u, with u of the given length, and its gradient."""
    u = rng.normal(size=variables)
    u *= length / np.linalg.norm(u)
    return (lambda x: of_line((x - 0.5) @ u)), (lambda x: slope_of_line((x - 0.5) @ u)[..., None] * u)


def bump(rng, variables):
    """Return a bump and its gradient."""
    return along(rng, variables, 2.0, lambda z: 1 / (0.05 + z**2), lambda z: -2 * z / (0.05 + z**2) ** 2)


def steep(rng, variables):
    """Return a steep sigmoid and its gradient."""

    def sigmoid(z):
        return 1 / (1 + np.exp(-20 * (z - 0.3)))

    return along(rng, variables, 2.0, sigmoid, lambda z: 20 * sigmoid(z) * (1 - sigmoid(z)))


def exponential(rng, variables):
    """Return the exponential of a linear function and its gradient."""
    return along(rng, variables, 4.0, np.exp, np.exp)


def policy(rng, actions):
    """Return the negative reward of a policy with one choice, and its gradient."""
    matrix, slope = rng.normal(size=(actions, actions)) / np.sqrt(actions), rng.normal(size=actions)
    matrix = matrix + matrix.T
    return (lambda x: np.sum((x @ matrix / 2 + slope) * x, axis=(-2, -1))), (lambda x: x @ matrix + slope)


def ratio(estimator, f, df, q, learned):
    """Return the exact variance relative to RLOO's; NaN where RLOO has none."""
    rloo = np.sum(dcv.exact_moments(f, q, dcv.RLOO(samples=estimator.samples)).variance)
    own = np.sum(dcv.exact_moments(f, q, estimator, learned, df=df).variance)
    return own / rloo if rloo > 1e-24 else np.nan


def run(estimator, f, df, family, logits, seed, measured_at, factor=lambda step: 1.0, rate=0.0):
    """Return the ratios before the given steps of a run; with a rate, Adam descends along the logits."""
    rng, learned, ratios = np.random.default_rng(seed), estimator.init(), []
    mean, square = np.zeros_like(logits), np.zeros_like(logits)
    for step in range(max(measured_at) + 1):
        scale, q = factor(step), family(logits=logits)
        scaled, scaled_df = (lambda x, by=scale: by * f(x)), (lambda x, by=scale: by * df(x))
        if step in measured_at:
            ratios.append(ratio(estimator, scaled, scaled_df, q, learned))
        x = estimator.draw(q, rng.random(estimator.noise_shape(q)))
        applied = estimator.apply(q, Evaluation(x, scaled(x), scaled_df(x)), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
        mean, square = 0.9 * mean + 0.1 * applied.gradient, 0.999 * square + 0.001 * applied.gradient**2
        corrected = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.999 ** (step + 1))
        logits = logits - rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-30)
    return ratios


def along_runs(estimator, make, size, seeds, family=dcv.Bernoulli, rate=0.0, logits=None):
    """Return the ratios along one run per seed."""
    rows = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        f, df = make(rng, size)
        start = rng.normal(size=(1, size) if family is dcv.Categorical else size) if logits is None else logits
        rows.append(run(estimator, f, df, family, start, seed, range(0, STEPS, EVERY), rate=rate))
    return np.array(rows)


def falls(make, by, seeds):
    """Return the ratios of the quadratic form after a fall of f by the given factor, one row per seed."""
    rows = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        f, df = make(rng, 5)
        measured_at = [FALL_AT + after for after in AFTER]
        rows.append(
            run(
                *(ESTIMATORS["Quadratic"], f, df, dcv.Bernoulli, rng.normal(size=5), seed, measured_at),
                factor=lambda step: 1.0 if step < FALL_AT else 1 / by,
            )
        )
    return np.array(rows)


def gates(rng, variables):
    """Return the squared error of a sum of gated features, with a price per gate, and its gradient."""
    features = rng.normal(size=(variables, 20))
    target = ((rng.random(variables) < 0.2) * rng.normal(size=variables)) @ features
    features = features * rng.normal(size=(variables, 1))

    def df(x):
        return 2 / 20 * (x @ features - target) @ features.T + 0.05

    return (lambda x: np.mean((x @ features - target) ** 2, axis=-1) + 0.05 * np.sum(x, axis=-1)), df


def drift(estimator, make, batch, speed, seed):
    """Return the largest ratio of a run in which the logits of 5 variables grow by `speed` per step, up to 6."""
    rng = np.random.default_rng(seed)
    f, df = make(rng, 5)
    signs, learned, ratios = np.sign(rng.normal(size=5)), estimator.init(), []
    for step in range(DRIFT_AT + DRIFT_STEPS):
        q = dcv.Bernoulli(logits=signs * min(6.0, speed * max(0, step - DRIFT_AT)))
        if step > DRIFT_AT:
            ratios.append(ratio(estimator, f, df, q, learned))
        many = dcv.Bernoulli(logits=np.tile(q.logits, (batch, 1)))
        x = estimator.draw(many, rng.random(estimator.noise_shape(many)))
        applied = estimator.apply(many, Evaluation(x, f(x), df(x)), learned)
        learned = learned._replace(averages=estimator.advance(learned.averages, applied.statistics))
    return np.nanmax(ratios)


CHANGING = {
    "network": harm.HarmProblem("network", samples=2, variables=50),
    "quadratic": harm.HarmProblem("quadratic", samples=4, variables=10),
    "autoencoder": harm.HarmProblem("autoencoder", samples=2, variables=20, batch=20),
    "gates": harm.HarmProblem("gates", samples=2, variables=50, batch=4, start=-3.0),
    "exponential": harm.HarmProblem("exponential", samples=2, variables=20, batch=10),
    "steep": harm.HarmProblem("steep", samples=2, variables=20, batch=20),
}
"""The problems on which f changes its scale in the middle of the run."""


def very_step(name, problem, by, seeds):
    """Return the ratios in the very step in which f changes its scale, and in the next one, one row per seed."""
    middle = harm.STEPS // 2
    rows = [
        harm.measure(name, replace(problem, later=by, seed=seed), checkpoints=(middle, middle + 1)) for seed in seeds
    ]
    return np.array([row.ratios for row in rows])


PROBLEMS = {
    "network": (network, 4, range(16), {}),
    "bump": (bump, 4, range(16), {}),
    "steep": (steep, 4, range(16), {}),
    "exponential": (exponential, 4, range(16), {}),
    "bump, almost certain bits": (bump, 4, range(16), {"logits": np.array([-3.0, -3.0, 3.0, -2.0])}),
    "policy, 3 actions": (policy, 3, range(24), {"family": dcv.Categorical, "rate": 0.1}),
    "policy, 5 actions": (policy, 5, range(24), {"family": dcv.Categorical, "rate": 0.1}),
}


def number(value):
    """Return a number with about three digits."""
    return f"{value:.2f}" if value < 100 else f"{value:.2g}"


def write(name, lines):
    """Write the lines of tables to a file of the results."""
    Path(__file__).with_name("results").joinpath(name).write_text("\n".join(lines) + "\n")


def of_runs(values):
    """Return the largest ratio, and in brackets how many exceed 1.1."""
    return f"{number(np.nanmax(values))} ({np.sum(values > 1.1)})"


def write_drift():
    """Write the table of variables that become almost certain within a few steps."""
    lines = ["| function | batch | logits per step | Double CV | Quadratic |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, make in (("network", network), ("gates", gates)):
        for batch in (1, 4, 16):
            for speed in (0.1, 0.3, 0.6):
                runs = [
                    np.array([drift(estimator, make, batch, speed, seed) for seed in range(16)])
                    for estimator in ESTIMATORS.values()
                ]
                lines.append(f"| {name} | {batch} | {speed} | {' | '.join(map(of_runs, runs))} |")
                print(lines[-1], flush=True)
    write("drift.md", lines)


def write_very_step():
    """Write the table of the step in which f changes its scale, and of the next one."""
    estimators = {"Double CV": RECOMMENDED[0], "Quadratic": RECOMMENDED[1], "Surrogate + quadratic": RECOMMENDED[2]}
    columns = [f"{name}{when}" for name in estimators for when in ("", ", next step")]
    lines = [f"| function | f is multiplied by | {' | '.join(columns)} |", "| --- | ---: |" + " ---: |" * len(columns)]
    for name, problem in CHANGING.items():
        for by in (1e-6, 1e-1, 1e6):
            runs = [very_step(estimator, problem, by, range(4)).T for estimator in estimators.values()]
            cells = [of_runs(values) for of_estimator in runs for values in of_estimator]
            lines.append(f"| {name} | {by:,g} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    write("very_step.md", lines)


def write_few_variables():
    """Write the tables of runs of few variables, and of falls of f along them."""
    lines = [
        "| problem | runs | estimator | largest ratio | runs above 1.1 | mean ratio |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for problem, (make, size, seeds, options) in PROBLEMS.items():
        for name, estimator in ESTIMATORS.items():
            ratios = along_runs(estimator, make, size, seeds, **options)
            largest = np.nanmax(ratios, axis=1)
            row = (problem, str(len(seeds)), name, number(largest.max()), str(np.sum(largest > 1.1)))
            lines.append(f"| {' | '.join(row)} | {number(np.nanmean(ratios))} |")
            print(lines[-1], flush=True)
    lines += ["", "Steps after a fall of f: the largest ratio, and in brackets how many of 12 runs exceed 1.1.", ""]
    lines.append("| function | fall by | " + " | ".join(map(str, AFTER)) + " |")
    lines.append("| --- | ---: |" + " ---: |" * len(AFTER))
    for name, make in (("network", network), ("exponential", exponential)):
        for by in (10, 100, 10**6):
            columns = falls(make, by, range(12)).T
            row = map(of_runs, columns)
            lines.append(f"| {name} | {by:,} | {' | '.join(row)} |")
            print(lines[-1], flush=True)
    write("few_variables.md", lines)


if __name__ == "__main__":
    write_few_variables()
    write_drift()
    write_very_step()
