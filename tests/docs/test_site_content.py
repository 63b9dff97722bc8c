"""What the pages must hold: every estimator's equation, every public name, nothing from another host."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import doublecv
from doublecv import diagnostics, estimators

ROOT = Path(__file__).parent.parent.parent

PAGES = [
    "index",
    "get-started",
    "which-estimator",
    "learn-alpha",
    "learned-surrogate",
    "checkpointing",
    "coming-from",
    "support",
    "check-your-gradient",
    "examples",
    "mathematics",
    "quadratic-double-cv",
    "layers-and-sequences",
    "add-an-estimator",
    "laboratory",
    "results",
    "changelog",
    "api/index",
    "api/jax",
    "api/torch",
    "api/distributions",
    "api/estimators",
    "api/diagnostics",
    "api/building-blocks",
    "api/laboratory",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_there(site, page):
    assert (site / f"{page}.html").stat().st_size > 1000


@pytest.mark.parametrize("name", estimators.names())
def test_the_mathematics_has_every_registered_estimator(name):
    sections = re.split(r"^#+ ", (ROOT / "docs" / "mathematics.md").read_text(), flags=re.MULTILINE)
    named = [section for section in sections if f"`{name}`" in section]
    assert named, f"{name} is not named"
    assert any("$$" in section or "quadratic-double-cv)" in section for section in named), f"{name} has no equation"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_page_of_examples_has_every_example(site, path):
    assert f"examples/{path.name}" in (site / "examples.html").read_text()


def test_the_decision_page_lists_every_registered_estimator_as_it_is():
    page = (ROOT / "docs" / "which-estimator.md").read_text()
    (table,) = re.findall(r"^\| estimator \| name .*?\n\n", page, re.MULTILINE | re.DOTALL)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:-1]]
    listed = {name: row for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    assert set(listed) == set(estimators.names())
    for name, (_, _, when, differentiable, _, evaluations) in listed.items():
        estimator = estimators.make(name, samples=4)
        needs = estimator.needs
        needs_gradient = needs.gradient or needs.mean or needs.relaxed_points > 0
        assert differentiable.startswith("yes") is needs_gradient, name
        assert {"K": 4, "K + 1": 5, "3 K": 12}[evaluations] == estimator.evaluations, name
        assert ("Bernoulli" in when) is (doublecv.Categorical not in needs.families), name


@pytest.fixture(scope="module")
def documented(site):
    # Imported here because the tests of other pages run where the tools of the site are not installed.
    from sphinx.util.inventory import InventoryFile

    found = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    return {name for kind, names in found.data.items() if kind.startswith("py:") for name in names}


def public(module):
    """The functions and classes that a module defines itself."""
    for name, value in vars(module).items():
        is_public = not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
        if is_public and value.__module__ == module.__name__:
            yield f"{module.__name__}.{name}"


@pytest.mark.parametrize("module", [doublecv, estimators, diagnostics, import_module("doublecv.torch")])
def test_the_reference_has_every_promised_name(documented, module):
    for name in module.__all__:
        value = getattr(module, name)
        if not inspect.ismodule(value):
            # An entry may name the module that defines it, or one that offers it.
            places = (module.__name__, "doublecv", "doublecv.estimators", value.__module__)
            assert any(f"{place}.{name}" in documented for place in places), name


MODULES = (
    "distributions",
    "arrays",
    "exact",
    "estimators.averages",
    "estimators.couplings",
    "estimators.concrete",
    "estimators.stein",
)


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name_of_a_module(documented, module):
    for name in public(import_module(f"doublecv.{module}")):
        # What the package itself offers is documented under the shorter name.
        assert name in documented or f"doublecv.{name.rsplit('.', 1)[1]}" in documented, name


def test_the_reference_has_every_estimator(documented):
    for name in estimators.names():
        assert any(entry.endswith(f".{type(estimators.make(name, samples=4)).__name__}") for entry in documented), name


def test_nothing_comes_from_another_host(site):
    """Links may lead elsewhere; scripts, styles, pictures and fonts may not."""
    for page in site.rglob("*.html"):
        asked = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"([^\"]*)", page.read_text())
        asked += re.findall(r"<link[^>]*\shref=\"([^\"]*)", page.read_text())
        assert not [url for url in asked if "//" in url], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import\s+['\"]?http", style.read_text()), style


def test_the_reference_typesets_equations(site):
    text = (site / "api" / "estimators.html").read_text()
    assert r"\frac{1}{K-1} \sum_{j \ne k} f(x_j)" in text
    assert text.count('class="math notranslate nohighlight"') > 40
