"""Shipped copies of a program: what a process of an engine has, and what was changed in it outside stores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from penstock import Application
from penstock.plugins.engine.task.shipping import Arrived, cannot_arrive

_DEPTH, _MOST = 3, 1_000
"""How deep the parts of a value are compared, and up to how many elements of a container."""


class ShippedCopy:
    """A copy of an application with classes, functions and globals of its own, as a new process gets it.

    Raises ConfigError, naming the part, for an application whose bytes cannot be read.
    """

    def __init__(self, application: Application, packed: bytes) -> None:
        try:
            arrived = Arrived(packed, is_apart=True)
        except Exception as error:
            raise cannot_arrive(application, error) from error
        self.application: Application = arrived.cargo
        self.in_place = arrived.in_place
        self._made = arrived.made
        self._before = self._state()

    def changes(self) -> list[str]:
        """Return for each value of functions and classes that is not as it arrived a sentence that names it."""
        now = self._state()
        return [
            f"{where}: {name!r} was changed while tasks ran"
            for (where, name), (parts, _) in now.items()
            if not _same(parts, self._before.get((where, name), ((), None))[0])
        ]

    def values(self) -> dict[str, object]:
        """Return the values of functions and classes by name, in a form that two copies can be compared by."""
        return {
            f"{where}: {name!r}": [_plain(part) for part in parts]
            for (where, name), (parts, _) in self._state().items()
        }

    def let(self, change: Callable[[Sequence[Any]], object]) -> None:
        """Let `change` change the classes and functions that came along."""
        change(self._made)
        self._before = self._state()

    def _state(self) -> dict[tuple[str, str], tuple[tuple[Any, ...], Any]]:
        return {
            (where, name): (tuple(_parts(value, _DEPTH)), value)
            for where, names in self._namespaces()
            for name, value in names.items()
            if not name.startswith("__")
        }

    def _namespaces(self) -> Iterator[tuple[str, dict[str, Any]]]:
        seen: set[int] = set()
        for made in self._made:
            if isinstance(made, type):
                yield f"class {made.__qualname__}", dict(vars(made))
                continue
            if id(made.__globals__) not in seen:
                seen.add(id(made.__globals__))
                yield f"module {made.__module__}", made.__globals__
            code = made.__code__
            where = f"function {made.__qualname__} ({code.co_filename}, line {code.co_firstlineno})"
            yield where, dict(zip(code.co_freevars, map(_content, made.__closure__ or ()), strict=False))
            if made.__defaults__:
                arguments = code.co_varnames[: code.co_argcount]
                yield where, dict(zip(reversed(arguments), reversed(made.__defaults__), strict=False))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _parts(value: Any, depth: int) -> Iterator[Any]:
    """Yield a value and its parts; the same objects come in the same order while nothing is changed."""
    yield value
    if (
        depth == 0
        or isinstance(value, type | FunctionType | ModuleType)
        or type(value).__module__.startswith("penstock")
    ):
        return
    if isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, list | set | deque):
        inside = list(value)
    elif isinstance(value, bytearray):
        inside = [bytes(value)]
    else:
        attributes = getattr(value, "__dict__", None)
        inside = list(attributes.values()) if isinstance(attributes, dict) else []
    yield len(inside)
    for each in inside[:_MOST]:
        yield from _parts(each, depth - 1)


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(
        a is b or (type(a) is type(b) and type(a) in (int, bytes) and a == b) for a, b in zip(one, other, strict=True)
    )


def _plain(part: Any) -> object:
    return part if isinstance(part, int | float | str | bytes | None) else type(part).__name__
