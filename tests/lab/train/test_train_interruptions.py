"""`doublecv train` in processes of its own: killed at random moments, interrupted, out of disk, and gone on with."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

LENGTHS = ["--steps", "120", "--record-every", "4", "--evaluate-every", "24", "--checkpoint-every", "12"]
SMALL = ["--network", "linear", "--latents", "5", "--batch", "20", "--bound-samples", "3"]
RUN = [*LENGTHS, *SMALL]
KILLS = 4


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Compiled programs are kept on the disk, so that a process that starts again is soon where it was."""
    cache = tmp_path_factory.mktemp("compiled")
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def command(*arguments):
    return [sys.executable, "-m", "doublecv", "train", *map(str, arguments)]


def train(environment, *arguments, **options):
    return subprocess.run(
        command(*arguments), env=environment, capture_output=True, text=True, timeout=180, check=False, **options
    )


@pytest.fixture(scope="module")
def whole(environment, tmp_path_factory):
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    result = train(environment, *RUN, "--out", folder)
    assert result.returncode == 0, result.stderr
    return folder


def content(folder):
    """The bytes of the metrics and of the last checkpoint."""
    last = max(folder.glob("checkpoint-*"))
    files = [folder / "metrics.jsonl", *sorted(last.iterdir())]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_metrics_are_complete_and_ordered(whole):
    records = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == list(range(4, 121, 4))
    assert [record["step"] for record in records if record["kind"] == "evaluation"] == list(range(24, 121, 24))
    assert [record["kind"] for record in records].count("final") == 1
    assert records[-1].keys() >= {"test_elbo", "test_bound_2", "test_bound_3"}
    assert records[0].keys() >= {"elbo", "encoder_variance", "logits_variance", "alpha"}
    assert (whole / "pictures.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_bytes(whole, environment, tmp_path):
    assert train(environment, *RUN, "--out", tmp_path / "run").returncode == 0
    assert content(tmp_path / "run") == content(whole)


def test_killed_at_random_moments_it_ends_with_the_same_bytes(whole, environment, tmp_path):
    folder = tmp_path / "run"
    moments = random.Random(20)
    arguments = [*RUN, "--out", folder]
    killed_while_training = 0
    for _ in range(KILLS):
        killed_while_training += killed(environment, folder, arguments, moments.uniform(0, 0.15))
        arguments = ["--resume", folder]
        if (folder / "config.json").exists():
            break
    assert killed_while_training >= 2
    result = train(environment, "--resume", folder)
    assert result.returncode == 0, result.stderr
    assert content(folder) == content(whole)


def test_running_moments_and_a_surrogate_survive_a_kill(environment, tmp_path):
    arguments = [*RUN, "--estimator", "surrogate-quadratic-double-cv"]
    assert train(environment, *arguments, "--out", tmp_path / "whole").returncode == 0
    assert killed(environment, tmp_path / "run", [*arguments, "--out", tmp_path / "run"], seconds=0.02)
    result = train(environment, "--resume", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def killed(environment, folder, arguments, seconds):
    """Kill a run so long after its first new line of metrics: before it, little could be lost. Whether it still ran."""
    process = subprocess.Popen(command(*arguments), env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    lines = count_lines(folder)
    while count_lines(folder) == lines and process.poll() is None:
        time.sleep(0.002)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    in_time = process.wait() == -signal.SIGKILL
    process.communicate()
    return in_time


def count_lines(folder):
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def test_control_c_saves_and_says_how_to_go_on(whole, environment, tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(*RUN, "--out", folder), env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    while count_lines(folder) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert f"to resume: doublecv train --resume {folder}\n" in error
    assert error.endswith("doublecv train: stopped\n")
    assert "Traceback" not in error
    saved = max(folder.glob("checkpoint-*"))
    described = json.loads((saved / "checkpoint.json").read_text())
    assert described["metrics_bytes"] == (folder / "metrics.jsonl").stat().st_size
    assert train(environment, "--resume", folder).returncode == 0
    assert content(folder) == content(whole)


LIMITED = """
import os, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
os.execv(sys.executable, [sys.executable, "-m", "doublecv", "train", *sys.argv[2:]])
"""


def test_a_full_disk_keeps_the_older_checkpoint_and_the_run_goes_on_later(whole, environment, tmp_path):
    """A real failure to write: no file may grow beyond a limit that the arrays of a checkpoint pass."""
    folder = tmp_path / "run"
    process = subprocess.Popen(command(*RUN, "--out", folder), env=environment, stderr=subprocess.PIPE)
    while not list(folder.glob("checkpoint-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.kill()
    process.communicate()
    kept = max(folder.glob("checkpoint-*"))
    limit = (kept / "state.safetensors").stat().st_size - 1
    uncached = {name: value for name, value in environment.items() if not name.startswith("JAX_")}
    arguments = [sys.executable, "-c", LIMITED, str(limit), "--resume", str(folder)]
    full = subprocess.run(arguments, env=uncached, capture_output=True, text=True, timeout=180, check=False)
    assert full.returncode == 2, full.stderr
    assert "File too large" in full.stderr
    assert f"the last good checkpoint is {kept}; to resume from it: doublecv train --resume {folder}" in full.stderr
    assert "Traceback" not in full.stderr
    assert max(folder.glob("checkpoint-*")) == kept
    assert not list(folder.glob(".checkpoint*"))
    result = train(environment, "--resume", folder)
    assert result.returncode == 0, result.stderr
    assert content(folder) == content(whole)


def test_a_finished_run_is_told_again(whole, environment):
    before = content(whole)
    result = train(environment, "--resume", whole)
    assert result.returncode == 0
    assert "digits, bernoulli likelihood, linear, K = 2, 120 steps" in result.stdout
    assert content(whole) == before
