"""Draw the curves of long training runs, and write their table, for the page "Results".

Unfinished runs are shown as far as they got. Run

    python docs/draw_long_runs.py SWEEP

on the folder of a sweep with one data set, network, likelihood and K. The files are results/long_runs.md and
two drawings beside it.
"""

import sys
from pathlib import Path

from doublecv.lab.common.charts import appearance, write_figure
from doublecv.lab.report import render
from doublecv.lab.report.frames import training_charts

EVERY = 50_000
"""The steps between the rows of the table; the last evaluation of each run is also shown."""

RESULTS = Path(__file__).parent / "results"
CHARTS = {"elbo": "Training ELBO of the minibatches", "encoder_variance": "Variance of the encoder's gradient"}


def table(cells):
    """Return the training ELBO over the complete training set by step and estimator, as Markdown."""
    curves = {}
    for cell in cells:
        for run in (*cell.complete, *cell.unfinished):
            label = f"{appearance(cell.key.estimator).label}, seed {run.seed}"
            curves[label] = dict(run.records.curves["train_elbo"])
    last = {max(curve) for curve in curves.values()}
    steps = sorted({step for curve in curves.values() for step in curve if step % EVERY == 0} | last)
    rows = [["step", *curves], ["---:"] * (1 + len(curves))]
    for step in steps:
        rows.append([f"{step:,}", *(f"{curve[step]:.2f}" if step in curve else "" for curve in curves.values())])
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
