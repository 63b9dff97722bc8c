"""A run-time checker of annotations, for `make typecheck-run`.

jaxtyping's import hook wraps every function of the package in `checked`, which compares arguments and results with the
annotations at each call: array types and shapes by jaxtyping, with axis names bound for the length of the call, and
everything else by beartype. Annotations are resolved at the first call rather than when a function is defined, because
the package imports the names that only annotations use under `if TYPE_CHECKING`.
"""

import ast
import functools
import inspect
import sys
from pathlib import Path
from typing import Any, Self, get_type_hints

from beartype import BeartypeConf
from beartype.door import is_bearable
from beartype.roar import BeartypeException

CONFIGURATION = BeartypeConf(is_pep484_tower=True)
"""An int is accepted where a float is annotated, as by static checkers."""


@functools.cache
def _names(module_name):
    """Return the names that a module defines, and those that it imports for annotations only."""
    module = sys.modules[module_name]
    names = dict(vars(module))
    # `inspect.getsource` would ask the module for attributes, and so call a `__getattr__` that is itself checked.
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__file__, "exec"), names)
    return names


def checked(function):
    """Check a function's arguments and result against its annotations at each call."""
    signature = inspect.signature(function)
    hints = {}

    @functools.wraps(function)
    def call(*arguments, **named):
        if not hints:
            names = _names(function.__module__)
            hints.update(get_type_hints(function, names, names) or {"": Any})
        for name, value in signature.bind(*arguments, **named).arguments.items():
            kind = signature.parameters[name].kind
            values = [value]
            if kind is inspect.Parameter.VAR_POSITIONAL:
                values = value
            elif kind is inspect.Parameter.VAR_KEYWORD:
                values = value.values()
            for each in values:
                _check(function, name, each, hints)
        result = function(*arguments, **named)
        _check(function, "return", result, hints)
        return result

    return call


def _check(function, name, value, hints):
    # beartype knows the class that Self stands for only where it decorates the class.
    if hints.get(name, Self) is Self:
        return
    try:
        fits = is_bearable(value, hints[name], conf=CONFIGURATION)
    except BeartypeException as error:
        raise TypeError(f"{function.__qualname__}: {name}: {hints[name]} cannot be checked: {error}") from error
    if not fits:
        shape = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)[:200]
        raise TypeError(f"{function.__qualname__}: {name} is annotated {hints[name]}, got {type(value)}: {shape}")
