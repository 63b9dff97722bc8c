"""One run on several devices and in several processes: the same losses, one writer, and nobody left waiting."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from doublecv.lab.cli import main
from doublecv.lab.common.devices import devices_for
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.records import LineReader

LENGTHS = ["--steps", "80", "--record-every", "4", "--evaluate-every", "40", "--checkpoint-every", "40"]
RUN = [*LENGTHS, "--network", "linear", "--latents", "5", "--batch", "20", "--bound-samples", "3"]
PATIENCE = 180
"""Seconds until a process that hangs fails its test."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Compiled programs are kept on the disk, so that a process that starts again is soon where it was."""
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PLATFORMS": "cpu",
    }


def command(*arguments):
    return [sys.executable, "-m", "doublecv", "train", *map(str, arguments)]


def finished(arguments, environment):
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class Pair:
    """Two processes that train together, with a coordinator at a free port of this machine."""

    def __init__(self, environment, *arguments):
        together = ["--coordinator", free_address(), "--processes", 2]
        self.processes = [
            subprocess.Popen(
                command(*own, *together, "--process", number),
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, own in enumerate(arguments)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def end(self):
        """Exit status, standard output and standard error of each."""
        ended = []
        for process in self.processes:
            output, error = process.communicate(timeout=PATIENCE)
            ended.append((process.returncode, output, error))
        return ended


@pytest.fixture(scope="module")
def one(environment, tmp_path_factory):
    """The run on one device, in one process."""
    folder = tmp_path_factory.mktemp("one") / "run"
    finished(command(*RUN, "--out", folder), environment)
    return folder


def records(folder):
    return list(LineReader(folder / "metrics.jsonl", unfinished=True))


def assert_same_losses(folder, one):
    """Every number of every record, up to rounding that the training carries on."""
    these, those = records(folder), records(one)
    assert [(record["kind"], record["step"]) for record in these] == [
        (record["kind"], record["step"]) for record in those
    ]
    for this, that in zip(these, those, strict=True):
        assert this.keys() == that.keys()
        names = [name for name in this if name != "kind"]
        tolerance = 1e-5 if this["step"] <= 20 else 1e-3
        np.testing.assert_allclose([this[name] for name in names], [that[name] for name in names], rtol=tolerance)


PROGRAM = """
import re, sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from doublecv.lab.train import step as training_step
from doublecv.lab.common.devices import ONE, devices_for, request_cpu_devices

sys.path.insert(0, sys.argv[1])
from tiny_images import tiny_dataset, tiny_settings

request_cpu_devices(4)
four = devices_for(4)
dataset = tiny_dataset()


def trained(settings, seeds, devices):
    program = training_step.make_step(settings, dataset, seeds, devices)
    state, first = program.chunk(program.start(), 0, 3)
    state, second = program.chunk(state, 3, 4)
    return state, (first, second)


def compare(seeds=None, **changes):
    settings = tiny_settings(batch=12, latents=4, **changes)
    state, reports = trained(settings, seeds, four)
    for leaf in jax.tree.leaves((state, reports)):
        assert leaf.sharding.is_fully_replicated and len(leaf.sharding.device_set) == 4
    wanted_state, wanted = trained(settings, seeds, ONE)
    for name in training_step.Report._fields:
        for report, its_wanted in zip(reports, wanted):
            np.testing.assert_allclose(getattr(report, name), getattr(its_wanted, name), rtol=1e-5)
    assert np.array_equal(state.order, wanted_state.order)
    print("same")


def exchanged(**changes):
    settings = tiny_settings(batch=12, latents=4, **changes)
    state = jax.eval_shape(training_step.make_step(settings, dataset).start)
    images = jax.ShapeDtypeStruct(dataset.train.shape, dataset.train.dtype)
    chunk = four.compile(partial(training_step._chunk, settings))
    program = chunk.lower(state, images, jnp.int32(0), jnp.int32(2)).compile().as_text()
    return set(re.findall(r" (all-[a-z]+|collective-[a-z]+|reduce-scatter)(?:-start)?[(]", program))


compare(estimator="double-cv", samples=3)
compare(estimator="relax", likelihood="gaussian", seeds=(3, 4))
compare(estimator="vimco-double-cv", objective="iwae", bound_samples_train=3)
compare(estimator="quadratic-double-cv", network="two-layer")
print("exchanged", exchanged(estimator="rloo", network="nonlinear"))
"""


def test_devices_compute_what_one_computes_and_exchange_sums_alone(environment):
    done = finished([sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2])], environment)
    assert done.stdout.count("same") == 4
    # All that goes from device to device are sums over the batch: nothing that is gathered, nothing that is passed on.
    assert done.stdout.endswith("exchanged {'all-reduce'}\n")


def test_a_run_of_one_device_goes_on_with_two(one, environment, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(one, folder)
    (folder / "config.json").unlink()
    shutil.rmtree(max(folder.glob("checkpoint-*")))
    finished(command("--resume", folder, "--devices", 2), environment)
    assert_same_losses(folder, one)
    assert records(folder)[:10] == records(one)[:10]
    assert records(folder) != records(one), "two devices round as one does: were there two?"


def test_two_processes_stop_together_and_go_on_to_the_losses_of_one(one, environment, tmp_path):
    """Only the second process is asked to stop; the first one saves."""
    folder = tmp_path / "run"
    arguments = [*RUN, "--out", folder]
    with Pair(environment, arguments, arguments) as pair:
        deadline = time.monotonic() + PATIENCE
        while not (folder / "metrics.jsonl").exists() or not records(folder):
            assert time.monotonic() < deadline
            assert pair.processes[0].poll() is None, pair.end()
            time.sleep(0.002)
        pair.processes[1].send_signal(signal.SIGINT)
        (first, _, its_error), (second, _, other_error) = pair.end()
    assert (first, second) == (130, 130), (its_error, other_error)
    assert its_error.endswith(f"to resume: doublecv train --resume {folder}\ndoublecv train: stopped\n")
    assert "to resume" not in other_error
    saved = max(folder.glob("checkpoint-*"))
    assert 0 < json.loads((saved / "checkpoint.json").read_text())["step"] < 80
    with Pair(environment, ["--resume", folder], ["--resume", folder]) as pair:
        (first, output, its_error), (second, other_output, other_error) = pair.end()
    assert (first, second) == (0, 0), (its_error, other_error)
    assert "resuming from" in its_error
    assert "resuming from" not in other_error
    assert f"written to {folder}" in output
    assert "written to" not in other_output
    assert_same_losses(folder, one)
    written = {path.name for path in folder.iterdir() if not path.name.startswith("checkpoint-")}
    assert written == {".metrics.lock", "config.json", "metrics.jsonl", "pictures.png", "settings.json"}


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_whose_others_never_start_ends_with_a_sentence(environment, tmp_path, process):
    program = """
import sys
from doublecv.lab.cli import main
from doublecv.lab.common import devices as distributed
distributed.SECONDS_TO_CONNECT = 2
main(sys.argv[1:])
"""
    address = free_address()
    arguments = [*RUN, "--out", tmp_path / "run", "--coordinator", address, "--processes", 2, "--process", process]
    done = subprocess.run(
        [sys.executable, "-c", program, "train", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        f"doublecv train: process {process} of 2 did not find the others at {address} within 2 s; "
        "start them, or correct the address\n"
    )


def test_processes_with_other_arguments_are_told(environment, tmp_path):
    arguments = [*RUN, "--out", tmp_path / "run"]
    with Pair(environment, arguments, [*arguments, "--seed", 7]) as pair:
        for status, _, error in pair.end():
            assert status == 2
            assert "must have the same arguments, folder and data, but their seed differs" in error
            assert "Traceback" not in error


def test_a_process_that_fails_alone_leaves_none_waiting(environment, tmp_path):
    (tmp_path / "something").touch()
    arguments = [*RUN, "--out", tmp_path]
    with Pair(environment, arguments, arguments) as pair:
        (first, _, error), (second, _, _) = pair.end()
    assert first == 2
    assert f"--out {tmp_path} is not empty" in error
    assert second != 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "0"], "--devices must be at least 1, got 0"),
        (["--processes", "2"], "--processes 2 needs --coordinator HOST:PORT, the address of process 0"),
        (["--processes", "0"], "--processes must be at least 1, got 0"),
        (["--processes", "2", "--process", "2"], "--process must be less than --processes 2, got 2"),
        (["--coordinator", "here"], "--coordinator must be HOST:PORT, the address of process 0, got 'here'"),
    ],
)
def test_arguments_that_cannot_work(arguments, message, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["train", *arguments, "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_fewer_devices_than_wanted():
    there_are = len(jax.devices())
    with pytest.raises(
        InputError, match=f"--devices must be at most {there_are}, the cpu devices; got {there_are + 1}"
    ):
        devices_for(there_are + 1)


def test_a_batch_that_does_not_divide(environment, tmp_path):
    folder = tmp_path / "run"
    done = subprocess.run(
        command(*RUN, "--devices", 3, "--out", folder),
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.endswith("error: --batch must be a multiple of 3, the number of devices; got 20\n")
    assert not folder.exists()
