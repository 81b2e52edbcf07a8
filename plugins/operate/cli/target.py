"""MODULE:ATTR: finds the application of a command line, or says exactly why it cannot."""

from __future__ import annotations

import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock import Application, PenstockError, Program, Settings, Topology, TopologyBuilder
from penstock.settings.layers import CODE, Layer
from penstock.support.user_line import user_line

from .failures import ApplicationError

EXPECTED = "an Application, a Topology, a StreamsBuilder, or a function without arguments that returns one"
_RUNNABLE = (Application, Topology, TopologyBuilder)


def load_application(target: str, settings: Mapping[str, Any] | Callable[[], Layer] | None = None) -> Application:
    """Return the application that `target` ("MODULE:ATTR" or "FILE.py:ATTR") names, with `settings` over its own.

    A function that returns them is called when the module of the target is imported.
    Their `application_id` names a Topology, which has no id of its own, or renames an Application.
    Raises ApplicationError, and what the program itself raises on purpose (TopologyError, ConfigError).
    """
    found = load(target)
    if callable(settings):
        layer = settings()
    else:
        layer = Layer.read(((name, value, CODE) for name, value in (settings or {}).items()), Settings.names())
    if isinstance(found, Application):
        return found.under(layer)
    if "application_id" not in layer.values:
        raise ApplicationError(
            f"{target} is a {type(found).__name__}, which has no id: add --application-id ID (it names the application's positions, "
            "internal topics and state in the log), or make it an Application"
        )
    return Application(layer.values["application_id"], found).under(layer)


def load_program(target: str) -> Program:
    """Return the program that `target` names; a Topology needs no id for that."""
    found = load(target)
    if isinstance(found, Application):
        return found.program
    program: Program = (found.build() if isinstance(found, TopologyBuilder) else found).build()
    return program


def load(target: str) -> Any:
    """Return the Application, Topology or StreamsBuilder that `target` names."""
    module, module_name, found = _find(target)
    if isinstance(found, _RUNNABLE):
        return found
    if not callable(found) or inspect.isclass(found):
        raise ApplicationError(
            f"{target} is {_describe(found)}; expected {EXPECTED}.{_of_builder(found)}"
            + _candidates(module, module_name)
        )
    made = _call(found, target)
    if not isinstance(made, _RUNNABLE):
        raise ApplicationError(
            f"{target}() returned {_describe(made)}; expected an Application, a Topology or a StreamsBuilder."
            f"{_of_builder(made)}"
        )
    return made


def load_function(target: str) -> Any:
    """Return the function that MODULE:ATTR names, without calling it."""
    found = _find(target)[2]
    if not callable(found):
        raise ApplicationError(f"{target} is {_describe(found)}; expected a function")
    return found


def _find(target: str) -> tuple[ModuleType, str, Any]:
    module_name, colon, attribute = target.rpartition(":")
    if not colon:
        module_name, attribute = target, ""
    if not module_name:
        raise ApplicationError(f"{target!r}: expected MODULE:ATTR or FILE.py:ATTR, for instance wordcount:application")
    module = _import(module_name)
    if not attribute:
        raise ApplicationError(
            f"{target!r} names no attribute: expected MODULE:ATTR, where ATTR is {EXPECTED}."
            + _candidates(module, module_name)
        )
    return module, module_name, _attribute(module, module_name, attribute)


# -- modules


def _import(name: str) -> ModuleType:
    """Import a module by name, looking into the current directory first, or by the path of its file."""
    if name.endswith(".py") or os.sep in name:
        return _import_file(Path(name))
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    return _import_name(name, name)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        folder = path.parent
        there = [each.name for each in folder.glob("*.py")] if folder.is_dir() else []
        raise ApplicationError(f"there is no file {str(path)!r}." + _near(path.name, there, "Python files there"))
    path = path.resolve()
    # A file of a package is imported as part of it, or its relative imports would fail.
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    name = ".".join(parts)
    module = _import_name(name, str(path))
    if module.__file__ is None or Path(module.__file__).resolve() != path:
        raise ApplicationError(
            f"{str(path)!r} cannot be imported: its name {name!r} is taken by "
            f"{module.__file__ or 'a built-in module'}; rename the file"
        )
    return module


def _import_name(name: str, shown: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            parent, _, last = error.name.rpartition(".")
            raise ApplicationError(
                f"there is no module {error.name!r}"
                + (f" in {parent!r}." if parent else f" in {os.getcwd()!r} or among the installed packages.")
                + _near(last, _modules(parent), "modules there")
            ) from error
        raise _inside(error, shown, "importing") from error
    except PenstockError:
        raise  # the program's own mistake, and its message says which
    except (Exception, SystemExit) as error:
        raise _inside(error, shown, "importing") from error


def _modules(package: str) -> list[str]:
    paths = list(getattr(sys.modules[package], "__path__", [])) if package else [os.getcwd()]
    return [module.name for module in pkgutil.iter_modules(paths)]


# -- attributes


def _attribute(module: ModuleType, module_name: str, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = [name for name in vars(module) if not name.startswith("_")]
            close = get_close_matches(part, public, 3, 0.5)
            raise ApplicationError(
                f"module {module_name!r} has no attribute {attribute!r}."
                + (f" Did you mean {' or '.join(map(repr, close))}?" if close else "")
                + _candidates(module, module_name)
            ) from None
    return found


def _candidates(module: ModuleType, module_name: str) -> str:
    names = [
        f"{module_name}:{name} ({type(value).__name__})"
        for name, value in vars(module).items()
        if isinstance(value, _RUNNABLE)
    ]
    return f" In it: {', '.join(names)}." if names else " There is no Application, Topology or StreamsBuilder in it."


def _call(function: Any, target: str) -> Any:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    needed = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise ApplicationError(
            f"{target} needs arguments ({', '.join(needed)}); expected {EXPECTED}. Give them defaults, or wrap it in a "
            "function"
        )
    try:
        return function()
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:
        raise _inside(error, f"{target}()", "calling") from error


# -- words


def _inside(error: BaseException, what: str, doing: str) -> ApplicationError:
    """Return the error for something that went wrong inside the user's module, with the user's line."""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    else:
        where = str(user_line(error) or _innermost_line(error))
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return ApplicationError(f"{doing} {what} failed: {type(error).__name__}: {message} ({where})")


def _innermost_line(error: BaseException) -> str:
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen")]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "outside any Python code"


def _describe(value: object) -> str:
    if inspect.isclass(value):
        return f"the class {value.__qualname__}"
    if inspect.ismodule(value):
        return f"the module {value.__name__}"
    return "None" if value is None else f"of type {type(value).__name__}"


def _of_builder(value: object) -> str:
    """Return advice for a part of a DSL program."""
    if not type(value).__module__.startswith("penstock.plugins.dsl."):
        return ""
    return f" A {type(value).__name__} is a part of what a StreamsBuilder builds: name the builder."


def _near(name: str, names: Iterable[str], what: str) -> str:
    names = sorted(set(names))
    close = get_close_matches(name, names, 3, 0.5)
    if close:
        return f" Did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    return f" There are {what}: {shown}." if names else f" There are no {what}."
