"""What a user gets by installing the package: light imports, the promised names, documents that are true."""

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import doublecv
from doublecv import estimators

ROOT = Path(__file__).parent.parent


def run(program, cwd=None):
    """Run a program in a process of its own, compiled in haste as the rest of the suite is."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    return done


def without(*packages):
    """The beginning of a program in which these packages are not installed."""
    return textwrap.dedent(f"""
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {packages}:
                    raise ImportError(name)
        sys.meta_path.insert(0, Absent())
    """)


def test_import_loads_no_framework():
    loaded = run("""
        import sys, doublecv, doublecv.estimators, doublecv.exact
        print([name for name in ("jax", "torch", "matplotlib", "ray", "optax", "scipy") if name in sys.modules])
    """)
    assert loaded.stdout == "[]\n"


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("docs/*.py"), *ROOT.glob("examples/*.py")]), ids=lambda path: path.name
)
def test_programs_outside_the_package_import_names_that_exist(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "doublecv":
            module = importlib.import_module(node.module)
            for name in node.names:
                found = hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")
                assert found, f"{path.name}: {node.module} has no {name.name}"


def test_formulas_run_where_no_framework_is_installed():
    """Only with the base dependencies: exact moments of Double CV on NumPy arrays."""
    program = """
        import numpy as np, doublecv as dcv
        q = dcv.Bernoulli(logits=np.array([0.3, -1.0]))
        f, df = lambda x: x.sum(-1) ** 2, lambda x: 2 * x.sum(-1, keepdims=True) + 0 * x
        learned = dcv.estimators.fixed_coefficients({"alpha": -1.0})
        moments = dcv.exact_moments(f, q, dcv.DoubleCV(2, learning="gradient"), learned, df=df)
        print(np.abs(moments.mean - dcv.exact_gradient(f, q)).max() < 1e-12)
    """
    done = run(without("jax", "torch", "scipy") + textwrap.dedent(program))
    assert done.stdout == "True\n"


def test_the_promised_names():
    promised = (
        "Bernoulli Categorical Reinforce RStar RLOO DoubleCV HalfDoubleCV ConcreteDoubleCV QuadraticDoubleCV MuProp "
        "DisARM ARMS Rebar Relax Rodeo LearnedSurrogate Antithetic DirichletCopula Learned make names exact_gradient "
        "exact_mean exact_moments estimators"
    )
    for name in promised.split():
        assert hasattr(doublecv, name), name
        assert name in doublecv.__all__
    assert estimators.names()[:10] == (
        "reinforce", "r-star", "rloo", "double-cv", "double-cv-mean", "double-cv-current", "double-cv-others",
        "muprop", "disarm", "arms",
    )  # fmt: skip


@pytest.mark.parametrize("cls", [type(estimators.make(name, samples=4)) for name in estimators.names()])
def test_every_estimator_states_an_equation_and_cites_it(cls):
    documentation = cls.__doc__
    assert re.search(r"\.\. math::|:math:`[^`]*=|see `\w+` for the equation", documentation), "an equation"
    assert re.search(r"\([A-Z][^()]*, (19|20)\d\d", documentation), "(author, year, ...)"
    assert "Attributes:" in documentation


def python_blocks(path):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("steps", [30, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("number", "absent"), [(0, "torch"), (1, "jax")], ids=["jax", "torch"])
def test_the_autoencoder_of_the_readme_runs_alone_with_one_framework(number, absent, steps, tmp_path):
    """The program in JAX and the same in PyTorch, in the fast set with a tenth of their steps."""
    block = python_blocks("README.md")[number]
    assert block.count("300") == 1
    run(without(absent) + block.replace("300", str(steps)), cwd=tmp_path)


@pytest.mark.slow
def test_the_recommendation_of_the_readme_runs_without_torch(tmp_path):
    _, _, block = python_blocks("README.md")
    run(without("torch") + block, cwd=tmp_path)


def test_the_code_of_contributing_runs(tmp_path):
    """All blocks, one after the other: the second uses what the first defines."""
    run("\n".join(python_blocks("CONTRIBUTING.md")), cwd=tmp_path)


def test_the_readme_is_short_and_names_what_exists():
    readme = (ROOT / "README.md").read_text()
    assert readme.count("\n") < 140
    (table,) = re.findall(r"^\| your f .*?\n\n", readme, re.MULTILINE | re.DOTALL)
    named = re.findall(r"`([a-z-]+)`", table)
    assert len(set(named)) == 6
    assert set(named) <= set(estimators.names())
    for path in re.findall(r"`(docs/[\w./-]+)`|\((docs/[\w./-]+)\)", readme):
        assert (ROOT / "".join(path)).is_file(), path


def test_the_changelog_has_this_version():
    assert f"## [{doublecv.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {doublecv.__version__}" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("ring", ["distributions.py", "arrays.py", "checks.py", "estimators"])
def test_the_inner_ring_imports_nothing_from_the_outer_ones(ring):
    source = ROOT / "src" / "doublecv" / ring
    for path in [source] if source.is_file() else source.glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
        frameworks = {"jax", "torch"} if path.name != "arrays.py" else set()
        assert not {name.split(".")[0] for name in imported} & (frameworks | {"matplotlib", "optax", "equinox"}), path
        assert not [name for name in imported if name.startswith(("doublecv.jax", "doublecv.torch", "doublecv.lab"))]


@pytest.mark.parametrize("front_end", ["jax", "torch"])
def test_the_front_ends_know_no_lab(front_end):
    source = ROOT / "src" / "doublecv" / front_end
    for path in [source] if source.is_file() else source.glob("*.py"):
        assert "doublecv.lab" not in path.read_text()


def test_the_shapes_in_the_annotations_are_valid():
    """They are not evaluated when the code runs, so a shape that means nothing would go unnoticed."""
    import jaxtyping
    import numpy as np

    found = 0
    for path in (ROOT / "src").rglob("*.py"):
        for kind, shape in re.findall(r'(Float|Int|UInt8|Bool|Num)\[[\w.]+, "([^"]*)"\]', path.read_text()):
            getattr(jaxtyping, kind)[np.ndarray, shape]
            found += 1
    assert found > 100
