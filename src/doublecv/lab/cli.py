"""The command `doublecv`: each program is imported when it is called, and only after its settings were checked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from doublecv import __version__
from doublecv.lab.common.errors import InputError, unknown_name

COMMANDS = {
    "toy": ("toy.problem:ToySettings", "toy.run", "run the paper's toy problem: variance, learning curves"),
    "data": ("data.command:DataSettings", "data.command", "list the data sets, and whether each is intact"),
    "train": ("train.settings:TrainSettings", "train.command", "train an autoencoder with discrete latents"),
    "variance": ("variance.command:VarianceSettings", "variance.command", "measure variances in trained models"),
    "bench": ("bench.problem:BenchSettings", "bench.command", "measure the time per training step"),
    "reproduce": ("sweep.command:ReproduceSettings", "sweep.command", "run the paper's experiments"),
    "report": ("report.render:ReportSettings", "report.render", "compare the results with the paper's"),
}
"""For each command the class of its settings, the module whose `main` takes them, and a summary."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name; user errors are printed as one line on standard error."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    prog = f"doublecv {name}" if name in COMMANDS else "doublecv"
    try:
        if name in ("-h", "--help"):
            print(_help())
        elif name == "--version":
            print(f"doublecv {__version__}")
        elif name in COMMANDS:
            run(name, rest)
        elif name.startswith("-"):
            raise unknown_name("option", name, ("--help", "--version"))
        else:
            raise unknown_name("command", name, COMMANDS)
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

    settings = parse(settings_class(name), f"doublecv {name}", words)
    import_module(f"doublecv.lab.{COMMANDS[name][1]}").main(settings)


def settings_class(name: str) -> Any:
    """Return the class of the settings of a command."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    return getattr(import_module(f"doublecv.lab.{module}"), attribute)


def _fail(prog: str, message: str) -> NoReturn:
    print(f"{prog}: error: {' '.join(message.splitlines())}", file=sys.stderr)
    sys.exit(2)


def _help() -> str:
    commands = "\n".join(f"  {name:<10} {summary}" for name, (_, _, summary) in COMMANDS.items())
    return f"""usage: doublecv [--help] [--version] COMMAND ...

Low-variance, unbiased gradients of expectations under discrete distributions: the laboratory.

commands:
{commands}

doublecv COMMAND --help shows what a command takes.

example:
  doublecv toy --dimension 10 --seeds 2 --out toy"""
