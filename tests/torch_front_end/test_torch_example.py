"""The example runs, in short form, and ends as it says."""

import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_vae.py"


def test_the_vae_ends_with_less_variance_than_rloo(capsys):
    spec = importlib.util.spec_from_file_location("torch_vae", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    double_cv, rloo = example.main(steps=200)
    assert double_cv < 0.5 * rloo
    assert "variance of the gradient: Double CV" in capsys.readouterr().out


def test_the_example_is_short():
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 80
    assert "argparse" not in text
