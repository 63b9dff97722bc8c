"""A sweep that is killed, stopped and started again ends with the bits of one that was left alone."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from sweeps import (
    SMALL,
    contents,
    finish,
    in_the_middle,
    kill,
    reproduce,
    runs,
    start,
    wait_until,
    wait_until_nothing_runs,
)

from doublecv.lab.common.errors import InputError
from doublecv.lab.sweep.plan import FAILURE, LOG, SweepRun, begin, claimed, cores, plan
from doublecv.lab.sweep.worker import run as run_now
from doublecv.lab.sweep.worker import single_threaded

pytestmark = pytest.mark.slow

SWEEP = ["table-k2-bernoulli", "--steps", "60", "--seeds", "1", *SMALL, "estimator=rloo,double-cv"]


def test_the_life_of_a_sweep(tmp_path):
    alone, cut = tmp_path / "alone", tmp_path / "cut"
    process = start(*SWEEP, out=alone)
    if cores() > 1:
        wait_until(lambda: [run.state() for run in runs(alone)] == ["running", "running"], process)
    status, printed, told = finish(process)
    assert status == 0, told
    assert printed == f"2 runs done; to look at them: doublecv report {alone}\n"
    assert [line.split()[:2] for line in told.splitlines()] == [["done", "1/2"], ["done", "2/2"]]
    assert "ELBO -" in told

    # Killed with all that it started, when one run is done and the other in the middle.
    process = start(*SWEEP, out=cut, cores=1)
    wait_until(lambda: any(in_the_middle(run) for run in runs(cut)[1:]), process)
    kill(process)
    wait_until_nothing_runs(cut)
    first, second = runs(cut)
    assert (first.state(), second.state()) == ("done", "interrupted")
    before = contents(first.folder)

    # Two sweeps in one folder would spoil each other's runs.
    process = start(*SWEEP, out=cut)
    wait_until(lambda: second.state() == "running", process)
    with pytest.raises(InputError, match=f"another process works in {cut}"), claimed(cut):
        pass

    # Ctrl-C reaches the whole group; only the first process acts on it.
    os.killpg(process.pid, signal.SIGINT)
    status, printed, told = finish(process)
    assert (status, printed) == (130, "")
    assert told.splitlines()[:2] == ["1 of 2 runs are done already", "stopping: the runs save first"]
    assert told.splitlines()[2].startswith(f"stopped  {second.name}  at step ")
    command = f"doublecv reproduce {' '.join(SWEEP)} --out {cut}"
    assert told.splitlines()[-2:] == [f"to resume: {command}", "doublecv reproduce: stopped"]
    assert second.state() == "interrupted"

    status, _, told = reproduce(*SWEEP, out=cut)
    assert status == 0, told
    assert contents(first.folder) == before
    assert "resuming from" in (second.folder / LOG).read_text()
    assert "resuming from" not in (first.folder / LOG).read_text()
    for run in (first, second):
        for name in ("metrics.jsonl", "config.json", "settings.json"):
            assert (run.folder / name).read_bytes() == (alone / "runs" / run.name / name).read_bytes()

    # All is done: nothing starts, nothing changes.
    everything = contents(cut / "runs")
    status, _, told = reproduce(*SWEEP, out=cut)
    assert (status, told) == (0, "2 of 2 runs are done already\n")
    assert contents(cut / "runs") == everything


def test_a_run_that_fails_does_not_stop_the_others(tmp_path):
    words = ["table-k2-bernoulli", "--steps", "4", "--seeds", "1", *SMALL, "estimator=rloo,double-cv"]
    out = tmp_path / "sweep"
    only = {"dataset": ("digits",), "network": ("linear",), "estimator": ("rloo", "double-cv")}
    broken, whole = begin(plan(out, ["table-k2-bernoulli"], 4, [1], only, "by hand")).runs
    broken.folder.mkdir()
    (broken.folder / "letter.txt").write_text("not a run")
    status, printed, told = reproduce(*words, out=out)
    assert (status, printed) == (1, "")
    assert whole.state() == "done"
    assert f"failed: {broken.name}: InputError: --out {broken.folder} is not empty" in told
    assert "1 of 2 runs failed; to try again: doublecv reproduce table-k2-bernoulli" in told

    # The other way to fail: in its own process.
    shutil.rmtree(broken.folder)
    shutil.copytree(whole.folder, broken.folder)
    (broken.folder / "config.json").unlink()
    status, printed, told = reproduce(*words, out=out)
    assert (status, printed) == (1, "")
    assert broken.state() == "failed"
    assert "was started with --estimator" in (broken.folder / FAILURE).read_text()
    assert "Traceback" in (broken.folder / LOG).read_text()
    assert f"its log is {broken.folder / LOG}" in told

    shutil.rmtree(broken.folder)
    status, _, told = reproduce(*words, out=out)
    assert status == 0, told
    assert broken.state() == "done"
    assert not (broken.folder / FAILURE).exists()


def test_a_toy_run_leaves_what_its_command_writes(tmp_path):
    out = tmp_path / "sweep"
    words = ["figure-toy-d1", "--steps", "20", "--seeds", "1", "--only", "estimator=rloo,double-cv"]
    status, _, told = reproduce(*words, out=out)
    assert status == 0, told
    (run,) = runs(out)
    assert (run.kind, run.state(), run.targets) == ("toy", "done", ("figure-toy-d1",))
    assert {"metrics.csv", "config.json", "variance.svg", "log.txt"} <= {path.name for path in run.folder.iterdir()}
    assert json.loads((run.folder / "config.json").read_text())["settings"] == run.settings


def test_a_run_whose_sweep_was_killed_saves_and_stops(tmp_path):
    out = tmp_path / "sweep"
    process = start("table-k2-bernoulli", "--steps", "2000", "--seeds", "1", *SMALL, "estimator=rloo", out=out)
    wait_until(lambda: any(in_the_middle(run) for run in runs(out)), process)
    process.kill()
    process.communicate()
    wait_until_nothing_runs(out)
    (run,) = runs(out)
    assert run.state() == "interrupted"


def test_a_bench_run_leaves_what_its_command_writes(tmp_path):
    settings = {"torch": False, "estimators": ["rloo"], "samples": [2], "rounds": 1, "calls": 1, "threads": None}
    run = SweepRun("bench", "bench", settings, ("table-time",), tmp_path / "bench")
    assert run.state() == "waiting"
    assert run_now(run, lambda: False) == (0, "")
    assert run.state() == "done"
    rows = json.loads((run.folder / "bench.json").read_text())["rows"]
    assert {(row["workload"], row["estimator"]) for row in rows} >= {("step", "rloo"), ("gradient", "rloo")}


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux to count threads")
def test_a_run_has_one_thread_for_its_arithmetic():
    code = (
        "import os, jax.numpy as jnp\n"
        "(jnp.ones((9, 9)) @ jnp.ones((9, 9))).block_until_ready()\n"
        "names = [open(f'/proc/self/task/{task}/comm').read() for task in os.listdir('/proc/self/task')]\n"
        "print(sum('XLAEigen' in name for name in names))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | single_threaded(), capture_output=True, text=True, check=True
    )
    assert found.stdout == "1\n"
