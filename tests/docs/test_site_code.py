"""What a reader may paste runs: the blocks of code on the pages, and the commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from doublecv.lab import cli
from doublecv.lab.common.options import make_parser, parse

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
TABS = ("jax", "torch")
KNOWN = ("{code-cell}", "{toctree}", "{include}", "{literalinclude}")


def programs(page):
    """The python blocks of a page as a reader meets them: for each framework its tabs, and all outside tabs."""
    found, tab = {name: [] for name in TABS}, None
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if line.startswith(":::{tab-item}"):
            tab = next(lines).removeprefix(":sync: ")
        elif line == ":::":
            tab = None
        elif line == "```python":
            block = "\n".join(iter(lambda: next(lines), "```"))
            for name in TABS if tab is None else (tab,):
                found[name].append(block)
    return {name: "\n".join(blocks) for name, blocks in found.items() if blocks}


CASES = [pytest.param(code, id=f"{page.stem}-{name}") for page in PAGES for name, code in programs(page).items()]


@pytest.mark.parametrize("code", CASES)
def test_the_blocks_of_a_page_run(code, tmp_path):
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_there_are_blocks_for_both_frameworks():
    assert {case.id for case in CASES} >= {"get-started-jax", "get-started-torch"}


def test_no_block_is_overlooked():
    """Code is in a cell, which the build executes, or in a python block, which is run above, and in nothing else."""
    for page in PAGES:
        fences = re.findall(r"^ *`{3,}(.*)$", page.read_text(), re.MULTILINE)
        for kind in fences[::2]:
            assert kind in ("", "python") or kind.startswith(KNOWN), f"{page.name}: {kind}"
        assert set(fences[1::2]) <= {""}, page.name


def commands():
    for page in [*PAGES, ROOT / "README.md"]:
        for line in re.findall(r"^doublecv .*$", page.read_text(), re.MULTILINE):
            yield pytest.param(line, id=f"{page.stem}: {line}")


@pytest.mark.parametrize("line", list(commands()))
def test_the_commands_are_ones_that_the_command_line_takes(line):
    _, name, *arguments = shlex.split(line, comments=True)
    settings = cli.settings_class(name)
    if "--resume" in arguments:  # the run is not there
        make_parser(settings, f"doublecv {name}").parse_args(arguments)
    else:
        parse(settings, f"doublecv {name}", arguments)
