"""Every example runs in short form, draws its figure, and comes out as it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

EXAMPLES = Path(__file__).parents[1] / "examples"


def rows_of(output):
    """The lines of the output that have numbers, each as a name, which may be empty, and its numbers."""
    found = []
    for line in output.splitlines():
        words = line.replace("+-", " ").split()
        numbers = [float(word) for word in words if re.fullmatch(r"[-+]?\d[\d.]*(e[-+]?\d+)?", word)]
        if len(numbers) >= 2:
            found.append((words[0], numbers))
    return found


def the_elbo_rises(output):
    rows = rows_of(output)
    assert len(rows) >= 3
    for _, (first, last, variance) in rows:
        assert last > first + 3
        assert variance > 0


def double_cv_ends_with_less_variance_than_rloo(output):
    *_, (_, (_, elbo, alpha, double_cv, rloo)) = rows_of(output)
    assert elbo > -30
    assert alpha < -0.3
    assert double_cv < 0.5 * rloo


def gates_close_and_the_accuracy_stays(output):
    rows = rows_of(output)
    assert len(rows) == 16
    for _, (cost, features, accuracy, error, value) in rows:
        assert value < 0.69 + 15 * cost, "where it started"
        if cost < 0.03:  # at this one so few steps leave some models with no open gate
            assert 1 <= features < 30
            assert accuracy > 0.94
            assert 0 < error < 0.02
    assert all(rows[place + 3][1][1] < rows[place][1][1] for place in (0, 4, 8, 12)), "a higher price, fewer features"


def the_policy_improves(output):
    rows = rows_of(output)
    assert [name for name, _ in rows] == [
        *("rloo", "disarm", "arms"),
        *("rloo", "disarm", "arms", "double-cv-moments", "quadratic-double-cv"),
    ]
    for _, (first, last, variance, patches, accuracy) in rows:
        assert last < first - 0.02
        assert variance > 0
        assert 2 < patches < 14
        assert accuracy > 0.5


def the_estimator_is_unbiased_and_better_than_rloo(output):
    assert float(re.search(r"bias, exactly: (\S+)", output)[1]) < 1e-10
    rows = dict(rows_of(output))
    assert rows["linear-rloo"][2] < rows["rloo"][2]
    assert rows["linear-rloo"][0] > rows["rloo"][0]


def the_quadratic_form_has_less_variance(factor):
    """The rows have the value at first and at last, where there is one, and the variance."""

    def check(output):
        rows = dict(rows_of(output))
        assert rows["quadratic-double-cv"][-1] < factor * rows["rloo"][-1]
        for *values, _ in rows.values():
            assert len(values) < 2 or values[1] > values[0] + 3

    return check


def the_reward_rises_and_baselines_help(output):
    rows = {line.split()[0]: [float(word) for word in line.split()[1:]] for line in output.splitlines()[1:]}
    assert all(last > first + 0.1 for first, last, _ in rows.values())
    assert rows["leave-one-out"][2] < 0.5 * rows["none"][2]
    assert rows["shrunken"][2] < rows["none"][2]


SHORT = {
    "belief_net": (40, the_quadratic_form_has_less_variance(0.9)),
    "spin_glass": (60, the_quadratic_form_has_less_variance(0.95)),
    "language_model": (60, the_reward_rises_and_baselines_help),
    "numpyro_guide": (60, the_quadratic_form_has_less_variance(0.8)),
    "discrete_and_gaussian": (60, the_quadratic_form_has_less_variance(1.0)),
    "jax_vae": (60, the_elbo_rises),
    "torch_vae": (100, double_cv_ends_with_less_variance_than_rloo),
    "categorical_vae": (60, the_elbo_rises),
    "feature_gates": (150, gates_close_and_the_accuracy_stays),
    "hard_attention": (60, the_policy_improves),
    "custom_estimator": (300, the_estimator_is_unbiased_and_better_than_rloo),
}


@pytest.mark.parametrize("name", SHORT)
def test_it_runs_and_comes_out_as_it_says(name, tmp_path):
    steps, check = SHORT[name]
    figure = tmp_path / "figure.png"
    done = run_example(name, steps, figure, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    check(done.stdout)
    height, width, _ = imread(figure).shape
    assert 300 <= height <= 600
    assert 500 <= width <= 1400
    assert imread(figure)[..., :3].std() > 0.05, "an empty figure"
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


@pytest.mark.parametrize("name", ["belief_net", "hard_attention"])
def test_fewer_steps_than_a_mean_is_taken_over(name, tmp_path):
    done = run_example(name, 3, tmp_path / "figure.png", tmp_path)
    assert done.returncode == 0, done.stderr


def run_example(name, steps, figure, folder):
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, EXAMPLES / f"{name}.py", "--steps", str(steps), "--figure", str(figure)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=folder, env=environment
    )


def test_no_example_is_left_out():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_it_is_short_and_says_how_to_run_it(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 105
    steps = re.search(rf"\n    python examples/{name}.py \[--steps (\d+)] \[--figure {name}.png]\n", text)
    assert steps is not None
    assert f'def main(steps: int = {steps[1]}, figure: Path = Path("{name}.png"))' in text
