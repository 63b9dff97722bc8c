"""The imports of all modules follow the arrows of the design.

Formulas know no framework; `jax` and `torch` know the formulas; the lab knows all of them. Inside the lab the packages
form levels, and an import goes to a lower level, or one way only between packages of the same level. Modules that
describe results or settings import no program.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
FRAMEWORKS = {"jax", "jaxlib", "torch", "optax", "equinox", "matplotlib", "ray"}
LEVELS = (("common",), ("data", "vae"), ("train", "toy", "bench"), ("variance", "sweep"), ("report",), ("cli", "demo"))
LEVEL = {package: level for level, packages in enumerate(LEVELS) for package in packages}
LIGHT = ("results", "settings", "problem")
"""Modules of the lab's packages that describe results and settings."""


def modules():
    """All modules by name, with their syntax trees."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


MODULES = modules()


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(module, tree=None, top_level_only=False):
    """The modules that a module imports, in any function too unless only the top level is asked for."""
    for node in ast.iter_child_nodes(MODULES[module] if tree is None else tree):
        if top_level_only and (is_type_checking(node) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in MODULES else node.module
        else:
            yield from imports(module, node, top_level_only)


def ring(module):
    """The ring of a module: "formulas", "jax", "torch" or "lab"; the command line is part of the lab."""
    name = [*module.split("."), ""][1]
    return {"jax": "jax", "torch": "torch", "lab": "lab", "__main__": "lab"}.get(name, "formulas")


def package(module):
    """The package of the lab that a module belongs to, or None."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["doublecv", "lab"] and len(parts) > 2 else None


def own_imports():
    for module in MODULES:
        for imported in imports(module):
            if imported.split(".")[0] == "doublecv":
                yield module, imported


def test_every_package_of_the_lab_has_a_level():
    assert {package(module) for module in MODULES} - {None} == LEVEL.keys()


def test_rings_import_only_inner_rings():
    allowed = {"formulas": {"formulas"}, "jax": {"formulas", "jax"}, "torch": {"formulas", "torch"}}
    wrong = [
        f"{module} imports {imported}"
        for module, imported in own_imports()
        if ring(imported) not in allowed.get(ring(module), {ring(imported)})
    ]
    assert wrong == []


def test_formulas_import_no_framework():
    wrong = [
        f"{module} imports {imported}"
        for module in MODULES
        if ring(module) == "formulas" and module != "doublecv.arrays"
        for imported in imports(module)
        if imported.split(".")[0] in FRAMEWORKS
    ]
    assert wrong == []


def test_packages_of_the_lab_import_lower_levels():
    wrong = [
        f"{module} imports {imported}"
        for module, imported in own_imports()
        if package(module) and package(imported) and LEVEL[package(imported)] > LEVEL[package(module)]
    ]
    assert wrong == []


def test_no_two_packages_import_each_other():
    edges = {
        (package(module) or ring(module), package(imported) or ring(imported)) for module, imported in own_imports()
    }
    assert [edge for edge in edges if edge[0] != edge[1] and edge[::-1] in edges] == []


def closure(module, seen):
    """All that is imported with a module, as soon as it is."""
    for imported in imports(module, top_level_only=True):
        parts = imported.split(".")
        for name in (".".join(parts[: length + 1]) for length in range(len(parts))):
            if name in MODULES and name not in seen:
                seen.add(name)
                closure(name, seen)
        seen.add(parts[0])
    return seen


def light_modules():
    names = [module for module in MODULES if package(module) == "report"]
    names += [module for module in MODULES if package(module) and module.rpartition(".")[2] in LIGHT]
    return [*names, "doublecv.__main__", "doublecv.lab.cli", "doublecv.lab.sweep.command", "doublecv.lab.data.command"]


@pytest.mark.parametrize("module", sorted({*light_modules()}))
def test_modules_that_describe_results_import_no_program(module):
    loaded = closure(module, set())
    assert not loaded & FRAMEWORKS, f"{module} imports {sorted(loaded & FRAMEWORKS)}"
    programs = {
        name for name in loaded if name.startswith("doublecv.lab.") and name.rpartition(".")[2] in ("run", "loop")
    }
    assert not programs


def test_the_walk_sees_violations():
    """The test can fail: these trees break each rule."""
    tree = ast.parse("def f():\n    from doublecv.lab.report import frames\n    import jax.numpy\n")
    assert {*imports("doublecv", tree)} >= {"jax.numpy"}
    assert [*imports("doublecv", tree, top_level_only=True)] == []
    typed = ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax\n")
    assert "jax" in {*imports("doublecv", typed)}
    assert "jax" not in {*imports("doublecv", typed, top_level_only=True)}
    assert ring("doublecv.jax.rule") == "jax"
    assert ring("doublecv.estimators.base") == "formulas"
    assert package("doublecv.lab.sweep.plan") == "sweep"
