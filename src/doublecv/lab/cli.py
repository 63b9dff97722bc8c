"""The command `doublecv`: each program is imported when it is called, and only after its settings were checked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from doublecv import __version__
from doublecv.lab.common.errors import InputError, unknown_name


class Command(NamedTuple):
    """A program: its package in the lab, its dataclass of settings as MODULE:NAME in there, and its summary."""

    package: str
    settings_name: str
    summary: str

    @property
    def settings(self) -> str:
        """The path of the dataclass of its settings."""
        return f"doublecv.lab.{self.package}.{self.settings_name}"

    @property
    def main(self) -> str:
        """The path of the function that takes them."""
        return f"doublecv.lab.{self.package}.command:main"


COMMANDS = {
    "toy": Command("toy", "problem:ToySettings", "run the paper's toy problem: variance and learning curves"),
    "data": Command("data", "command:DataSettings", "list the image data sets, and whether each is here and intact"),
    "train": Command("train", "settings:TrainSettings", "train a variational autoencoder with discrete latents"),
    "variance": Command("variance", "command:VarianceSettings", "measure the variance of estimators on trained models"),
    "bench": Command("bench", "results:BenchSettings", "measure milliseconds per training step, for every estimator"),
    "reproduce": Command("sweep", "command:ReproduceSettings", "run the paper's experiments, here or on a cluster"),
    "report": Command("report", "command:ReportSettings", "compare the results of reproduce with the paper's"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name; user errors are printed as one line on standard error."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return
    if name == "--version":
        print(f"doublecv {__version__}")
        return
    if name == "--print-completion":
        _print_completion(*rest[:1])
        return
    if name not in COMMANDS:
        known = ("--help", "--version", "--print-completion") if name.startswith("-") else COMMANDS
        _fail("doublecv", str(unknown_name("option" if name.startswith("-") else "command", name, known)))
    prog = f"doublecv {name}"
    try:
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
        _fail("doublecv", str(unknown_name("shell", shell, shtab.SUPPORTED_SHELLS)))
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
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: doublecv [--help] [--version] [--print-completion SHELL] COMMAND ...",
            "",
            "Low-variance, unbiased gradients of expectations under discrete distributions: the laboratory.",
            "",
            "commands:",
            *lines,
            "",
            "doublecv COMMAND --help shows what a command takes.",
            "",
            "example:",
            "  doublecv toy --dimension 10 --seeds 2 --out toy",
        ]
    )
