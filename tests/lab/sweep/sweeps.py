"""Sweeps of short runs on the digits, as processes of their own that can be killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from doublecv.lab.sweep import plan as sweep

ENVIRONMENT = os.environ | {
    "PYTHONWARNINGS": "error",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""What spares time: the runs are short, and most of it goes to their compilation."""

SMALL = ["--only", "dataset=digits", "network=linear"]


def start(*words, out, cores=2):
    """`doublecv reproduce` in a process group of its own, on so many cores; compiled programs are kept beside `out`."""
    everything = os.sched_getaffinity(0)
    # A process inherits the cores of this one. A function to run in it would fork, which JAX warns against.
    os.sched_setaffinity(0, sorted(everything)[:cores])
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "doublecv", "reproduce", *words, "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT | {"JAX_COMPILATION_CACHE_DIR": str(out.with_name("compiled"))},
            start_new_session=True,
        )
    finally:
        os.sched_setaffinity(0, everything)


def finish(process, seconds=300):
    """Its exit status, standard output and standard error."""
    try:
        printed, told = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return process.returncode, printed, told


def reproduce(*words, out):
    """Start it and wait for its end."""
    return finish(start(*words, out=out))


def kill(process):
    """SIGKILL for the process and all that it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_until(condition, process, seconds=300):
    """Look again and again, as long as the process lives."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"it ended too early, with {process.returncode}: {process.communicate()}")
        if time.monotonic() > deadline:
            kill(process)
            raise AssertionError("it took too long")
        time.sleep(0.02)


def wait_until_nothing_runs(folder, seconds=60):
    """The kernel frees the locks of killed processes when it has cleared them away."""
    deadline = time.monotonic() + seconds
    while any(run.state() == "running" for run in runs(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(folder):
    """The runs of a sweep, none before it is there."""
    return sweep.load(folder).runs if (folder / sweep.FILE).exists() else ()


def in_the_middle(run):
    """Whether it has a checkpoint and is not done."""
    return any(run.folder.glob("checkpoint-*")) and not run.is_done()


def contents(folder: Path):
    """Every file with its bytes and the time of its last change."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }
