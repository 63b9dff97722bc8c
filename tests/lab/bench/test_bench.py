"""The benchmark: how times are taken, and what is printed and written."""

import json
import re

import numpy as np
import pytest

from doublecv import estimators
from doublecv.diagnostics import timing
from doublecv.diagnostics.timing import round_times
from doublecv.estimators import label
from doublecv.lab.bench import jax as bench_jax
from doublecv.lab.bench import problem
from doublecv.lab.bench.command import _chosen, main, measure
from doublecv.lab.bench.problem import BenchSettings, Workload
from doublecv.lab.common.errors import InputError


class Clock:
    """A clock that stands still but for what the calls take."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.log = []
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def call(self, name, durations):
        remaining = iter(durations)

        def call():
            self.log.append(name)
            self.now += next(remaining)

        return call


def test_calls_in_turn_and_the_fastest_of_a_round(monkeypatch):
    clock = Clock(monkeypatch)
    durations = {"rloo": [9.0, 9.0, 0.003, 0.001, 0.002, 0.004], "double-cv": [9.0, 9.0, 0.002, 0.006, 0.008, 0.008]}
    workload = Workload(lambda estimator: clock.call(label(estimator), durations[label(estimator)]))
    settings = BenchSettings(estimators=("double-cv",), samples=(2,), rounds=2, calls=2)
    rloo, double_cv = measure(settings, {"gradient": workload})
    turns = clock.log[4:]
    assert [sorted(turns[i : i + 2]) for i in range(0, 8, 2)] == [["double-cv", "rloo"]] * 4
    assert rloo.rounds == pytest.approx((1.0, 2.0))
    assert double_cv.rounds == pytest.approx((2.0, 8.0))
    assert double_cv.milliseconds == pytest.approx(5.0)
    assert double_cv.ratio == pytest.approx(3.0), "the median of the ratios in the same round"


def test_no_call_always_follows_the_same_one(monkeypatch):
    clock = Clock(monkeypatch)
    round_times([clock.call(name, [0.001] * 100) for name in "abc"], rounds=20)
    turns = "".join(clock.log[6:])
    assert {turns[i : i + 3] for i in range(0, 60, 3)} == {"abc", "acb", "bac", "bca", "cab", "cba"}


def test_rows_are_relative_to_rloo(monkeypatch):
    clock = Clock(monkeypatch)

    def workload(estimator):
        seconds = estimator.samples * (0.003 if label(estimator) == "double-cv" else 0.002)
        return clock.call(label(estimator), [seconds] * 1000)

    settings = BenchSettings(estimators=("double-cv",), rounds=3, calls=2)
    rows = list(measure(settings, {"gradient": Workload(workload)}))
    assert [(row.estimator, row.samples) for row in rows] == [
        ("rloo", 2),
        ("double-cv", 2),
        ("rloo", 4),
        ("double-cv", 4),
    ]
    assert [row.ratio for row in rows] == pytest.approx([1.0, 1.5, 1.0, 1.5])
    assert [row.milliseconds for row in rows] == pytest.approx([4.0, 6.0, 8.0, 12.0])
    assert {row.floor_ratio for row in rows} == {None}


def test_rows_are_relative_to_the_floor(monkeypatch):
    clock = Clock(monkeypatch)
    settings = BenchSettings(estimators=("relax",), samples=(4,), rounds=3, calls=2)
    workload = Workload(
        lambda estimator: clock.call(label(estimator), [0.001 * estimator.evaluations] * 1000),
        lambda samples: clock.call("floor", [0.0005 * samples] * 1000),
        steps=10,
    )
    rows = list(measure(settings, {"step": workload}))
    assert [row.milliseconds for row in rows] == pytest.approx([0.4, 0.3, 0.2])
    assert [(row.estimator, row.baseline_samples, row.samples) for row in rows] == [
        ("rloo", 4, 4),
        ("relax", 4, 1),
        ("floor", 4, 4),
    ]
    assert [row.ratio for row in rows] == pytest.approx([1.0, 0.75, 0.5])
    assert [row.floor_ratio for row in rows] == pytest.approx([2.0, 1.5, 1.0])


def test_every_registered_estimator_is_timed():
    assert set(_chosen((), 4)) == set(estimators.names()) - {"r-star", "carms", "disarm-tree"}
    assert set(_chosen((), 4)) - set(_chosen((), 2)) == {"double-cv-antithetic"}, "it takes two pairs"
    assert next(iter(_chosen((), 2))) == "rloo"
    assert "disarm" not in _chosen((), 3), "it takes an even number of samples"
    with pytest.raises(InputError, match="--samples 3 does not fit --estimators disarm"):
        _chosen(("disarm",), 3)


@pytest.fixture
def small(monkeypatch):
    """Make the networks small, which leaves their compilation."""
    widths = {"BATCH": 4, "PIXELS": 6, "LATENTS": 5, "FEATURES": 3, "GRADIENT_DECODER": (5, 7, 6)}
    for name, value in (widths | {"STEP_ENCODER": (6, 8, 5), "STEP_DECODER": (5, 8, 6)}).items():
        monkeypatch.setattr(problem, name, value)


@pytest.mark.usefixtures("small")
def test_the_floor_multiplies_at_every_call():
    call = bench_jax.floor(2)
    for _ in range(2):
        shapes = [[None if product is None else product.shape for product in layer] for layer in call()]
        assert shapes == [
            [(4, 8), (6, 8), None],
            [(4, 5), (8, 5), (4, 8)],
            [(8, 8), (5, 8), None],
            [(8, 6), (8, 6), (8, 8)],
        ]


def test_the_floor_multiplies_at_every_step():
    network = [(np.ones((4, 6)), np.ones((6, 8)), np.ones((4, 8))), (np.ones((4, 8)), np.ones((8, 5)), np.ones((4, 5)))]
    products = bench_jax.multiply([network])
    assert [[product is not None for product in layer] for layer in products] == [[True, True, False], [True] * 3]
    compiled = bench_jax.multiply_repeatedly.lower([network], products).compile().as_text()
    computations = re.split(r"\n{2,}", compiled)
    body = re.search(r" while\(.*body=(%[\w.-]+)", compiled).group(1)
    (loop,) = (text for text in computations if text.startswith(f"{body} "))
    assert len(re.findall(r" dot\(| kind=kCustom", loop)) == 5


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("torch", "evaluations"), [(False, {"rloo": 2}), (True, {"rloo": 2, "muprop": 3, "relax": 3})], ids=["jax", "torch"]
)
def test_short_run(torch, evaluations, tmp_path, capsys):
    out = tmp_path / "results" / "bench.json"
    names = tuple(evaluations)
    main(BenchSettings(torch=torch, estimators=names, samples=(2,), rounds=1, calls=1, threads=1, out=out))
    printed = capsys.readouterr().out
    assert ("PyTorch" if torch else "JAX") in printed
    document = json.loads(out.read_text())
    expected = [(workload, *pair) for workload in ("gradient", "step") for pair in evaluations.items()]
    floor = [] if torch else [("step", "floor", 0)]
    assert [(row["workload"], row["estimator"], row["evaluations"]) for row in document["rows"]] == expected + floor
    assert all(row["milliseconds"] > 0 and len(row["rounds"]) == 1 for row in document["rows"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (BenchSettings(rounds=0), "rounds must be at least 1, got 0"),
        (BenchSettings(calls=0), "calls must be at least 1, got 0"),
        (BenchSettings(threads=0), "threads must be at least 1, got 0"),
        (BenchSettings(samples=()), "--samples needs at least one value"),
        (BenchSettings(estimators=("gumbel",)), "unknown estimator 'gumbel'"),
        (BenchSettings(estimators=("r-star",)), "unknown estimator 'r-star'"),
    ],
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(InputError, match=message):
        main(settings)
