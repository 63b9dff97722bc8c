"""Run the fast tests with the oldest versions that pyproject.toml allows.

A fresh environment gets every direct requirement at its lower bound (`numpy>=2.0` becomes `numpy==2.0`), the newest
versions of everything else that fit, and the project itself. Tools that only test (pytest and its plugins) are newest.

    python tools/oldest.py                          # with this interpreter
    python tools/oldest.py --python python3.13      # with another
    python tools/oldest.py --newest                 # the newest versions that pip finds, not those of constraints.txt
    python tools/oldest.py -- tests/estimators -x   # other arguments for pytest
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from requirements import EXTRAS, direct_requirements

ROOT = Path(__file__).parent.parent
FAST = ["-n", "2", "--dist", "loadfile", "-q", "-m", "not slow and not site and not cluster and not browser"]


def lower_bounds() -> list[str]:
    """Return `name==version` for the lower bound of every requirement of the project and its extras."""
    bounds = []
    for name, versions in direct_requirements(groups=()).items():
        bound = re.search(r"(?:>=|==)\s*([\w.]+)", versions)
        if bound is None:
            sys.exit(f"pyproject.toml: {name} has no lower bound: {versions!r}")
        bounds.append(f"{name}=={bound[1]}")
    return bounds


def test_tools() -> list[str]:
    """Return the requirements of the `test` group that are not requirements of the project."""
    bounds = {bound.partition("==")[0] for bound in lower_bounds()}
    return [f"{name}{versions}" for name, versions in direct_requirements(("test",)).items() if name not in bounds]


def main() -> None:
    """Make the environment, print its versions and run the tests in it."""
    parser = argparse.ArgumentParser(description="Run the fast tests with the oldest versions that are allowed.")
    parser.add_argument("--python", default=sys.executable, help="interpreter to make the environment with")
    parser.add_argument("--newest", action="store_true", help="take the newest versions instead")
    parser.add_argument("--environment", type=Path, help="folder to keep the environment in; a temporary one otherwise")
    parser.add_argument("pytest", nargs="*", default=FAST, help="arguments for pytest")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="doublecv-oldest-") as temporary:
        environment = arguments.environment or Path(temporary) / "environment"
        constraints = Path(temporary) / "constraints.txt"
        constraints.write_text("" if arguments.newest else "".join(f"{bound}\n" for bound in lower_bounds()))
        python = environment / "bin" / "python"
        subprocess.run([arguments.python, "-m", "venv", environment], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--upgrade", "pip"], check=True)
        project = f"{ROOT}[{','.join(EXTRAS)}]"
        subprocess.run([*install, "--constraint", constraints, "--editable", project, *test_tools()], check=True)
        subprocess.run([python, "-m", "pip", "freeze"], check=True)
        environment_variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        sys.exit(
            subprocess.run([python, "-m", "pytest", *arguments.pytest], cwd=ROOT, env=environment_variables).returncode
        )


if __name__ == "__main__":
    main()
