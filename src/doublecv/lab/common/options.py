"""Settings dataclasses as command lines: help, parsing, and limits that are checked before JAX is imported.

A program has one dataclass of settings, such as `doublecv.lab.toy.problem.ToySettings`. Its docstring is the
description, ending with an example; the docstring below a field is the help of its option; an `Option` in the
annotation holds what the type does not say.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import math
import os
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from doublecv.lab.common.errors import InputError, shortened, unknown_name

KINDS = {int: ("N", "a whole number"), float: ("X", "a number"), Path: ("PATH", "a path"), str: ("NAME", "a word")}
"""The placeholder of a value in the help, and what it must be."""


@dataclass(frozen=True)
class Option:
    """What the help and the checks of one setting need beyond its type.

    `names` returns the names that the value is one of, which are listed at the end of the help; `what` is the kind of
    these names, such as "estimator". `without_value` is the value of an option that is given without one.
    """

    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    positive: bool = False
    unique: bool = False
    names: Callable[[], Sequence[str]] | None = None
    what: str = "name"
    positional: bool = False
    without_value: str | None = None


LARGEST_SHARE = 0.9
"""The share of the machine's memory that a program may need by estimate."""

SEED = Option(minimum=0, maximum=2**31 - 1)
"""The seeds that JAX takes in 32 bits."""


class _Setting(NamedTuple):
    """A field with its resolved type: of its values, or of the elements where it holds several."""

    field: Field[Any]
    kind: type
    several: bool
    choices: tuple[str, ...]
    option: Option

    @property
    def flag(self) -> str:
        """The option's name on the command line."""
        return self.metavar if self.option.positional else flag(self.field.name)

    @property
    def metavar(self) -> str:
        """The placeholder of the value."""
        return f"{{{','.join(self.choices)}}}" if self.choices else self.option.metavar or KINDS[self.kind][0]

    @property
    def required(self) -> bool:
        """Whether the user must give it."""
        return self.field.default is MISSING

    def convert(self, word: str) -> Any:
        """Return the value that a word of the command line gives."""
        try:
            if self.kind is Path and not word:
                raise ValueError
            return self.kind(word)
        except ValueError as error:
            wanted = KINDS[self.kind][1]
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {shortened(repr(word))}") from error

    def add_to(self, group: Any, text: str) -> None:
        """Add the option to a group of a parser's arguments, with its help."""
        option, value = self.option, None if self.required else self.field.default
        if self.required and not option.positional:
            text += " (required)"
        elif value is not None and value is not False and value != ():
            text += f" (default: {' '.join(map(str, value)) if isinstance(value, tuple) else value})"
        keywords: dict[str, Any] = {"help": text.replace("%", "%%")}
        if self.kind is bool:
            group.add_argument(self.flag, action="store_true", **keywords)
            return
        keywords |= {"default": value, "type": self.convert, "metavar": self.metavar}
        if option.without_value is not None:
            keywords |= {"nargs": "?", "const": option.without_value}
        if self.several:
            keywords["nargs"] = "+" if self.required else "*"
        if option.positional:
            group.add_argument(self.field.name, **keywords)
        else:
            group.add_argument(self.flag, required=self.required, **keywords)

    def check(self, value: Any) -> None:
        """Raise an `InputError` if a value is outside of the limits, with its name, the value and the limit."""
        option, wanted = self.option, ""
        if self.kind in (int, float) and (isinstance(value, bool) or not isinstance(value, int | float)):
            wanted = KINDS[self.kind][1]
        elif option.minimum is not None and not value >= option.minimum:
            wanted = f"at least {option.minimum:,}"
        elif option.maximum is not None and not value <= option.maximum:
            wanted = f"at most {option.maximum:,}"
        elif option.positive and not 0 < value < math.inf:
            wanted = "a positive number"
        if wanted:
            raise InputError(f"{self.flag} must be {wanted}, got {shortened(repr(value), 40)}")
        names = self.choices if option.names is None else option.names()
        if names and value not in names:
            raise unknown_name(option.what if option.names else f"{self.flag} value", value, names)


def flag(field: str) -> str:
    """Return the name of a field on the command line."""
    return f"--{field.replace('_', '-')}"


class ProgramSettings:
    """Give the settings of a program, a frozen dataclass, their checks and their form as JSON."""

    execution: tuple[str, ...] = ("out",)
    """Fields that say where and how the program is executed. All others determine its numbers."""

    def check(self) -> None:
        """Raise an `InputError` if a setting cannot work."""
        for setting in _settings(type(self)):
            value = getattr(self, setting.field.name)
            values = () if value is None else value if setting.several else (value,)
            if setting.several and setting.field.default != () and not values:
                raise InputError(f"{setting.flag} needs at least one value")
            if setting.option.unique and len(set(values)) < len(values):
                raise InputError(f"{setting.flag} must not repeat a value, got {' '.join(map(str, values))}")
            for each in values:
                setting.check(each)

    def check_machine(self) -> None:
        """Raise an `InputError` if this machine cannot run settings that others can; `check` does not look at it."""

    def check_memory_of(self, name: str, bytes_needed: float, given: str = "") -> None:
        """Raise an `InputError` if what a setting needs is more than the share of the memory that a program may need.

        Args:
            name: the name of the field.
            bytes_needed: the estimate.
            given: other settings that the estimate depends on, for the message.
        """
        available = LARGEST_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if bytes_needed > available:
            raise InputError(
                f"{flag(name)} {getattr(self, name)} needs about {bytes_needed / 1e9:,.0f} GB of memory{given}, more "
                f"than the {available / 1e9:,.0f} GB that this machine can give; use a smaller number"
            )

    def defaults(self) -> ProgramSettings | None:
        """Return the settings that replace the defaults of options that were not given; None for no others."""
        return None

    def as_json(self) -> dict[str, Any]:
        """Return the settings that determine the numbers, as they are read back from a JSON file."""
        described = {name: value for name, value in vars(self).items() if name not in self.execution}
        plain: dict[str, Any] = json.loads(json.dumps(described))
        return plain

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings that `as_json` described, or raise an `InputError` that names the field."""
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        if unknown := sorted(given.keys() - known):
            raise InputError(f"this version has no settings named {', '.join(unknown)}")
        try:
            settings = msgspec.convert(dict(given), cls, dec_hook=lambda kind, value: kind(value))
        except msgspec.ValidationError as error:
            raise InputError(str(error)) from error
        settings.check()
        return settings


Settings = TypeVar("Settings", bound=ProgramSettings)


def parse(cls: type[Settings], prog: str, words: Sequence[str]) -> Settings:
    """Return the settings that the words of a command line give, or raise an `InputError` where they are wrong."""
    parser = make_parser(cls, prog)
    made = _parsed(cls, parser, words)
    if (others := made.defaults()) is not None:
        parser.set_defaults(**vars(others))
        made = _parsed(cls, parser, words)
    made.check()
    made.check_machine()
    return made


def _parsed(cls: type[Settings], parser: argparse.ArgumentParser, words: Sequence[str]) -> Settings:
    given, extra = parser.parse_known_args(list(words))
    for word in extra:
        if word.startswith("-"):
            raise unknown_name("option", word.partition("=")[0], [each.flag for each in _settings(cls)])
        raise InputError(f"unexpected argument {shortened(repr(word))}; {parser.prog} --help shows what it takes")
    for setting in _settings(cls):
        if setting.choices:
            setting.check(getattr(given, setting.field.name))
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in vars(given).items()})


def make_parser(cls: type, prog: str) -> argparse.ArgumentParser:
    """Return the parser of a settings class."""
    settings, helps = list(_settings(cls)), _attribute_docstrings(cls)
    paragraphs = (inspect.getdoc(cls) or "").split("\n\n")
    about = [textwrap.fill(each, 100) for each in paragraphs if not each.startswith("Example: ")]
    layout = partial(argparse.RawDescriptionHelpFormatter, max_help_position=30, width=100)
    parser = _Parser(prog, formatter_class=layout, allow_abbrev=False, add_help=False)
    required = [
        each.flag if each.option.positional else f"{each.flag} {each.metavar}" for each in settings if each.required
    ]
    parser.usage = " ".join([prog, *required, "[options]"])
    parser.description, parser.epilog = "\n\n".join(about), _epilog(paragraphs, settings)
    groups = [parser.add_argument_group(heading) for heading in ("arguments", "options")]
    for setting in settings:
        setting.add_to(groups[not setting.option.positional], helps.get(setting.field.name, ""))
    groups[1].add_argument("-h", "--help", action="help", help="Show this help and exit.")
    return parser


def _settings(cls: type) -> Iterator[_Setting]:
    hints = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        hint, option = hints[field.name], Option()
        if get_origin(hint) is Annotated:
            hint, option = get_args(hint)
        if get_origin(hint) is types.UnionType:
            (hint,) = (each for each in get_args(hint) if each is not type(None))
        several = get_origin(hint) is tuple
        if several:
            hint = get_args(hint)[0]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        yield _Setting(field, str if choices else hint, several, choices, option)


def _epilog(paragraphs: Sequence[str], settings: Sequence[_Setting]) -> str:
    """Return the names that the options take, and the example."""
    lists = {each.option.what: each.option.names() for each in settings if each.option.names is not None}
    fill = partial(textwrap.fill, width=100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    shown = [f"{what}s:\n{fill(', '.join(names))}" for what, names in lists.items()]
    examples = [each for each in paragraphs if each.startswith("Example: ")]
    return "\n\n".join([*shown, *(each.replace("Example: ", "example:\n  ", 1) for each in examples)])


def _attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class."""
    found: dict[str, str] = {}
    for pair in pairwise(ast.parse(inspect.getsource(cls)).body[0].body):  # type: ignore[attr-defined]
        match pair:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str() as text)):
                found[name] = " ".join(text.split())
    return found


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are `InputError`s."""

    def error(self, message: str) -> NoReturn:
        """Raise the message in our words."""
        name, colon, rest = message.removeprefix("argument ").partition(": ")
        if message.startswith("argument ") and colon:
            message = f"{name} needs a value" if rest.startswith("expected ") else f"{name} {rest}"
        if message.startswith("the following arguments are required: "):
            message = f"{rest} must be given"
        raise InputError(f"{message}; {self.prog} --help shows what it takes")
