"""Break the code in known ways and check that a fast test fails for each.

Every entry of `mutant_list.MUTANTS` replaces one piece of text in one file and names the fast tests that must notice.
The project is copied to a temporary folder; the named tests must pass there; then each mutant is applied on its own and
its tests are run until the first failure. A mutant that no longer applies, or whose tests cannot be run, is a fault of
the list and fails the check, as a survivor does.

    python tools/mutants.py                    # all of them, two at a time
    python tools/mutants.py quadratic torch    # those whose file contains one of the words
    python tools/mutants.py --check            # only whether each applies
"""

import argparse
import multiprocessing
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "tools", "examples", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SOURCE = Path("src") / "doublecv"
FAST = "not slow and not site and not cluster and not browser"
TESTS_FAILED = 1
"""Exit code of pytest when tests ran and some failed; 2 to 5 mean that they could not be run."""
PROCESSES = multiprocessing.get_context("forkserver")
"""A server imports what takes long to import, once, and is forked for each run of tests."""
PROCESSES.set_forkserver_preload(["jax", "torch", "scipy.special"])
SECONDS = 600
"""Longest run of one mutant's tests; a mutant that hangs counts as noticed."""


@dataclass(frozen=True)
class Outcome:
    """Result of one mutant: "noticed", "survived", or why it could not be tried."""

    mutant: Mutant
    result: str
    output: str = ""


def fault(mutant: Mutant, root: Path = ROOT) -> str | None:
    """Return why a mutant cannot be applied to the files under `root`, or None if it can be."""
    path = root / SOURCE / mutant.file
    if not path.is_file():
        return f"{mutant.file} does not exist"
    if mutant.old == mutant.new:
        return "the new text equals the old one"
    count = path.read_text().count(mutant.old)
    if count != 1:
        return f"the old text occurs {count} times in {mutant.file}, wanted once"
    for test in shlex.split(mutant.tests):
        if test.startswith("tests/") and not (root / test.partition("::")[0]).exists():
            return f"{test} does not exist"
    return None


def run_tests(root: Path, tests: str) -> tuple[int, str]:
    """Run fast tests in the copy at `root` until the first failure; return pytest's exit code and output."""
    with tempfile.NamedTemporaryFile("r") as output:
        process = PROCESSES.Process(target=_run_pytest, args=(root, shlex.split(tests), output.name))
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            return TESTS_FAILED, f"no result after {SECONDS} seconds"
        return process.exitcode, output.read()


def _run_pytest(root: Path, tests: list[str], output: str) -> None:
    """Run pytest in this process, which was forked for it."""
    import pytest

    os.chdir(root)
    os.environ |= {"PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path.insert(0, str(root / "src"))
    sys.dont_write_bytecode = True
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", FAST, "--rootdir", str(root), *tests])
    sys.stdout.flush()
    os._exit(code)


def try_mutant(mutant: Mutant, root: Path) -> Outcome:
    """Apply a mutant to the copy at `root`, run its tests, and restore the file."""
    reason = fault(mutant, root)
    if reason is not None:
        return Outcome(mutant, reason)
    path = root / SOURCE / mutant.file
    original = path.read_text()
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        code, output = run_tests(root, mutant.tests)
    finally:
        path.write_text(original)
    if code == 0:
        return Outcome(mutant, "survived")
    if code == TESTS_FAILED:
        return Outcome(mutant, "noticed")
    return Outcome(mutant, f"pytest could not run the tests (exit code {code})", output)


def copy_project(to: Path) -> Path:
    """Copy what the tests need into a folder."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, to / name)
    return to


def try_all(mutants: Sequence[Mutant], jobs: int) -> list[Outcome]:
    """Try mutants in `jobs` copies at once, and print each result as it comes."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        # Most mutants leave most programs as they are: what one run compiled, the next one reads.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(folder) / "compiled"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")  # As in the Makefile.
        copies: Queue[Path] = Queue()
        for number in range(jobs):
            copies.put(copy_project(Path(folder) / str(number)))

        def unchanged(tests: str) -> None:
            with _borrowed(copies) as copy:
                code, output = run_tests(copy, tests)
            if code != 0:
                raise SystemExit(f"These tests fail without any mutant: {tests}\n{output}")

        def changed(numbered: tuple[int, Mutant]) -> Outcome:
            number, mutant = numbered
            with _borrowed(copies) as copy:
                outcome = try_mutant(mutant, copy)
            print(f"{number:3} of {len(mutants)}  {outcome.result:8}  {_line(mutant)}", flush=True)
            return outcome

        list(pool.map(unchanged, dict.fromkeys(mutant.tests for mutant in mutants)))
        return list(pool.map(changed, enumerate(mutants, 1)))


@contextmanager
def _borrowed(copies: Queue[Path]) -> Iterator[Path]:
    copy = copies.get()
    try:
        yield copy
    finally:
        copies.put(copy)


def _line(mutant: Mutant) -> str:
    return f"{mutant.file}: {' '.join(mutant.old.split())} -> {' '.join(mutant.new.split())}"


def main() -> None:
    """Run the check from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", help="try only mutants whose file contains one of these")
    parser.add_argument("--check", action="store_true", help="only check that every mutant applies")
    parser.add_argument("--jobs", type=int, default=2, help="how many to try at once")
    arguments = parser.parse_args()
    mutants = [
        mutant for mutant in MUTANTS if not arguments.words or any(word in mutant.file for word in arguments.words)
    ]
    if arguments.check:
        outcomes = [Outcome(mutant, fault(mutant) or "noticed") for mutant in mutants]
    else:
        outcomes = try_all(mutants, arguments.jobs)
    bad = [outcome for outcome in outcomes if outcome.result != "noticed"]
    for outcome in bad:
        print(f"\n{_line(outcome.mutant)}\n    {outcome.result} ({outcome.mutant.tests})\n{outcome.output}")
    print(f"{len(outcomes) - len(bad)} of {len(outcomes)} mutants {'apply' if arguments.check else 'were noticed'}")
    sys.exit(1 if bad or not outcomes else 0)


if __name__ == "__main__":
    main()
