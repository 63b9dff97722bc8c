"""The check with mutants: the list is long enough, and each outcome is told apart."""

import pytest

import mutants
from mutant_list import MUTANTS, Mutant

mutants.PROCESSES.set_forkserver_preload([])  # The project below imports nothing.


def test_there_are_enough_and_no_two_are_the_same():
    assert len(MUTANTS) >= 60
    assert len(set(MUTANTS)) == len(MUTANTS)


@pytest.fixture
def project(tmp_path):
    """A project with one module and one test."""
    (tmp_path / "src" / "doublecv").mkdir(parents=True)
    (tmp_path / "src" / "doublecv" / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import doublecv\n\ndef test_it():\n    assert doublecv.double(2) == 4\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "tests", "result"),
    [
        ("2 * x", "3 * x", "tests/test_it.py", "noticed"),
        ("2 * x", "x * 2", "tests/test_it.py", "survived"),
        ("4 * x", "3 * x", "tests/test_it.py", "occurs 0 times"),
        ("2 * x", "2 *", "tests/test_it.py", "exit code 2"),
        ("2 * x", "3 * x", "tests/test_other.py", "does not exist"),
    ],
)
def test_its_outcome(project, old, new, tests, result):
    mutant = Mutant("__init__.py", old, new, tests)
    assert result in mutants.try_mutant(mutant, project).result
    assert (project / "src" / "doublecv" / "__init__.py").read_text() == "def double(x):\n    return 2 * x\n"
