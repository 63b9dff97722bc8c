"""The files of a report on a tiny sweep that was really run, and what the command says."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from tiny_sweep import SHIFT, STEPS, TinySweep

from doublecv.lab.cli import main
from doublecv.lab.common import run_folder
from doublecv.lab.report import paper, report
from doublecv.lab.report import toy as report_toy
from doublecv.lab.report.content import content
from doublecv.lab.report.curves import POINTS, VARIANCE, training_chart
from doublecv.lab.report.html import _json
from doublecv.lab.report.paper_numbers import paper_numbers
from doublecv.lab.report.runs import gather
from doublecv.lab.sweep import plan as sweep
from doublecv.lab.toy.run import run as run_toy
from doublecv.lab.train import metrics

SCALE = "20 of the paper's 1,000,000 steps, 1 to 2 of 5 seeds"
TOY_SCALE = "20 of the paper's 2,000 iterations, 2 seeds"


@pytest.fixture(scope="module")
def written(tiny_sweep):
    return {path.name: path for path in report.write(tiny_sweep)}


@pytest.fixture
def copy(tiny_sweep, tmp_path):
    return shutil.copytree(tiny_sweep, tmp_path / "sweep", ignore=shutil.ignore_patterns("report"))


def rows(path, **wanted):
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if all(row[name] == value for name, value in wanted.items())]


def last(folder, name):
    lines = [json.loads(line) for line in (folder / metrics.FILE).read_text().splitlines()]
    return [line[name] for line in lines if name in line][-1]


def test_every_cell_of_the_paper_is_a_row_of_its_own(written):
    found = rows(written["cells.csv"])
    places = {(row["dataset"], row["network"], row["estimator"]) for row in found}
    table = [cell for cell in paper.train_elbos() if cell.table == "tab:K2-bin"]
    assert places == {(cell.dataset, cell.network, cell.estimator) for cell in table}
    assert len(found) == len(table) == 24


@pytest.mark.parametrize(("estimator", "published", "error"), [("rloo", -241.53, 0.24), ("double-cv", -240.96, 0.17)])
def test_a_measured_cell_beside_the_papers(written, tiny_sweep, estimator, published, error):
    """The second seed is the first, higher by `SHIFT`: the mean is half of it higher, and so large is its error."""
    (row,) = rows(written["cells.csv"], network="nonlinear", dataset="fashion-mnist", estimator=estimator)
    first = last(tiny_sweep / "runs" / f"{estimator}-1", "train_elbo")
    assert (row["seeds"], row["paper_seeds"], row["steps"], row["paper_steps"]) == ("1 2", "5", str(STEPS), "1000000")
    assert float(row["train_elbo"]) == pytest.approx(first + SHIFT / 2)
    assert float(row["train_elbo_standard_error"]) == pytest.approx(SHIFT / 2)
    assert float(row["paper_train_elbo"]) == published
    assert float(row["paper_train_elbo_standard_error"]) == error
    difference = first + SHIFT / 2 - published
    assert float(row["difference"]) == pytest.approx(difference)
    combined = ((SHIFT / 2) ** 2 + error**2) ** 0.5
    assert float(row["difference_in_standard_errors"]) == pytest.approx(difference / combined)
    test = last(tiny_sweep / "runs" / f"{estimator}-1", "test_elbo")
    assert float(row["test_elbo"]) == pytest.approx(test + SHIFT / 2)
    assert (row["alpha"] != "") == (estimator == "double-cv")


def test_one_seed_has_no_standard_error(written):
    (row,) = rows(written["cells.csv"], network="nonlinear", dataset="fashion-mnist", estimator="relax")
    assert row["train_elbo"]
    assert row["difference"]
    assert (row["seeds"], row["train_elbo_standard_error"], row["difference_in_standard_errors"]) == ("1", "", "")


@pytest.mark.parametrize(
    ("dataset", "network", "estimator"),
    [("fashion-mnist", "nonlinear", "disarm"), ("fashion-mnist", "linear", "rloo"), ("mnist", "nonlinear", "rloo")],
)
def test_what_was_not_run_or_did_not_finish_is_empty(written, dataset, network, estimator):
    (row,) = rows(written["cells.csv"], dataset=dataset, network=network, estimator=estimator)
    assert float(row["paper_train_elbo"]) < -100
    paper_alone = {"likelihood", "K", "dataset", "network", "estimator", "paper_steps", "paper_seeds"}
    paper_alone |= {"paper_train_elbo", "paper_train_elbo_standard_error"}
    assert {name for name, value in row.items() if value} == paper_alone


def test_runs_that_do_not_count_are_named(written):
    said = {row["run"]: row["why_not"] for row in rows(written["runs.csv"], counts="no")}
    assert said == {
        "disarm-1": "cut before its end",
        "disarm-2": "failed: out of memory at <step 3>",
        "rloo-linear-1": "not begun",
    }
    for name, why in said.items():
        assert f"| {name} | table-k2-bernoulli | {why} |" in written["tables.md"].read_text()


def test_the_order(written):
    (row,) = rows(written["order.csv"])
    assert (row["estimators"], row["pairs"], row["clear_pairs"]) == ("rloo double-cv relax", "3", "")
    cells = {row["estimator"]: float(row["train_elbo"]) for row in rows(written["cells.csv"]) if row["train_elbo"]}
    agreeing = sum(
        cells[better] > cells[worse]
        for better, worse in (("relax", "double-cv"), ("relax", "rloo"), ("double-cv", "rloo"))
    )
    assert int(row["agreeing_pairs"]) == agreeing
    assert float(row["kendall_tau"]) == pytest.approx((2 * agreeing - 3) / 3)


def test_time_is_relative_to_rloo(written):
    """The paper's 0.0036 and 0.0080 s over the 0.0035 s of RLOO."""
    steps = {row["estimator"]: row for row in rows(written["time.csv"], workload="step", rloo_K="4")}
    assert float(steps["double-cv"]["paper_relative_to_rloo"]) == pytest.approx(36 / 35)
    assert float(steps["relax"]["paper_relative_to_rloo"]) == pytest.approx(80 / 35)
    assert float(steps["double-cv"]["relative_to_rloo"]) == pytest.approx(1.15)
    assert float(steps["double-cv"]["least_of_rounds"]) == pytest.approx(1.1)
    assert float(steps["double-cv"]["largest_of_rounds"]) == pytest.approx(1.2)
    assert steps["floor"]["paper_seconds"] == ""
    assert all(row["paper_seconds"] == "" for row in rows(written["time.csv"], workload="gradient"))
    assert all(row["paper_seconds"] == "" for row in rows(written["time.csv"], rloo_K="2"))


def test_the_toy_run_is_read_back(tiny_sweep):
    results = report_toy.read(tiny_sweep / "runs" / "toy-d3")
    again = run_toy(results.settings)
    assert (results.seeds, list(results.curves)) == ((1, 2), ["rloo", "double-cv", "r-star"])
    for name, curves in results.curves.items():
        np.testing.assert_array_equal(curves.best_variance, again.curves[name].best_variance)
        np.testing.assert_array_equal(curves.alpha, again.curves[name].alpha)


def test_every_caption_says_the_scale(written):
    """In Markdown the caption is the paragraph below a heading; in LaTeX and on the page it is marked as such."""
    markdown = dict(re.findall(r"^### (.*)\n\n(.*)$", written["tables.md"].read_text(), re.MULTILINE))
    assert len(markdown) == 7
    for title, caption in markdown.items():
        if title not in ("Time per step", "Runs that do not count"):
            assert caption.startswith((SCALE, TOY_SCALE)), title
    assert SCALE in re.search(r"\\caption\{.*ELBO.*\}", written["tables.tex"].read_text()).group()
    page = written["report.html"].read_text().replace("&#x27;", "'")
    of_figures = re.findall(r"<figcaption>(?!<strong>)(.*?)</figcaption>", page)
    assert len(of_figures) == 2 + 1 + 4 + 3
    assert all(SCALE in caption or TOY_SCALE in caption for caption in of_figures)
    of_tables = re.findall(r"<caption>.*?<strong>(.*?)</strong>(.*?)</span></caption>", page)
    results = [caption for title, caption in of_tables if "ELBO" in title or "Toy" in title or "Order" in title]
    assert len(results) == 4
    assert all(SCALE in caption or TOY_SCALE in caption for caption in results)


def test_the_latex_tables_have_the_papers_layout(written):
    text = written["tables.tex"].read_text()
    elbos = text[: text.index(r"\end{table*}")]
    assert r"\begin{tabular}{lrrr|r}" in elbos
    entries = [line.count("&") for line in elbos.splitlines() if line.endswith(r"\\") and "emph" not in line]
    assert entries == [4] * (1 + 3 * 2 * 2)
    assert r"\quad paper & $-241.53\pm0.24$ & $-240.96\pm0.17$ & $-241.02\pm0.20$ & $-240.63\pm0.16$ \\" in elbos
    nonlinear = [line for line in elbos.splitlines() if line.startswith("Nonlinear")][1]
    assert nonlinear.count(r"\bf ") == 1
    assert nonlinear.split(" & ")[3] == ""
    for name in ("table", "table*", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") > 0
    for rule in (r"\toprule", r"\bottomrule"):
        assert text.count(rule) == 1 + 2


def test_the_page_needs_nothing_from_elsewhere(written):
    page = written["report.html"].read_text()
    for attribute in re.findall(r"""\b(?:src|href)\s*=\s*["']([^"']*)""", page):
        assert attribute.startswith(("#", "data:")), attribute
    assert "@import" not in page
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "dataset=&lt;fashion-mnist&gt;" in page
    assert "<step 3>" not in page


def test_no_text_can_end_the_script_that_it_stands_in():
    assert "<" not in _json({"name": "</script>"})
    assert json.loads(_json({"name": "</script>"})) == {"name": "</script>"}


def test_a_long_curve_is_thinned_and_says_so(tiny_sweep):
    found = content(sweep.load(tiny_sweep), paper_numbers())
    (column,) = [column for column in found.tables[0].columns if any(cell.counted for cell in column.cells)]
    whole = training_chart(column, VARIANCE, "chart")
    assert "Drawn from" not in whole.reading
    assert whole.data["lines"][0]["x"] == list(range(2, STEPS + 1, 2))
    for cell in column.cells:
        for run in cell.counted:
            long = [{"step": step, "encoder_variance": 1.0 + step} for step in range(1, 2 * POINTS)]
            object.__setattr__(run.result, "lines", (*long,))
    thin = training_chart(column, VARIANCE, "chart")
    assert f"Drawn from {POINTS} of {2 * POINTS - 1} records." in thin.reading
    steps = thin.data["lines"][0]["x"]
    assert (len(steps), steps[0], steps[-1]) == (POINTS, 1, 2 * POINTS - 1)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: (folder / metrics.FILE).write_text("{"), "cannot be read: JSONDecodeError"),
        (lambda folder: (folder / metrics.FILE).unlink(), "cannot be read: FileNotFoundError"),
        (lambda folder: cut(folder, 3), "metrics.jsonl has no train_elbo"),
        (lambda folder: cut(folder, 6), "metrics.jsonl ends at step 10 of 20"),
        (lambda folder: (folder / run_folder.CONFIG).write_text("{}"), "cannot be read: KeyError"),
        (lambda folder: other_run(folder), "the folder holds a run with estimator disarm, not rloo"),
    ],
)
def test_a_damaged_run_does_not_count(copy, damage, why):
    damage(copy / "runs" / "rloo-1")
    runs = gather(sweep.load(copy))
    assert why in {left.run.name: left.why for left in runs.uncounted}["rloo-1"]
    assert "rloo-1" not in [run.run.name for run in runs.train]


def cut(folder, lines):
    path = folder / metrics.FILE
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def other_run(folder):
    path = folder / run_folder.CONFIG
    config = json.loads(path.read_text())
    config["settings"]["estimator"] = "disarm"
    path.write_text(json.dumps(config))


def test_a_sweep_of_which_nothing_is_done(tmp_path, capsys):
    made = TinySweep(tmp_path)
    made.planned("rloo-1", estimator="rloo")
    main(["report", str(made.write())])
    assert "report.html" in capsys.readouterr().out
    assert "no run is finished" in (tmp_path / "report" / "tables.md").read_text()
    assert not any(row["train_elbo"] for row in rows(tmp_path / "report" / "cells.csv"))


def test_the_command_prints_what_it_wrote_and_replaces_an_older_report(copy, capsys):
    main(["report", str(copy)])
    printed = capsys.readouterr().out.splitlines()
    names = ["report.html", "tables.md", "tables.tex", "cells.csv", "order.csv", "time.csv", "toy.csv", "runs.csv"]
    assert printed == [str(copy / "report" / name) for name in names]
    document = json.loads((copy / sweep.FILE).read_text())
    document["runs"] = [run for run in document["runs"] if run["kind"] == "toy"]
    (copy / sweep.FILE).write_text(json.dumps(document))
    main(["report", str(copy)])
    assert sorted(path.name for path in (copy / "report").iterdir()) == [
        "report.html", "runs.csv", "tables.md", "tables.tex", "toy.csv",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no sweep"),
        ("not JSON", "cannot be read"),
        ('{"format": 99}', "has format 99"),
        ("[]", "cannot be read"),
    ],
)
def test_a_missing_or_foreign_folder_is_one_line(tmp_path, capsys, content, said):
    folder = tmp_path / "folder"
    if content is not None:
        folder.mkdir()
        (folder / sweep.FILE).write_text(content)
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(folder)])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("doublecv report: error: ")
    assert said in error
    assert error.count("\n") == 1
    assert not (folder / "report").exists()
