"""The tests that `make test` leaves out, in one list.

Everything here runs in `make test-all`. Each entry is a pattern of test ids (as `fnmatch` reads them), its
markers, and what of the same code the fast set still tests.
"""

from fnmatch import fnmatchcase
from typing import NamedTuple


class Left(NamedTuple):
    """Hold tests that are left out of the fast set.

    Attributes:
        pattern: a pattern of test ids.
        markers: `slow`, `site`, `cluster` or `browser`.
        instead: what the fast set still tests.
    """

    pattern: str
    markers: tuple[str, ...]
    instead: str


LEFT_OUT = (
    Left("tests/docs/*", ("site",), "the README's and CONTRIBUTING's code, in tests/test_package.py"),
    Left("tests/docs/test_site_browser.py*", ("browser",), "nothing of the site in a browser"),
    Left("tests/lab/report/test_report_page.py*", ("browser",), "the report's files and statistics"),
    Left("tests/lab/sweep/test_cluster.py*", ("cluster",), "the plan of a sweep and its settings"),
    Left("tests/lab/sweep/test_sweep_interruptions.py*", ("slow",), "checkpoints and the files of a run"),
    Left("tests/lab/train/test_train_interruptions.py*", ("slow",), "checkpoints and the files of a run"),
    Left("tests/lab/train/test_devices.py*", ("slow",), "the training step on one device"),
    Left("tests/torch*/test_torch_distributed.py*", ("slow",), "the module in one process"),
    Left("tests/test_examples.py*", ("slow",), "the README's programs"),
    Left("tests/test_get_started.py*", ("slow",), "the loops of test_jax_training.py and test_torch_training.py"),
    Left("tests/test_build.py*", ("slow",), "the package as it is installed for the tests"),
    Left("tests/test_core_fuzz.py*", ("slow",), "the tests of shapes, types and errors, by hand"),
    Left("tests/lab/test_fuzz.py*", ("slow",), "the tests of data files and command lines, by hand"),
    Left("tests/lab/test_demo.py*", ("slow",), "the programs that the demo calls"),
    Left("tests/lab/variance/test_variance_command.py*", ("slow",), "the meter, in tests/diagnostics"),
    Left("tests/lab/bench/test_harm.py::test_the_quadratic_form_*", ("slow",), "one problem, in the same file"),
    Left("tests/lab/train/test_training_estimators.py*", ("slow",), "the training step with a few estimators"),
    Left("tests/lab/train/test_train_command.py*", ("slow",), "the command line, without training"),
    Left(
        "tests/estimators/test_battery.py::test_unbiased_*-4-quadratic?", ("slow",), "2 and 3 samples, and the network"
    ),
    Left(
        "tests/estimators/test_battery.py::test_unbiased_*-4-multilinear?",
        ("slow",),
        "2 and 3 samples, and the network",
    ),
    Left("tests/estimators/test_rebar.py::test_*z_test*", ("slow",), "quadrature, which is exact, in the same file"),
    Left("tests/lab/toy/test_toy.py::test_every_other_*", ("slow",), "the toy run with the paper's estimators"),
    Left("tests/lab/toy/test_toy_figures.py::test_figures_are_the_same*", ("slow",), "that every figure is drawn"),
    Left(
        "tests/lab/sweep/test_reproduce_command.py::test_the_speed_*", ("slow",), "the list with a speed that is given"
    ),
    Left("tests/jax/test_jax_compiled.py*", ("slow",), "compiled against uncompiled gradients of small batches"),
)

VARIANTS = frozenset(
    {
        "r-star",
        "double-cv-mean",
        "double-cv-current",
        "double-cv-others",
        "double-cv-moments",
        "double-cv-antithetic",
        "double-cv-mean-antithetic",
        "double-cv-mean-dirichlet",
        "quadratic-double-cv-gradient",
        "arms",
    }
)
"""Registered estimators that share their formula's parts and their path through a front-end with another one.

The fast set tests their formulas (tests/estimators), and the front-ends only with the others.
"""

FRONT_ENDS = ("tests/jax", "tests/torch")


def markers_of(test, parameters):
    """Return the names of the markers of a test with the given id and parameters."""
    found = {marker for left in LEFT_OUT if fnmatchcase(test, left.pattern) for marker in left.markers}
    if test.startswith(FRONT_ENDS) and any(value in VARIANTS for value in parameters if isinstance(value, str)):
        found.add("slow")
    return found
