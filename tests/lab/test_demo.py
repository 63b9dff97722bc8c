"""`make demo` in small: one table with the baseline's ratios, and two figures."""

from dataclasses import replace

import pytest

from doublecv import estimators
from doublecv.lab import demo

pytestmark = pytest.mark.slow


def test_the_demo_compares_the_estimators_that_are_recommended():
    assert demo.ESTIMATORS[0] == "rloo"
    assert {"disarm", "double-cv", "quadratic-double-cv"} < set(demo.ESTIMATORS) <= set(estimators.names())
    demo.TOY.check()
    demo.VAE.check()


def test_one_table_and_two_figures(tmp_path, monkeypatch, capsys):
    chosen = ("rloo", "double-cv")
    monkeypatch.setattr(demo, "FOLDER", tmp_path / "demo")
    monkeypatch.setattr(demo, "ESTIMATORS", chosen)
    monkeypatch.setattr(demo, "TOY", replace(demo.TOY, estimators=chosen, dimension=3, iterations=4, every=1, draws=20))
    monkeypatch.setattr(demo, "VAE", replace(demo.VAE, network="linear", steps=4, record_every=1, evaluate_every=4))
    demo.main()
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows["RLOO"][1:3] == ["1", "1"]
    assert {"toy.png", "vae.png"} == {path.name for path in (tmp_path / "demo").iterdir()}
