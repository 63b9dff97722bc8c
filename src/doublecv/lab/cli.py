"""The command `doublecv`: each subcommand's module is imported when it is called, so that help comes at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from doublecv import __version__
from doublecv.lab.common.errors import InputError


class Command(NamedTuple):
    """A subcommand: where the dataclass of its arguments is, and where the function that takes them."""

    summary: str
    arguments: str
    main: str


COMMANDS = {
    "toy": Command(
        "the paper's toy problem: variance and learning curves",
        arguments="doublecv.lab.toy.arguments:ToyArguments",
        main="doublecv.lab.toy.command:main",
    ),
    "data": Command(
        "the image sets: where each was found and whether it is intact",
        arguments="doublecv.lab.data.data_command:DataArguments",
        main="doublecv.lab.data.data_command:main",
    ),
    "train": Command(
        "variational autoencoders with discrete latents on images",
        arguments="doublecv.lab.train.arguments:TrainArguments",
        main="doublecv.lab.train.command:main",
    ),
    "variance": Command(
        "the variance of every estimator at the parameters of trained models",
        arguments="doublecv.lab.variance.arguments:VarianceArguments",
        main="doublecv.lab.variance.command:main",
    ),
    "bench": Command(
        "milliseconds a training step, for every estimator",
        arguments="doublecv.lab.bench.command:BenchSettings",
        main="doublecv.lab.bench.command:main",
    ),
    "reproduce": Command(
        "the paper's tables and figures: all their runs, on this machine or on a cluster",
        arguments="doublecv.lab.sweep.arguments:ReproduceArguments",
        main="doublecv.lab.sweep.command:main",
    ),
    "report": Command(
        "the results of reproduce beside the paper's: a page to look at, and tables",
        arguments="doublecv.lab.report.arguments:ReportArguments",
        main="doublecv.lab.report.command:main",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the subcommand that the arguments name; what the user can mend is one line on standard error."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return
    if name == "--version":
        print(f"doublecv {__version__}")
        return
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"the commands are {', '.join(COMMANDS)}"
        _fail("doublecv", f"unknown command {name!r}; {remedy}")
    try:
        _run(name, rest)
    except InputError as error:
        _fail(f"doublecv {name}", str(error))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "doublecv"):
            raise
        _fail(f"doublecv {name}", f"{missing} is not installed; the laboratory needs: pip install 'doublecv[lab]'")
    except OSError as error:
        _fail(f"doublecv {name}", str(error))
    except KeyboardInterrupt:
        print(f"doublecv {name}: stopped", file=sys.stderr)
        sys.exit(130)


def _run(name: str, rest: list[str]) -> None:
    import tyro

    command = COMMANDS[name]
    arguments = tyro.cli(_load(command.arguments), prog=f"doublecv {name}", args=rest)
    _load(command.main)(arguments)


def _load(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def _fail(prog: str, message: str) -> NoReturn:
    print(f"{prog}: error: {message}", file=sys.stderr)
    sys.exit(2)


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: doublecv [-h] [--version] COMMAND ...",
            "",
            "Low-variance, unbiased gradients of expectations under discrete distributions: the laboratory.",
            "",
            "commands:",
            *lines,
            "",
            "doublecv COMMAND --help shows what a command takes.",
            "",
            "Example: doublecv toy --dimension 10 --seeds 2 --out toy",
        ]
    )
