"""The training ELBO against time, from made-up runs and times."""

import pytest
from made_up_runs import made_up

from doublecv.lab.report.cells import cell_tables
from doublecv.lab.report.content import Content
from doublecv.lab.report.curves import ELBO, training_chart
from doublecv.lab.report.runs import Counted, Records
from doublecv.lab.report.table import MINUS
from doublecv.lab.report.timing import TimeCell, TimeTable
from doublecv.lab.report.wall_clock import elbo_after, wall_clock_table


def times(samples, **milliseconds):
    cells = (
        TimeCell(workload, samples, name.replace("_", "-"), samples, samples, time * factor, 1.0, (1.0,), None, None)
        for workload, factor in (("gradient", 0.1), ("step", 1))
        for name, time in milliseconds.items()
    )
    return TimeTable("bench", "made up", 7, 10, tuple(cells))


def run_of(estimator, seed, *elbos):
    """Evaluated every 1,000 steps; the records of training in between have another metric."""
    lines = [{"step": 1000 * (place + 1), "train_elbo": elbo} for place, elbo in enumerate(elbos)]
    steps = 1000 * len(elbos)
    between = [{"step": 500, "elbo": -77.0}, {"step": steps, "elbo": elbos[-1]}]
    return Counted(made_up(estimator, seed, steps=steps), Records((*between, *lines)))


def content(runs, *benchmarks):
    return Content(None, None, cell_tables([one.run for one in runs], runs, {}), benchmarks)


RUNS = [
    run_of("rloo", 1, -40.0, -30.0, -20.0, -10.0),
    run_of("double-cv", 1, -30.0, -20.0, -10.0, -5.0),
    run_of("double-cv", 2, -31.0, -21.0, -11.0, -6.0),
    run_of("disarm", 1, -39.0, -29.0, -19.0, -9.0),
]


def test_an_estimator_is_given_the_time_of_rloo():
    found = content(RUNS, times(4, rloo=1.0), times(2, rloo=3.0, double_cv=4.8, disarm=2.0))
    table = wall_clock_table(found, found.tables[0])
    rows = {row[2].text: [entry.text.replace(MINUS, "-") for entry in row[3:]] for row in table.rows}
    assert rows["RLOO"] == ["3.00", "0.20", "-10.00", "4,000", "-10.00"]
    # 3 / 4.8 of the 4,000 steps are 2,500: half way from -20.5 to -10.5.
    assert rows["Double CV"] == ["4.80", "0.32", "-5.50 ± 0.50", "2,500", "-15.50 ± 0.50"]
    assert rows["DisARM"] == ["2.00", "0.13", "-9.00", "4,000", "-9.00"]
    assert "4,000 of the paper's 1,000,000 steps" in table.caption


def test_without_a_benchmark_of_its_k_there_is_no_table():
    found = content(RUNS, times(4, rloo=1.0, double_cv=1.1))
    assert wall_clock_table(found, found.tables[0]) is None
    assert wall_clock_table(content(RUNS), found.tables[0]) is None


def test_an_estimator_that_was_not_timed_is_left_out():
    found = content(RUNS, times(2, rloo=3.0, double_cv=3.0))
    assert {row[2].text for row in wall_clock_table(found, found.tables[0]).rows} == {"RLOO", "Double CV"}


def test_nothing_is_made_up_before_the_first_evaluation():
    (column,) = content(RUNS).tables[0].planned_columns
    assert elbo_after(column.cells[0], 999) is None
    assert elbo_after(column.cells[0], 1000).mean == -40.0


def test_the_chart_is_over_minutes():
    (column,) = content(RUNS).tables[0].planned_columns
    chart = training_chart(column, ELBO, "chart", {"rloo": 3.0, "double-cv": 6.0})
    assert chart.data["x"] == {"label": "minutes"}
    ends = {line["estimator"]: line["x"][-1] for line in chart.data["lines"]}
    assert ends == {"rloo": pytest.approx(0.2), "double-cv": pytest.approx(0.4)}
