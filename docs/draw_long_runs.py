"""Draw the curves of long training runs, and write their table, for the page "Results".

Unfinished runs are shown as far as they got. Run

    python docs/draw_long_runs.py SWEEP

on the folder of a sweep with one data set, network, likelihood and K. The files are results/long_runs.md and
two drawings beside it.
"""

import sys
from pathlib import Path
from statistics import fmean, stdev

from doublecv.lab.common.charts import appearance, write_figure
from doublecv.lab.report import render
from doublecv.lab.report.frames import training_charts

EVERY = 50_000
"""The steps between the rows of the table; the last evaluation of each run is also shown."""

LAST = 20
"""The number of evaluations at the end of a run that are averaged: single ones differ by some tenths of a nat."""

RESULTS = Path(__file__).parent / "results"
CHARTS = {"elbo": "Training ELBO of the minibatches", "encoder_variance": "Variance of the encoder's gradient"}


def table(cells):
    """Return the training ELBO over the complete training set by step and estimator, as Markdown."""
    curves, papers = {}, []
    for cell in cells:
        for run in (*cell.complete, *cell.unfinished):
            label = f"{appearance(cell.key.estimator).label}, seed {run.seed}"
            curves[label] = dict(run.records.curves["train_elbo"])
            papers.append(f"{cell.paper.mean:.2f} +- {cell.paper.plus_minus:.2f}" if cell.paper else "")
    last = {max(curve) for curve in curves.values()}
    steps = sorted({step for curve in curves.values() for step in curve if step % EVERY == 0} | last)
    rows = [["step", *curves], ["---:"] * (1 + len(curves))]
    for step in steps:
        rows.append([f"{step:,}", *(f"{curve[step]:.2f}" if step in curve else "" for curve in curves.values())])
    ends = [[value for _, value in sorted(curve.items())[-LAST:]] for curve in curves.values()]
    summaries = [f"{fmean(end):.2f}, deviation {stdev(end):.2f}" if len(end) > 1 else "" for end in ends]
    rows += [[f"mean of the last {LAST} evaluations", *summaries], ["paper, 1,000,000 steps", *papers]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(sweep):
    """Write the table and the drawings."""
    cells = [cell for cell in render.read(Path(sweep)).cells if cell.complete or cell.unfinished]
    text = table(cells)
    for metric, title in CHARTS.items():
        (chart,) = training_charts(cells, metric, title)
        write_figure([chart], title, RESULTS / f"long_runs_{metric}.svg")
        text += f"\n```{{figure}} results/long_runs_{metric}.svg\n:alt: {chart.description}\n\n"
        text += f"{title}. {chart.reading}\n```\n"
    (RESULTS / "long_runs.md").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
