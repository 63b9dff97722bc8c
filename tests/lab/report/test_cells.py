"""Runs sorted into the paper's cells, with made-up runs and made-up numbers for the paper's."""

import pytest
from tiny_sweep import BENCH, PAPER_STEPS, TinySweep

from doublecv.lab.common.tables import MINUS
from doublecv.lab.report import frames, render
from doublecv.lab.report.statistics import CellKey, Estimate

PAPER = {
    CellKey("bernoulli", samples, dataset, "nonlinear", estimator): Estimate(mean, 0.3)
    for samples, dataset, estimator, mean in (
        (2, "mnist", "rloo", -11.0),
        (2, "mnist", "double-cv", -10.0),
        (2, "mnist", "relax", -9.0),
        (2, "omniglot", "rloo", -20.0),
        (4, "mnist", "rloo", -8.0),
    )
}


@pytest.fixture
def made(tmp_path):
    return TinySweep(tmp_path)


def read(made):
    return render.read(made.write(), PAPER)


def run(made, estimator, level, seed=1, samples=2, steps=20, upto=None):
    name = f"{estimator}-{seed}-{samples}-{steps}-{level}"
    made.train(name, level, upto, dataset="mnist", estimator=estimator, seed=seed, samples=samples, steps=steps)


def cell(content, estimator, samples=2, dataset="mnist", steps=20):
    (found,) = [
        one
        for one in content.cells
        if (one.key.samples, one.key.dataset, one.key.estimator, one.steps) == (samples, dataset, estimator, steps)
    ]
    return found


def curves(content):
    return next(section.groups for section in render.sections(content) if section.name == "curves")


def test_a_cell_is_the_mean_over_its_seeds_beside_the_papers(made):
    run(made, "rloo", -13.0)
    run(made, "rloo", -12.2, seed=2)
    found = cell(read(made), "rloo")
    assert found.measured().mean == pytest.approx(-12.6)
    assert found.measured().plus_minus == pytest.approx(0.4)
    assert found.difference == pytest.approx(-1.6)
    assert found.difference_in_plus_minus == pytest.approx(-1.6 / 0.5)


def test_what_was_not_run_is_empty(made):
    run(made, "rloo", -13.0)
    made.planned("waiting", dataset="mnist", estimator="double-cv")
    content = read(made)
    for found in (
        cell(content, "double-cv"),
        cell(content, "relax", steps=None),
        cell(content, "rloo", dataset="omniglot", steps=None),
    ):
        assert found.paper is not None
        assert (found.measured(), found.difference, found.verdict) == (None, None, "not run")


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        ((-11.59,), "reproduced"),  # 0.59 is less than 2 x 0.3; one seed has no +- of its own
        ((-11.61,), "not reproduced"),
        ((-11.4, -12.2), "reproduced"),  # 0.8 is less than 2 x 0.5
        ((-11.7, -12.5), "not reproduced"),  # 1.1 is not
        ((-10.5,), "reproduced"),
        ((-10.3,), "not reproduced"),
    ],
)
def test_reproduced_means_within_two_combined_plus_minus(made, levels, verdict):
    for seed, level in enumerate(levels, 1):
        run(made, "rloo", level, seed, steps=PAPER_STEPS)
    assert cell(read(made), "rloo", steps=PAPER_STEPS).verdict == verdict


def test_verdicts_at_a_glance(made):
    run(made, "rloo", -11.1, steps=PAPER_STEPS)
    run(made, "rloo", -13.0)
    run(made, "double-cv", -12.0, upto=PAPER_STEPS // 2, steps=PAPER_STEPS)
    run(made, "relax", -9.5, samples=1)
    table = frames.verdicts_table(read(made))
    texts = {row[0].text + row[1].text: [entry.text.replace(MINUS, "-") for entry in row[2:]] for row in table.rows}
    assert [column.heading for column in table.columns[2:]] == ["RLOO", "Double CV", "RELAX"]
    assert texts["K = 2, Bernoulli likelihoodMNIST, nonlinear"] == [
        "reproduced (-0.10)",
        "not finished (step 500,000)",
        "20 steps (-0.50)",
    ]
    assert texts["K = 2, Bernoulli likelihoodOmniglot 28x28, nonlinear"] == ["not run", "", ""]
    assert "Of 5 cells of the paper: 1 reproduced, 1 not finished, 1 run with other numbers of steps, 2 not run." in (
        table.caption
    )


def test_runs_of_different_lengths_are_beside_each_other_and_not_mixed(made):
    run(made, "rloo", -13.0)
    run(made, "rloo", -12.0, steps=40)
    content = read(made)
    assert cell(content, "rloo").measured().mean == -13.0
    assert cell(content, "rloo", steps=40).measured().mean == -12.0
    rows = [row for row in frames.elbo_table(content, "bernoulli", 2).rows if row[2].value == "rloo"]
    assert [(row[3].text, row[4].value) for row in rows] == [("20", -13.0), ("40", -12.0)]
    charts = [
        group.heading for section in render.sections(content) if section.name == "curves" for group in section.groups
    ]
    assert charts == [f"K = 2, Bernoulli likelihood, MNIST, nonlinear, {steps} steps" for steps in (20, 40)]


def test_an_unfinished_run_is_shown_as_far_as_it_got(made):
    run(made, "rloo", -13.0)
    run(made, "rloo", -12.0, seed=2, upto=16)
    content = read(made)
    found = cell(content, "rloo")
    assert (len(found.complete), len(found.unfinished), found.measured().mean) == (1, 1, -13.0)
    (row,) = [row for row in frames.elbo_table(content, "bernoulli", 2).rows if row[2].value == "rloo"]
    assert row[-1].text.replace(MINUS, "-") == "seed 2 at step 16: -17.00 at step 10"
    (row,) = frames.runs_table(content, only_incomplete=True).rows
    assert [entry.text for entry in row[2:5]] == ["interrupted", "16", "20"]
    (group,) = curves(content)
    assert "RLOO, seed 2, to step 16" in group.charts[0].description


def test_an_estimator_that_the_paper_does_not_have_comes_last(made):
    run(made, "muprop", -1.0)
    run(made, "rloo", -13.0)
    content = read(made)
    names = [one.key.estimator for one in content.cells if one.key[1:3] == (2, "mnist")]
    assert names == ["rloo", "double-cv", "relax", "muprop"]
    assert cell(content, "muprop").difference is None


def test_relax_with_one_sample_stands_in_the_tables_of_every_k(made):
    """The paper repeats its numbers for RELAX in the table of K = 4."""
    run(made, "rloo", -13.0)
    run(made, "rloo", -9.0, samples=4)
    run(made, "relax", -9.5, samples=1)
    content = read(made)
    for samples in (2, 4):
        assert cell(content, "relax", samples).measured().mean == -9.5
        assert cell(content, "relax", samples).paper.mean == -9.0
    assert cell(content, "rloo", 4).paper.mean == -8.0


def test_relax_alone_is_in_the_table_of_k_2(made):
    run(made, "relax", -9.5, samples=1)
    assert read(made).tables == [("bernoulli", 2)]


@pytest.mark.parametrize("unfinished", [False, True])
def test_independent_decoder_samples_are_a_cell_of_their_own_and_the_papers_where_it_has_them(made, unfinished):
    paper = {CellKey("bernoulli", 2, "mnist", "nonlinear", name): Estimate(-9.0, 0.3) for name in ("rloo", "disarm")}
    upto = PAPER_STEPS // 2 if unfinished else None
    for estimator in ("rloo", "disarm"):
        run(made, estimator, -8.0, steps=PAPER_STEPS)
        made.train(
            f"{estimator}-independent", -9.2, upto, dataset="mnist", estimator=estimator, steps=PAPER_STEPS,
            decoder_samples="independent",
        )  # fmt: skip
    content = render.read(made.write(), paper)
    names = [one.key.estimator for one in content.cells]
    assert names == ["rloo", "rloo-independent", "disarm", "disarm-independent"]
    for name in ("rloo", "disarm"):
        assert cell(content, name, steps=PAPER_STEPS).measured().mean == -8.0
        independent = cell(content, f"{name}-independent", steps=PAPER_STEPS)
        assert (independent.measured() is None) is unfinished
        assert (independent.paper is None) is (name == "rloo")
    table = frames.verdicts_table(content)
    assert [column.heading for column in table.columns[2:]] == ["RLOO", "DisARM"]
    verdict = "not reproduced (+1.00)" if unfinished else "reproduced (-0.20)"
    assert [entry.text.replace(MINUS, "-") for entry in table.rows[0][2:]] == ["not reproduced (+1.00)", verdict]
    assert "Of 2 cells of the paper" in table.caption


def test_two_runs_of_one_seed_are_not_counted_twice(made):
    run(made, "rloo", -1.0)
    run(made, "rloo", -2.0)
    content = read(made)
    assert cell(content, "rloo").measured().mean == -1.0
    assert "is the same run; remove one of them" in content.unread[0].why


def test_an_extended_run_counts_with_its_own_length(made):
    run(made, "rloo", -13.0, steps=40)
    made.runs[0].settings["steps"] = 20
    assert cell(read(made), "rloo", steps=40).measured().mean == -13.0


def times(**milliseconds):
    rows = [
        row | {"estimator": name.replace("_", "-"), "milliseconds": time, "baseline_samples": 2, "workload": workload}
        for row in BENCH["rows"][:1]
        for workload, factor in (("gradient", 0.1), ("step", 1.0))
        for name, time in milliseconds.items()
    ]
    return BENCH | {"rows": rows}


def test_an_estimator_is_given_the_time_of_rloo(made):
    run(made, "rloo", -10.0)
    run(made, "double-cv", -5.0)
    run(made, "disarm", -9.0)
    made.bench("bench", times(rloo=3.0, double_cv=4.0))
    content = read(made)
    table = frames.wall_clock_table(content, "bernoulli", 2)
    rows = {row[2].text: [entry.text.replace(MINUS, "-") for entry in row[4:]] for row in table.rows}
    # 3/4 of the 20 steps are 15: half way from -10 at step 10 to -5 at step 20. DisARM was not timed.
    assert rows == {
        "RLOO": ["3.00", "0.00", "-10.00", "20", "-10.00"],
        "Double CV": ["4.00", "0.00", "-5.00", "15", "-7.50"],
    }
    assert frames.elbo_after(cell(content, "rloo"), 9) is None
    assert frames.wall_clock_table(content, "bernoulli", 4).rows == ()
