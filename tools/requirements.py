"""Read the requirements of pyproject.toml."""

import re
import tomllib
from pathlib import Path
from typing import Any

EXTRAS = ("lab", "torch", "cluster")
"""The extras that together bring everything that the project can use."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[^\]]*\])?\s*(?P<versions>[^;]*)")


def canonical(name: str) -> str:
    """Return the normalised form of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def direct_requirements(groups: tuple[str, ...] = ("test", "lint", "docs")) -> dict[str, str]:
    """Return the version specifiers of the project's dependencies, its extras and the named dependency groups.

    Where a package is named several times, the first specifier counts: a dependency comes before an extra, and an extra
    before a group.
    """
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    named: list[Any] = [*project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        named += extra
    for group in groups:
        named += project["dependency-groups"][group]
    found: dict[str, str] = {}
    for requirement in named:
        if isinstance(requirement, str) and (match := _REQUIREMENT.fullmatch(requirement)):
            found.setdefault(canonical(match["name"]), match["versions"].strip())
    found.pop("doublecv", None)
    return found
