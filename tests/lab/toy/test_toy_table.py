"""The table's numbers, on curves whose medians are known by hand."""

import io

import numpy as np
import pytest
from rich.console import Console

from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import Curves, ToyResults, summarise, table

ITERATIONS = np.array([0, 15, 20, 30, 40])


def curves(variance, probability=None, objective=None):
    variance = np.asarray(variance, dtype=float)
    unknown = np.full_like(variance, np.nan)

    def given(values):
        return unknown if values is None else np.broadcast_to(np.asarray(values, dtype=float), variance.shape)

    return Curves(
        variance=variance,
        objective=given(objective),
        mean_probability=given(probability),
        alpha=unknown,
    )


def results(**by_name):
    named = {name.replace("_", "-"): each for name, each in by_name.items()}
    seeds = len(next(iter(named.values())).variance)
    settings = ToySettings(estimators=tuple(named), iterations=40, seeds=seeds)
    return ToyResults(settings, ITERATIONS, named)


def test_medians_are_relative_to_rloo_at_the_same_iteration():
    rloo = curves([[1, 2, 4, 8, 16]])
    other = curves([[1, 1, 1, 1, 1]])
    of_rloo, of_other = summarise(results(rloo=rloo, r_star=other))
    assert (of_rloo.name, of_rloo.relative_variance) == ("rloo", 1)
    assert (of_other.name, of_other.relative_variance) == ("r-star", 1 / 4)
    assert of_other.late_relative_variance == 1 / 8


def test_without_a_run_of_rloo_nothing_is_relative():
    (summary,) = summarise(results(r_star=curves([[9, 9, 9, 9, 9]])))
    assert np.isnan(summary.relative_variance)


def test_reached_is_the_first_record_above_0_9_in_the_median_seed():
    probability = [[0.5, 0.91, 0.8, 0.95, 1], [0.5, 0.6, 0.9, 0.91, 1], [0.5, 0.5, 0.5, 0.5, 0.5]]
    (summary,) = summarise(results(rloo=curves(np.ones((3, 5)), probability=probability)))
    assert summary.reached == 30


def test_final_objective_is_the_mean_over_the_seeds():
    objective = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 2]]
    (summary,) = summarise(results(rloo=curves(np.ones((2, 5)), objective=objective)))
    assert summary.final_objective == 1.5


def test_variance_of_0_divides_without_a_warning():
    (summary,) = summarise(results(rloo=curves(np.zeros((1, 5)))))
    assert np.isnan(summary.relative_variance)


@pytest.mark.parametrize("width", [80])
def test_printed_table_fits_the_terminal(width):
    names = ("rloo", "double_cv_current", "reinforce")
    each = curves(np.full((1, 5), 1e6), probability=0.5, objective=0.25)
    by_name = dict.fromkeys(names, each) | {"rloo": curves(np.full((1, 5), 1e-3), probability=0.5, objective=0.25)}
    out = io.StringIO()
    Console(file=out, width=width).print(table(results(**by_name)))
    printed = out.getvalue()
    assert "…" not in printed
    assert "double-cv-current" in printed
    assert "1.00e+09" in printed
    assert "never" in printed
    assert "0.250000" in printed
