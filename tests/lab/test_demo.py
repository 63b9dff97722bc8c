"""`make demo` in small: one table with the baseline's ratios, and one figure."""

from dataclasses import replace

import pytest

from doublecv import estimators
from doublecv.lab import demo

pytestmark = pytest.mark.slow


def test_the_demo_compares_the_estimators_that_are_recommended():
    assert demo.ESTIMATORS[0] == "rloo"
    assert {"disarm", "double-cv", "quadratic-double-cv"} < set(demo.ESTIMATORS) <= set(estimators.names())
    demo.SETTINGS.check()


def test_one_table_and_one_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "FIGURE", tmp_path / "demo" / "digits.png")
    monkeypatch.setattr(demo, "ESTIMATORS", ("rloo", "double-cv"))
    monkeypatch.setattr(demo, "SETTINGS", replace(demo.SETTINGS, steps=4, record_every=1, evaluate_every=4))
    demo.main()
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows["RLOO"][1] == "1"
    assert demo.FIGURE.read_bytes().startswith(b"\x89PNG")
