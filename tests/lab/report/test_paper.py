"""The paper's numbers: as they came, and as the paper's source has them, where these are at hand."""

import os
import re
from importlib.resources import files
from pathlib import Path

import pytest

from doublecv import estimators
from doublecv.lab.report import statistics
from doublecv.lab.sweep.plan import TARGETS

ESTIMATORS = {
    "RLOO": "rloo",
    "Double CV": "double-cv",
    "DisARM": "disarm",
    "ARMS": "arms",
    "RELAX": "relax",
    "RELAX (3 evals)": "relax",
}
CELL = re.compile(r"\$(-?)(\\bf )?\s*(-?)([\d.]+)\\pm([\d.]+)\$")


@pytest.fixture(scope="module")
def source():
    """The folder of the paper: beside the folder of the data."""
    if "DOUBLECV_DATA" not in os.environ:
        pytest.skip("DOUBLECV_DATA is not set: the paper's source is looked for beside it")
    folder = Path(os.environ["DOUBLECV_DATA"]).parent / "paper"
    if not folder.is_dir():
        pytest.skip(f"the paper's source is not at hand: no {folder}")
    return folder


def table(text, label):
    """The rows of the table of that label, comments removed: lists of cells."""
    (body,) = (
        part
        for part in re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", text, re.DOTALL)
        if f"\\label{{{label}}}" in part
    )
    body = re.search(r"\\begin\{tabular\}.*?\\toprule(.*?)\\bottomrule", body, re.DOTALL)[1]
    body = re.sub(r"(?<!\\)%.*|\\(mid|cmid)rule(\(l\))?(\{[^}]*\})?", "", body)
    return [[cell.strip() for cell in row.split("&")] for row in body.split(r"\\") if row.strip()]


def number(cell):
    """The value and its +-."""
    outer_sign, _, sign, value, error = CELL.fullmatch(cell).groups()
    return float(f"{outer_sign}{sign}{value}"), float(error)


def test_every_cell_is_there_once():
    assert len(statistics.paper_elbos()) == 3 * 2 * 2 * (4 + 4)
    assert {key.estimator for key in statistics.paper_elbos()} <= set(estimators.names())


@pytest.mark.parametrize("samples", [2, 4])
def test_the_targets_have_the_estimators_of_the_tables(samples):
    found = {key.estimator for key in statistics.paper_elbos() if key.samples == samples}
    assert found == set(TARGETS[f"table-k{samples}-bernoulli"].estimators)


@pytest.mark.parametrize("name", ["train_elbo.csv", "seconds_per_step.csv"])
def test_the_files_are_the_given_ones(name, source):
    assert files("doublecv.lab.report").joinpath("paper", name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("label", ["tab:K2-bin", "tab:K2-cont", "tab:K4-bin", "tab:K4-cont"])
def test_the_tables_of_the_appendix(label, source):
    heading, *rows = table((source / "double-control-variates.tex").read_text(), label)
    names = [ESTIMATORS[re.search(r"\{c\}\{(.*)\}", cell)[1]] for cell in heading[1:]]
    published, dataset = {}, None
    for first, *cells in rows:
        if title := re.search(r"\\emph\{(.*?)\}", first):
            dataset = title[1].lower().replace(" ", "-")
        else:
            for name, cell in zip(names, cells, strict=True):
                published[dataset, first.lower(), name] = number(cell)
    assert len(published) == 3 * 2 * 4
    table_of = {"bernoulli": "bin", "gaussian": "cont"}
    assert published == {
        (key.dataset, key.network, key.estimator): found
        for key, found in statistics.paper_elbos().items()
        if label == f"tab:K{key.samples}-{table_of[key.likelihood]}"
    }


@pytest.mark.parametrize("label", ["tab:K2", "tab:K4"])
def test_the_tables_of_the_main_part(label, source):
    """They hold the nonlinear networks again; RELAX in that of K = 4 is the RELAX of K = 2."""
    _, datasets, *rows = table((source / "double-control-variates.tex").read_text(), label)
    names = [re.search(r"\{c\}\{(.*)\}", cell)[1].lower() for cell in datasets[1:]]
    columns = list(zip(names, ["bernoulli"] * 3 + ["gaussian"] * 3, strict=True))
    held = {
        (key.dataset, key.likelihood, key.samples, key.estimator): found
        for key, found in statistics.paper_elbos().items()
        if key.network == "nonlinear"
    }
    assert len(rows) == {"tab:K2": 4, "tab:K4": 5}[label]
    for title, *cells in rows:
        estimator = ESTIMATORS[title]
        samples = 2 if estimator == "relax" else int(label[-1])
        for (dataset, likelihood), cell in zip(columns, cells, strict=True):
            assert number(cell) == held[dataset, likelihood, samples, estimator]


def test_the_table_of_times(source):
    heading, row = table((source / "double-control-variates.tex").read_text(), "tab:time")
    names = [ESTIMATORS[re.search(r"\{c\}\{(.*)\}", cell)[1]] for cell in heading[1:]]
    assert dict(zip(names, map(float, row[1:]), strict=True)) == statistics.paper_seconds_per_step()
