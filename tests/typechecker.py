"""A run-time checker of annotations, for `make typecheck-run`.

`install` adds an import hook that wraps every function of the package, and the `__init__` of its dataclasses, in
`checked`. At each call, `checked` compares arguments and results with the annotations: array types and shapes by
jaxtyping, with axis names bound for the length of the call, and everything else by beartype.

jaxtyping has such an import hook itself, but resolves annotations when a function is defined, and does not check those
that it cannot resolve. In this package these are all shapes, because the names that only annotations use are imported
under `if TYPE_CHECKING`. It also refuses an argument before the function is called, so that no test could see the
function's own error.
"""

import ast
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import Self, Union, get_args, get_origin, get_type_hints, runtime_checkable

from beartype import BeartypeConf
from beartype.door import is_bearable
from beartype.roar import BeartypeException
from jaxtyping import jaxtyped

CONFIGURATION = BeartypeConf(is_pep484_tower=True)
"""An int is accepted where a float is annotated, as by static checkers."""

ITEMS = 100
"""The number of items of a list, tuple or dict that are compared with their type."""


class UntrueAnnotationError(BaseException):
    """A function took or returned what its annotations exclude.

    Not an `Exception`, so that neither the package nor a test that expects an error can take it for something else.
    """


def install(package):
    """Check the functions of a package that is not imported yet."""
    sys.meta_path.insert(0, _Finder(package))


def checked(function, find_hints=None):
    """Check a function's arguments and result against its annotations at each call.

    An argument that does not fit is no mistake of the annotations if the function raises: it is reported only if the
    function returns. `find_hints` returns the annotations, by default those of the function.
    """
    signature = inspect.signature(function)
    if "<locals>" in function.__qualname__:
        # Its annotations may use names of the function around it, which are not kept until the call.
        _hints(function, sys._getframe(1).f_locals)

    @functools.wraps(function)
    def call(*arguments, **named):
        hints = find_hints() if find_hints else _hints(function)
        if not hints:
            return function(*arguments, **named)
        with jaxtyped("context"):
            problem = None
            try:
                bound = signature.bind(*arguments, **named).arguments
            except TypeError:
                bound = {}  # The call below fails with the message that the caller expects.
            for name, value in bound.items():
                kind = signature.parameters[name].kind
                values = [value]
                if kind is inspect.Parameter.VAR_POSITIONAL:
                    values = value
                elif kind is inspect.Parameter.VAR_KEYWORD:
                    values = value.values()
                for each in values:
                    problem = problem or _problem(function, name, each, hints, arguments)
            result = function(*arguments, **named)
            problem = problem or _problem(function, "return", result, hints, arguments)
            if problem:
                _report(problem)
            return result

    call.is_checked = True
    return call


def _report(problem):
    raise UntrueAnnotationError(problem)


def checked_class(kind):
    """Check the arguments of a dataclass's `__init__`, and let instances of a protocol be recognised.

    The fields of a named tuple are not checked: JAX makes instances that hold anything.
    """
    if getattr(kind, "_is_protocol", False):
        kind = runtime_checkable(kind)
    if dataclasses.is_dataclass(kind) and not hasattr(kind.__init__, "is_checked"):
        kind.__init__ = checked(kind.__init__, functools.partial(_field_hints, kind))
    return kind


def _problem(function, name, value, hints, arguments):
    """Return a message if a value does not fit its annotation."""
    if name not in hints:
        return None
    hint = hints[name]
    # beartype knows the class that Self stands for only where it decorates the class.
    if hint is Self:
        hint = arguments[0] if isinstance(arguments[0], type) else type(arguments[0])
    where = f"{function.__module__}.{function.__qualname__}: {name}"
    try:
        if _fits(value, hint):
            return None
    except BeartypeException as error:
        raise UntrueAnnotationError(f"{where}: {hint} cannot be checked: {error}") from error
    shown = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)[:200]
    return f"{where} is annotated {hint}, got {type(value)}: {shown}"


def _fits(value, hint):
    """Return whether a value fits a type, with the first `ITEMS` items of a list, tuple or dict.

    beartype itself looks at one item, and takes another one each time.
    """
    if not is_bearable(value, hint, conf=CONFIGURATION):
        return False
    arguments = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if isinstance(value, dict) and len(arguments) == 2:
        pairs = islice(value.items(), ITEMS)
        return all(_fits(item, each) for pair in pairs for item, each in zip(pair, arguments, strict=True))
    if get_origin(hint) is tuple and Ellipsis not in arguments:
        return all(map(_fits, value, arguments))
    if isinstance(value, list | tuple) and arguments:
        return all(_fits(each, arguments[0]) for each in islice(value, ITEMS))
    return True


def _hints(function, local_names=None):
    """Return a function's annotations; nothing while its module is being imported, where names may still be missing."""
    # The functions that one piece of code defines, one at each execution, have the same annotations.
    key = (function.__code__, function.__module__, function.__qualname__)
    if key not in _known_hints:
        module = sys.modules[function.__module__]
        if _is_being_imported(module):
            return {}
        names = _names(module)
        _known_hints[key] = get_type_hints(function, names, names | (local_names or {}))
    return _known_hints[key]


_known_hints = {}


def _field_hints(kind):
    """Return the annotations of a dataclass's fields, each with the names of the module that defines it."""
    if kind not in _known_field_hints:
        hints = {}
        for ancestor in reversed(kind.__mro__):
            module = sys.modules[ancestor.__module__]
            if _is_being_imported(module):
                return {}
            own = vars(ancestor).get("__annotations__")
            if own and module.__name__ != "builtins":
                names = _names(module)
                hints |= get_type_hints(type(ancestor.__name__, (), {"__annotations__": own}), names, names)
        _known_field_hints[kind] = hints
    return _known_field_hints[kind]


_known_field_hints = {}


def _is_being_imported(module):
    return getattr(module.__spec__, "_initializing", False)


@functools.cache
def _names(module):
    """Return the names that a module defines, and those that it imports for annotations only."""
    names = dict(vars(module))
    # `inspect.getsource` would ask the module for attributes, and so call a `__getattr__` that is itself checked.
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__file__, "exec"), names)
    return names


class _Decorator(ast.NodeTransformer):
    """Put `checked` below the decorators of every function, and `checked_class` above those of every class."""

    def visit_Module(self, node):
        self.generic_visit(node)
        start = 0
        for statement in node.body:
            is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            if not (is_docstring or is_future):
                break
            start += 1
        node.body.insert(start, ast.Import([ast.alias("typechecker")]))
        return node

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.decorator_list.append(ast.parse("typechecker.checked", mode="eval").body)
        return node

    def visit_ClassDef(self, node):
        self.generic_visit(node)
        node.decorator_list.insert(0, ast.parse("typechecker.checked_class", mode="eval").body)
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        # Without the cache of compiled modules, which belongs to the code as it is written.
        tree = _Decorator().visit(ast.parse(self.get_data(self.path), self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, package):
        self.package = package

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.package and not fullname.startswith(self.package + "."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
