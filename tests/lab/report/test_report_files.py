"""The files of a report on a small sweep, and what the command prints."""

import csv
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from tiny_sweep import LEVEL, SHIFT, STEPS, TinySweep, toy_results, trained, unseal

from doublecv.lab.cli import main
from doublecv.lab.report import render
from doublecv.lab.report.collect import POINTS, Records
from doublecv.lab.report.statistics import paper_elbos
from doublecv.lab.sweep import plan as sweep

SCALE = "20 steps, 1 to 2 seeds (the paper: 1,000,000 and 5)"
TOY_SCALE = "20 iterations, 2 seeds (the paper: 2,000 iterations)"


@pytest.fixture(scope="module")
def written(tiny_sweep):
    return {path.name: path for path in render.write(tiny_sweep)}


def rows(path, **wanted):
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if all(row[name] == value for name, value in wanted.items())]


def test_every_cell_of_the_paper_is_a_row_of_its_own(written):
    found = rows(written["cells.csv"])
    places = [tuple(row[name] for name in ("likelihood", "K", "dataset", "network", "estimator")) for row in found]
    published = {tuple(map(str, key)) for key in paper_elbos()}
    assert len(places) == len(set(places)) == len(published) == 96
    assert set(places) == published


@pytest.mark.parametrize(("estimator", "published", "error"), [("rloo", -241.53, 0.24), ("double-cv", -240.96, 0.17)])
def test_a_measured_cell_beside_the_papers(written, estimator, published, error):
    """The second seed is the first, higher by `SHIFT`: the mean is half of it higher, and so large is its error."""
    (row,) = rows(written["cells.csv"], estimator=estimator, steps=str(STEPS), network="nonlinear")
    mean = LEVEL[estimator] + SHIFT / 2
    assert (row["seeds"], row["steps"], row["verdict"]) == ("1 2", str(STEPS), "20 steps")
    assert float(row["train_elbo"]) == pytest.approx(mean)
    assert float(row["train_elbo_standard_error"]) == pytest.approx(SHIFT / 2)
    assert (float(row["paper_train_elbo"]), float(row["paper_train_elbo_plus_minus"])) == (published, error)
    assert float(row["difference"]) == pytest.approx(mean - published)
    combined = ((SHIFT / 2) ** 2 + error**2) ** 0.5
    assert float(row["difference_in_plus_minus"]) == pytest.approx((mean - published) / combined)
    assert float(row["test_elbo"]) == pytest.approx(mean - 2)
    assert (row["alpha"] != "") == (estimator == "double-cv")


def test_one_seed_has_no_standard_error(written):
    (row,) = rows(written["cells.csv"], estimator="relax", steps="20")
    assert (row["seeds"], row["train_elbo"], row["train_elbo_standard_error"]) == ("1", "-280.0", "")
    assert float(row["difference_in_plus_minus"]) == pytest.approx((-280 + 240.63) / 0.16)


def test_what_was_not_run_or_did_not_finish_has_no_numbers(written):
    for wanted, verdict in (
        ({"network": "nonlinear", "estimator": "disarm", "dataset": "fashion-mnist"}, "not finished"),
        ({"network": "linear", "estimator": "rloo", "dataset": "fashion-mnist"}, "not run"),
        ({"network": "nonlinear", "estimator": "rloo", "dataset": "mnist"}, "not run"),
    ):
        (row,) = rows(written["cells.csv"], likelihood="bernoulli", K="2", **wanted)
        assert float(row["paper_train_elbo"]) < -100
        assert (row["train_elbo"], row["difference"], row["test_elbo"], row["verdict"]) == ("", "", "", verdict)


def test_runs_that_are_not_complete_are_named(written):
    found = {row["run"]: (row["state"], row["steps_done"], row["why"]) for row in rows(written["runs.csv"])}
    assert {name: one for name, one in found.items() if one[0] != "complete"} == {
        "disarm-1": ("interrupted", "10", ""),
        "disarm-2": ("failed", "", "out of memory at <step 3>"),
        "rloo-linear-1": ("not started", "", ""),
    }
    assert len(found) == 10
    assert r"| disarm-2 | table-k2-bernoulli | failed |  | 20 |  | out of memory at \<step 3\> |" in (
        written["tables.md"].read_text()
    )
    assert {row["checksum"] for row in rows(written["runs.csv"], state="complete")} == {"yes"}


def test_time_is_relative_to_rloo(written):
    """The paper's 0.0036 and 0.0080 s over the 0.0035 s of RLOO."""
    steps = {row["estimator"]: row for row in rows(written["time.csv"], workload="step", rloo_K="4")}
    assert float(steps["double-cv"]["paper_relative_to_rloo"]) == pytest.approx(36 / 35)
    assert float(steps["relax"]["paper_relative_to_rloo"]) == pytest.approx(80 / 35)
    assert float(steps["double-cv"]["relative_to_rloo"]) == pytest.approx(1.15)
    assert float(steps["double-cv"]["least_of_rounds"]) == pytest.approx(1.1)
    assert float(steps["double-cv"]["largest_of_rounds"]) == pytest.approx(1.2)
    assert steps["floor"]["paper_milliseconds"] == ""
    for wanted in ({"workload": "gradient"}, {"rloo_K": "2"}):
        assert all(row["paper_milliseconds"] == "" for row in rows(written["time.csv"], **wanted))


def test_the_toy_run_is_read_back(tiny_sweep):
    (toy,) = render.read(tiny_sweep).toy.values()
    again = toy_results(toy.settings)
    assert (toy.settings.seeds, list(toy.curves)) == (2, ["rloo", "double-cv", "r-star"])
    for name, curves in toy.curves.items():
        np.testing.assert_array_equal(curves.variance, again.curves[name].variance)
        np.testing.assert_array_equal(curves.alpha, again.curves[name].alpha)


def test_every_caption_says_the_scale(written):
    markdown = dict(re.findall(r"^### (.*)\n\n(.*)$", written["tables.md"].read_text(), re.MULTILINE))
    assert len(markdown) == 7
    for title, caption in markdown.items():
        if title not in ("Time per step", "Runs that are not complete", "The paper's cells"):
            assert caption.startswith((SCALE, TOY_SCALE)), title
    assert SCALE in re.search(r"\\caption\{Training ELBO, K.*\}", written["tables.tex"].read_text()).group()
    page = written["report.html"].read_text()
    assert "standard error" not in re.sub(r"its standard error|their standard errors", "", page)
    assert "Omniglot 28x28" in page


def test_the_latex_tables_are_those_of_the_other_formats(written):
    text = written["tables.tex"].read_text()
    for name in ("table*", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 7
    row = r"Fashion-MNIST & nonlinear & RLOO & $20$ & $-299.75\pm 0.25$ & 2 & $-241.53\pm 0.24$ & $-58.22$"
    assert row in text


def test_the_page_needs_nothing_from_elsewhere(written):
    page = written["report.html"].read_text()
    for attribute in re.findall(r"""\b(?:src|href)\s*=\s*["']([^"']*)""", page):
        assert attribute.startswith(("#", "data:")), attribute
    assert "@import" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert "dataset=&lt;fashion-mnist&gt;" in page
    assert "<step 3>" not in page


def test_a_long_curve_is_thinned_evenly_and_keeps_its_end():
    records = Records()
    for step in range(1, 100_001):
        records.add({"step": step, "elbo": -step})
    curve = records.curves["elbo"]
    steps = list(curve)
    assert POINTS <= len(steps) <= 2 * POINTS + 2
    assert (steps[0], steps[-1]) == (1, 100_000)
    assert len(set(np.diff(steps[:-1]))) == 1
    assert curve[steps[5]] == -steps[5]


def test_tick_labels_keep_their_digits(tiny_sweep):
    """Only the coordinates of the curves are rounded: the chart over minutes ends at 0.0023 minutes."""
    content = render.read(tiny_sweep)
    (group,) = next(section.groups for section in render.sections(content) if section.name == "wall-clock")
    ticks = re.findall(r"<text[^>]*>(0\.\d+)</text>", group.charts[0].svg)
    assert len(set(ticks)) == len(ticks) >= 4


def test_nothing_heavy_is_imported(tiny_sweep):
    """Not even to write a report is JAX imported, and matplotlib only to draw."""
    program = (
        "import sys, pathlib; import doublecv.lab.report.render as render; "
        "assert not {'jax', 'matplotlib', 'torch', 'optax'} & set(sys.modules); "
        "render.write(pathlib.Path(sys.argv[1])); assert not {'jax', 'optax', 'equinox'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tiny_sweep)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_sweep_of_which_nothing_is_done(tmp_path, capsys):
    made = TinySweep(tmp_path)
    made.planned("rloo-1", estimator="rloo")
    main(["report", str(made.write())])
    assert "report.html" in capsys.readouterr().out
    assert "no run is complete" in (tmp_path / "report" / "tables.md").read_text()
    assert not any(row["train_elbo"] for row in rows(tmp_path / "report" / "cells.csv"))


def test_the_command_prints_what_it_wrote_and_replaces_an_older_report(copy, capsys):
    main(["report", str(copy)])
    printed = capsys.readouterr().out.splitlines()
    names = ["report.html", "tables.md", "tables.tex", "cells.csv", "time.csv", "toy.csv", "runs.csv"]
    assert printed == [str(copy / "report" / name) for name in names]
    unseal(copy, lambda held: held.update(runs=[run for run in held["runs"] if run["kind"] == "toy"]))
    main(["report", str(copy)])
    assert sorted(path.name for path in (copy / "report").iterdir()) == [
        "report.html", "runs.csv", "tables.md", "tables.tex", "toy.csv",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no sweep"),
        ("not JSON", "wanted a JSON object: JSON is malformed"),
        ('{"format": 99}', "has format 99"),
        ("[]", "wanted a JSON object"),
        ('{"format": 1, "command": 3}', "field command: Expected `str`, got `int`"),
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


def test_runs_of_version_0_1_are_read_and_said_to_be_without_checksum(copy):
    for path in copy.glob("runs/*/*.json*"):
        lines = path.read_text()
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(_without(json.loads(line))) + "\n" for line in lines.splitlines()))
        elif path.name == "settings.json":
            settings = {_old(name): value for name, value in _without(json.loads(lines)).items()}
            path.write_text(json.dumps({"settings": settings, "seeds": 1}))
        else:
            path.write_text(json.dumps(_without(json.loads(lines)) | {"files": {}}))
    unseal(copy, lambda held: None)
    content = render.read(copy)
    assert [one.state for one in content.unread] == ["failed", "not started"]
    assert len(trained(content)) == 6
    assert len([run for run in content.runs if not run.sealed]) == 8
    page = render.page(content, render.sections(content))
    assert "8 runs are without checksum" in page


def _without(document):
    return {name: value for name, value in document.items() if name != "checksum"}


def _old(name):
    return {"dataset": "data", "network": "model"}.get(name, name)
