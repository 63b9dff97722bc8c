"""The wheel and the source archive: they build, install into an empty environment, and work there."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import doublecv

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow

SMOKE = """
import numpy as np
import doublecv as dcv

q = dcv.Bernoulli(logits=np.array([0.4, -1.0, 2.0]))
f = lambda x: np.tanh(x.sum(-1)) ** 2
moments = dcv.exact_moments(f, q, dcv.RLOO(samples=3))
assert np.allclose(moments.mean, dcv.exact_gradient(f, q), atol=1e-12)
print(dcv.__version__, dcv.__file__)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    return folder


def test_the_wheel_has_the_package_and_nothing_else(dist):
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"doublecv", f"doublecv-{doublecv.__version__}.dist-info"}
    source = ROOT / "src" / "doublecv"
    expected = {f"doublecv/{path.relative_to(source)}" for path in source.rglob("*") if path.is_file()}
    assert {name for name in expected if "__pycache__" not in name} <= set(names)


def test_the_source_archive_can_be_tested(dist):
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for name in ("tests/conftest.py", "tools/pin.py", "docs/index.md", "Makefile", "constraints.txt", "LICENSE"):
        assert name in names, name


@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_it_installs_into_an_empty_environment_and_works(dist, tmp_path, pattern):
    (file,) = dist.glob(pattern)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--constraint", ROOT / "constraints.txt", file], check=True, cwd=tmp_path)
    done = subprocess.run(
        [python, "-I", "-W", "error", "-c", SMOKE], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    version, path = done.stdout.split(maxsplit=1)
    assert version == doublecv.__version__
    assert str(tmp_path / "venv") in path
