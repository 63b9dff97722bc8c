"""Runs sorted into the paper's tables, with made-up runs and made-up numbers for the paper's."""

import pytest
from made_up_runs import made_up

from doublecv.lab.common.errors import InputError
from doublecv.lab.report.cells import Place, cell_tables
from doublecv.lab.report.runs import Counted, Records
from doublecv.lab.report.statistics import Estimate

PAPER = {
    Place("bernoulli", samples, dataset, "nonlinear", estimator): Estimate(mean, 0.3)
    for samples, dataset, estimator, mean in (
        (2, "mnist", "rloo", -11.0),
        (2, "mnist", "double-cv", -10.0),
        (2, "mnist", "relax", -9.0),
        (2, "omniglot", "rloo", -20.0),
        (4, "mnist", "rloo", -8.0),
    )
}


def counted(run, train_elbo):
    return Counted(run, Records(({"step": 5, "train_elbo": -99.0}, {"step": 10, "train_elbo": train_elbo})))


def tables(*elbos, waiting=()):
    planned = [run for run, _ in elbos]
    return cell_tables([*planned, *waiting], [counted(run, elbo) for run, elbo in elbos], PAPER)


def cell(table, dataset, estimator):
    (column,) = [column for column in table.columns if column.dataset == dataset]
    return next(cell for cell in column.cells if cell.estimator == estimator)


def test_a_cell_is_the_mean_over_its_seeds_beside_the_papers():
    (table,) = tables((made_up("rloo", 1), -13.0), (made_up("rloo", 2), -12.2))
    found = cell(table, "mnist", "rloo")
    assert found.measured().mean == pytest.approx(-12.6)
    assert found.measured().standard_error == pytest.approx(0.4)
    assert found.seeds == (1, 2)
    assert found.difference == pytest.approx(-1.6)
    assert found.difference_in_standard_errors == pytest.approx(-1.6 / 0.5)


def test_what_was_not_run_is_empty():
    (table,) = tables((made_up("rloo"), -13.0), waiting=[made_up("double-cv")])
    for dataset, estimator in (("mnist", "double-cv"), ("mnist", "relax"), ("omniglot", "rloo")):
        found = cell(table, dataset, estimator)
        assert found.paper is not None
        assert (found.measured(), found.difference, found.difference_in_standard_errors) == (None, None, None)
    assert [column.dataset for column in table.columns] == ["mnist", "omniglot"]
    assert [column.dataset for column in table.planned_columns] == ["mnist"]


def test_an_estimator_that_the_paper_does_not_have_comes_last():
    (table,) = tables((made_up("muprop"), -1.0), (made_up("rloo"), -13.0))
    assert [cell.estimator for cell in table.columns[0].cells] == ["rloo", "double-cv", "relax", "muprop"]
    assert cell(table, "mnist", "muprop").paper is None
    assert cell(table, "mnist", "muprop").difference is None


def test_relax_with_one_sample_stands_in_the_tables_of_every_k():
    """The paper repeats its numbers for RELAX in the table of K = 4."""
    relax = made_up("relax", samples=1)
    two, four = tables((made_up("rloo"), -13.0), (made_up("rloo", samples=4), -9.0), (relax, -9.5))
    assert (two.samples, four.samples) == (2, 4)
    for table in (two, four):
        assert cell(table, "mnist", "relax").measured().mean == -9.5
        assert cell(table, "mnist", "relax").paper.mean == -9.0
    assert cell(four, "mnist", "rloo").paper.mean == -8.0
    (alone,) = tables((relax, -9.5))
    assert alone.samples == 2


def test_the_order_is_that_of_comparable_cells():
    (table,) = tables((made_up("rloo"), -9.0), (made_up("double-cv"), -12.0), (made_up("muprop"), 0.0))
    assert (table.columns[0].agreement.pairs, table.columns[0].agreement.tau) == (1, -1.0)


def test_runs_of_another_length_are_another_table():
    short, long = tables((made_up("rloo"), -13.0), (made_up("rloo", steps=20), -12.0))
    assert (short.steps, long.steps) == (10, 20)
    assert cell(short, "mnist", "rloo").measured().mean == -13.0
    assert short.name != long.name


def test_two_runs_of_one_seed_are_an_error():
    with pytest.raises(InputError, match=r"^first and second are both seed 1 of rloo on mnist; "):
        tables((made_up("rloo", name="first"), -1.0), (made_up("rloo", name="second"), -2.0))
