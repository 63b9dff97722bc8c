"""The figures are written as PNG and SVG, the same bytes each time."""

import numpy as np
import pytest

from doublecv.lab.toy.problem import ToySettings
from doublecv.lab.toy.results import Curves, ToyResults, write_figures

CURVES = ("variance", "objective", "mean-probability")


def results(variance=1e-9, alpha=np.nan, names=("rloo", "double-cv-current")):
    numbers = np.random.default_rng(0).uniform(0.5, 1, size=(2, 4))
    each = Curves(
        variance=variance * numbers,
        objective=numbers,
        mean_probability=numbers,
        alpha=alpha * numbers,
    )
    settings = ToySettings(estimators=names, iterations=30, seeds=2)
    return ToyResults(settings, np.array([0, 10, 20, 30]), dict.fromkeys(names, each))


def test_every_figure_comes_as_png_and_svg(tmp_path):
    written = write_figures(results(alpha=-1.0), tmp_path)
    wanted = {f"{name}.{kind}" for name in (*CURVES, "alpha", "overview") for kind in ("png", "svg")}
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()} == wanted
    for path in written:
        start = path.read_bytes()[:5]
        assert start == (b"\x89PNG\r" if path.suffix == ".png" else b"<?xml")


def test_no_figure_of_alpha_where_no_estimator_has_one(tmp_path):
    names = {path.stem for path in write_figures(results(), tmp_path)}
    assert names == {*CURVES, "overview"}


def test_figures_are_the_same_bytes_each_time(tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        write_figures(results(alpha=-1.0), folder)
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes(), path.name


@pytest.mark.parametrize("variance", [0.0, np.nan])
def test_variance_that_a_logarithm_has_no_place_for(tmp_path, variance):
    write_figures(results(variance=variance), tmp_path)
    assert (tmp_path / "overview.png").stat().st_size > 0


def test_an_estimator_without_a_known_look_is_drawn_too(tmp_path):
    write_figures(results(names=("rloo", "someone-elses")), tmp_path)
    assert (tmp_path / "overview.png").exists()
