"""The command `doublecv`: each program is imported when it is called, and only after its settings were checked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from doublecv import __version__
from doublecv.lab.common.errors import InputError, unknown_name


class Command(NamedTuple):
    """A program of the laboratory: the dataclass of its settings, the function that takes them, and its summary."""

    settings: str
    main: str
    summary: str


def _command(package: str, settings: str, summary: str) -> Command:
    return Command(f"doublecv.lab.{package}.{settings}", f"doublecv.lab.{package}.command:main", summary)


COMMANDS = {
    "toy": _command("toy", "problem:ToySettings", "run the paper's toy problem: variance and learning curves"),
    "data": _command("data", "command:DataSettings", "list the image data sets, and whether each is here and intact"),
    "train": _command("train", "settings:TrainSettings", "train a variational autoencoder with discrete latents"),
    "variance": _command(
        "variance", "command:VarianceSettings", "measure the variance of estimators in trained models"
    ),
    "bench": _command("bench", "results:BenchSettings", "measure milliseconds per training step, for every estimator"),
    "reproduce": _command("sweep", "command:ReproduceSettings", "run the paper's experiments, here or on a cluster"),
    "report": _command("report", "command:ReportSettings", "compare the results of reproduce with the paper's"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name; user errors are printed as one line on standard error."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    prog = f"doublecv {name}" if name in COMMANDS else "doublecv"
    try:
        if name in ("-h", "--help"):
            print(_help())
        elif name == "--version":
            print(f"doublecv {__version__}")
        elif name == "--print-completion":
            _print_completion(*rest[:1])
        elif name.startswith("-"):
            raise unknown_name("option", name, ("--help", "--version", "--print-completion"))
        elif name not in COMMANDS:
            raise unknown_name("command", name, COMMANDS)
        else:
            run(name, rest)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "doublecv"):
            raise
        _fail(prog, f"{missing} is not installed; the laboratory needs: pip install 'doublecv[lab]'")
    except (InputError, OSError) as error:
        _fail(prog, str(error))
    except KeyboardInterrupt:
        print(f"{prog}: stopped", file=sys.stderr)
        sys.exit(130)


def run(name: str, words: Sequence[str]) -> None:
    """Parse and check the words of a command, then import its program and run it."""
    from doublecv.lab.common.options import parse

    command = COMMANDS[name]
    settings = parse(load(command.settings), f"doublecv {name}", words)
    load(command.main)(settings)


def load(path: str) -> Any:
    """Return the object at MODULE:NAME."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def _print_completion(shell: str = "bash") -> None:
    """Print the script that completes commands and options in a shell."""
    import argparse

    import shtab

    from doublecv.lab.common.options import make_parser

    if shell not in shtab.SUPPORTED_SHELLS:
        raise unknown_name("shell", shell, shtab.SUPPORTED_SHELLS)
    parser = argparse.ArgumentParser(prog="doublecv")
    commands = parser.add_subparsers()
    for name, command in COMMANDS.items():
        parent = make_parser(load(command.settings), f"doublecv {name}")
        commands.add_parser(name, parents=[parent], add_help=False, help=command.summary)
    print(shtab.complete(parser, shell))


def _fail(prog: str, message: str) -> NoReturn:
    print(f"{prog}: error: {' '.join(message.splitlines())}", file=sys.stderr)
    sys.exit(2)


def _help() -> str:
    commands = "\n".join(f"  {name:<10} {command.summary}" for name, command in COMMANDS.items())
    return f"""usage: doublecv [--help] [--version] [--print-completion SHELL] COMMAND ...

Low-variance, unbiased gradients of expectations under discrete distributions: the laboratory.

commands:
{commands}

doublecv COMMAND --help shows what a command takes.

example:
  doublecv toy --dimension 10 --seeds 2 --out toy"""
