"""A sweep on a real Ray cluster of two nodes, one of which is killed in the middle of a run."""

import contextlib
import os
import re
import signal
import tempfile
import time
from pathlib import Path

import pytest
from sweeps import ENVIRONMENT, SMALL, finish, in_the_middle, reproduce, runs, start, wait_until

from doublecv.lab.cli import main
from doublecv.lab.sweep.plan import LOG

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ray = pytest.importorskip("ray", reason="the extra `cluster` is not installed")

SWEEP = ["table-k2-bernoulli", "--steps", "60", "--seeds", "1", *SMALL, "estimator=rloo,double-cv"]
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Two nodes with one core each."""
    for name, value in (ENVIRONMENT | RAY | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}).items():
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}
    two = Cluster(initialize_head=True, head_node_args=node)
    two.add_node(**node)
    two.wait_for_nodes()
    yield two
    two.shutdown()


def test_a_killed_node_costs_only_the_steps_since_the_last_checkpoint(cluster, tmp_path):
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    (doomed,) = cluster.worker_nodes
    process = start(*SWEEP, "--cluster", cluster.address, out=killed)

    def on_the_doomed_node():
        return [run for run in runs(killed) if (run.folder / LOG).exists() and doomed.node_id in log(run)]

    wait_until(lambda: any(in_the_middle(run) for run in on_the_doomed_node()), process)
    (run,) = on_the_doomed_node()
    cluster.remove_node(doomed, allow_graceful=False)
    status, printed, told = finish(process)
    assert status == 0, told
    # Ray itself tells, above it, that a node was lost.
    assert printed.splitlines()[-1].startswith("2 runs done")
    assert [line.split()[0] for line in told.splitlines()] == ["done", "done"]
    first, second = log(run).split("on the Ray node ")[1:]
    assert first.startswith(doomed.node_id)
    assert second.startswith(cluster.head_node.node_id)
    assert "resuming from" not in first
    assert f"resuming from {run.folder / 'checkpoint-'}" in second

    # The same run, left alone, on no cluster.
    name = run.settings["estimator"]
    status, _, told = reproduce(*SWEEP[:-1], f"estimator={name}", out=alone)
    assert status == 0, told
    (undisturbed,) = runs(alone)
    for name in ("metrics.jsonl", "config.json"):
        assert (run.folder / name).read_bytes() == (undisturbed.folder / name).read_bytes()


def test_a_worker_killed_again_and_again_before_its_first_checkpoint_ends_with_the_same_bytes(cluster, tmp_path):
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    words = [*SWEEP[:-1], "estimator=double-cv"]
    process = start(*words, "--cluster", cluster.address, out=killed)
    for times in range(1, 4):
        # The line is written before JAX is imported, and the first checkpoint comes much later.
        wait_until(lambda times=times: any(len(workers(run)) == times for run in runs(killed)), process)
        (run,) = runs(killed)
        assert not any(run.folder.glob("checkpoint-*"))
        os.kill(workers(run)[-1], signal.SIGKILL)
    status, _, told = finish(process, seconds=900)
    assert status == 0, told
    assert len(workers(run)) == 4
    assert "resuming from" not in log(run)

    status, _, told = reproduce(*words, out=alone)
    assert status == 0, told
    (undisturbed,) = runs(alone)
    last, other = (max(each.folder.glob("checkpoint-*")) for each in (run, undisturbed))
    assert last.name == other.name
    assert {path.name: path.read_bytes() for path in last.iterdir()} == {
        path.name: path.read_bytes() for path in other.iterdir()
    }
    assert (run.folder / "metrics.jsonl").read_bytes() == (undisturbed.folder / "metrics.jsonl").read_bytes()


def log(run):
    return (run.folder / LOG).read_text() if (run.folder / LOG).exists() else ""


def workers(run):
    """The processes that took up the run, in this order."""
    return [int(number) for number in re.findall(r"on the Ray node \w+, process (\d+)\n", log(run))]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "--cluster 127.0.0.1:1: nobody answers there ("),
        ("127.0.0.1:99999", "--cluster 127.0.0.1:99999: nobody answers there ("),
        ("somewhere", "--cluster must be an address as `ray start` prints it, HOST:PORT; got 'somewhere'"),
    ],
)
def test_no_cluster_there_is_one_line(address, message, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *SWEEP, "--cluster", address, "--out", str(tmp_path / "sweep")])
    told = capsys.readouterr().err
    assert (stop.value.code, told.count("\n")) == (2, 1)
    assert message in told
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_a_local_cluster_after_a_checkpoint(tmp_path, monkeypatch):
    out = tmp_path / "sweep"
    # Short, for the names of sockets must be.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray_folder:
        monkeypatch.setitem(ENVIRONMENT, "RAY_TMPDIR", ray_folder)
        stop_a_local_cluster(out, ray_folder)


def stop_a_local_cluster(out, ray_folder):
    process = start(*SWEEP[:-1], "estimator=rloo", "--cluster", out=out)
    wait_until(lambda: any(in_the_middle(run) for run in runs(out)), process)
    assert processes_that_name(ray_folder)
    os.killpg(process.pid, signal.SIGINT)
    status, _, told = finish(process)
    assert status == 130, told
    assert told.splitlines()[-2:] == [
        f"to resume: doublecv reproduce {' '.join(SWEEP[:-1])} estimator=rloo --cluster --out {out}",
        "doublecv reproduce: stopped",
    ]
    (run,) = runs(out)
    assert run.state() == "interrupted"
    deadline = time.monotonic() + 20
    while processes_that_name(ray_folder):
        assert time.monotonic() < deadline, "Ray's processes live on"
        time.sleep(0.1)


def processes_that_name(folder):
    """The living processes with the folder in their command line: Ray's own have."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if folder.encode() in path.read_bytes():
                found.append(path)
    return found
