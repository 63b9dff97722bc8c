"""Versions: what is pinned, what is claimed, and that both come from pyproject.toml."""

import re

import oldest
import pin
import requirements


def test_every_requirement_is_pinned_once_and_no_host_is_named():
    text = pin.FILE.read_text()
    pins = re.findall(r"^([\w.-]+)==", text, re.MULTILINE)
    assert len(pins) == len(set(pins))
    assert set(requirements.direct_requirements()) <= set(pins)
    assert "doublecv" not in pins
    assert text.startswith(pin.HEAD)
    assert "://" not in text
    assert "torch==2.13.0\n" in text


def test_a_stale_file_is_noticed(monkeypatch, tmp_path):
    stale = tmp_path / "constraints.txt"
    stale.write_text(pin.FILE.read_text().replace(pin.HEAD, "").replace("numpy==", "no-such-package=="))
    monkeypatch.setattr(pin, "FILE", stale)
    faults = pin.faults()
    assert "numpy is required and not pinned" in faults
    assert "no-such-package is pinned and not installed" in faults
    assert any("head" in fault for fault in faults)


def test_every_requirement_of_a_user_has_a_lower_bound():
    bounds = dict(bound.split("==") for bound in oldest.lower_bounds())
    assert {"numpy", "jax", "torch", "ray", "optax"} <= set(bounds)
    assert not any(tool.startswith("torch") for tool in oldest.test_tools())
    assert any(tool.startswith("pytest>=") for tool in oldest.test_tools())


def test_names_are_normalised():
    assert requirements.canonical("Tensor_Board.X") == "tensor-board-x"
