"""Functions of a program: which code is the user's, and how functions and nodes are named in a profile."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType
from typing import Any

import penstock
from penstock import Node, SinkNode, SourceNode
from penstock.operator import Operator
from penstock.program.wrapping import innermost

_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib", "platstdlib")})
_OURS = tuple({str(Path(each).resolve()) + os.sep for each in penstock.__path__})
_ROOT = str(Path(penstock.__path__[0]).resolve().parent) + os.sep
_LAYERS = ("core", "stores", "plugins", "contrib", "doors")


@dataclass(frozen=True)
class Function:
    """A function of the user's. `own_seconds`: with what it calls that is not the program's; `total_seconds`: all."""

    name: str
    file: str
    line: int
    own_seconds: float
    total_seconds: float


def is_users(code: CodeType) -> bool:
    """Return whether code is neither penstock's nor a library's."""
    file = code.co_filename
    if file.startswith("<") and file != "<stdin>" and not file.startswith("<ipython"):
        return False
    return not file.startswith((*_LIBRARIES, sys.prefix + os.sep + "lib")) and not _is_ours(file)


def _is_ours(file: str) -> bool:
    if file.startswith(_OURS) or file == "penstock profile":
        return True
    # A checkout, whose folders are the layers.
    return file.startswith(_ROOT) and file[len(_ROOT) :].partition(os.sep)[0] in _LAYERS


def describe_code(code: CodeType) -> tuple[str, str, int]:
    """Return the name, the file and the first line of code, the name without what it is nested in."""
    file = code.co_filename
    name = code.co_qualname.replace(".<locals>", "")
    return name, file if file.startswith("<") else os.path.relpath(file), code.co_firstlineno


def describe_node(node: Node, processor: object) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a node, and the user's functions in it."""
    if isinstance(node, SourceNode):
        return f"source {', '.join(node.topics) or (node.pattern.pattern if node.pattern else '')}", ()
    if isinstance(node, SinkNode):
        return f"sink {node.topic if isinstance(node.topic, str) else 'of a chosen topic'}", ()
    if processor is None:
        return "processor", ()
    made = innermost(processor)
    if isinstance(made, Operator) and type(made).__module__.startswith("penstock."):
        folds = [type(each).__name__ for each in vars(made).values() if type(each).__name__ == "Counting"]
        name = "count" if folds else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(made).__name__).lower()
        given = vars(made).get("function")
        builtin = [given.__name__] if isinstance(given, (type, BuiltinFunctionType)) else []
        return name, tuple(dict.fromkeys([*_functions(made, 2), *builtin]))
    return type(made).__name__, ()


def _functions(value: Any, depth: int) -> Iterator[str]:
    """Yield the user's functions among an operator's attributes."""
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        if is_users(code):
            name, file, line = describe_code(code)
            yield f"{name.rpartition('.')[2]} ({file}:{line})"
        elif depth:
            for cell in value.__closure__ or ():
                try:
                    yield from _functions(cell.cell_contents, depth - 1)
                except ValueError:  # an empty cell
                    continue
    elif depth and type(value).__module__.startswith("penstock.") and hasattr(value, "__dict__"):
        for each in list(vars(value).values()):
            yield from _functions(each, depth - 1)
