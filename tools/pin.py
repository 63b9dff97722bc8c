"""Pin the newest versions that pyproject.toml allows, in constraints.txt.

pip resolves the project with all extras and the `dev` dependency group as if nothing were installed, and reports what
it would install; nothing is installed by this. `make upgrade` runs it.

    python tools/pin.py            # write constraints.txt
    python tools/pin.py --check    # check that it names all direct requirements, and nothing that is not installed
"""

import argparse
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from requirements import EXTRAS, canonical, direct_requirements

ROOT = Path(__file__).parent.parent
FILE = ROOT / "constraints.txt"
RESOLVE = ["--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
PROJECT = ["--editable", f".[{','.join(EXTRAS)}]", "--group", "dev"]
HEAD = f"""\
# Made by `make upgrade` from pyproject.toml; do not edit. The command is that of tools/pin.py:
#     pip install {" ".join(RESOLVE)} {PROJECT[0]} '{PROJECT[1]}' {" ".join(PROJECT[2:])}
"""


def resolve() -> dict[str, str]:
    """Return the version of every package that pip would install into an empty environment."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *RESOLVE, *PROJECT], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    found = (item["metadata"] for item in json.loads(done.stdout)["install"])
    # A local version (+cpu) is one index's build of the public version.
    versions = {canonical(item["name"]): item["version"].partition("+")[0] for item in found}
    return {name: version for name, version in versions.items() if name != "doublecv"}


def pinned() -> dict[str, str]:
    """Read constraints.txt."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", FILE.read_text(), re.MULTILINE))


def faults() -> list[str]:
    """Return what is wrong with constraints.txt."""
    pins = pinned()
    installed = {canonical(found.metadata["Name"]) for found in metadata.distributions()}
    found = [f"{name} is required and not pinned" for name in direct_requirements() if name not in pins]
    found += [f"{name} is pinned and not installed" for name in pins if name not in installed]
    if not FILE.read_text().startswith(HEAD):
        found.append("the head does not show the command of tools/pin.py")
    return found


def main() -> None:
    """Write or check constraints.txt."""
    parser = argparse.ArgumentParser(description="Pin the newest versions that pyproject.toml allows.")
    parser.add_argument("--check", action="store_true", help="check constraints.txt instead of writing it")
    if parser.parse_args().check:
        sys.exit("\n".join(f"constraints.txt: {fault}" for fault in faults()) or 0)
    lines = [f"{name}=={version}\n" for name, version in sorted(resolve().items())]
    FILE.write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main()
