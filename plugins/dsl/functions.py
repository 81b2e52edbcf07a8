"""The functions that users pass to verbs: how they are called, and the error where one cannot be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from penstock.errors import TopologyError

Function = Callable[..., Any]


def check_function(verb: str, function: Any, *arguments: str, what: str = "function") -> None:
    """Refuse what cannot be called with `arguments`, which are named in the message. Raises TopologyError."""
    if not callable(function):
        raise TopologyError(f"{verb}: expected a {what} of ({', '.join(arguments)}), found {function!r}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # Some callables written in C have no signature.
    except TypeError:
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TopologyError(
            f"{verb}: its {what} is called with ({', '.join(arguments)}), and {_name(function)}{signature} does not "
            f"take that: {error}{_hint(signature, arguments)}"
        ) from error


def check_mapper(verb: str, function: Any, *, with_key: bool, what: str = "function") -> None:
    """Refuse what cannot be called with the value, or with key and value. Raises TopologyError."""
    check_function(verb, function, *(("key", "value") if with_key else ("value",)), what=what)


def keyed(function: Function, *, with_key: bool) -> Callable[[Any, Any], Any]:
    """Return a function of key and value."""
    return function if with_key else lambda key, value: function(value)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


def _hint(signature: inspect.Signature, arguments: tuple[str, ...]) -> str:
    needed = [each for each in signature.parameters.values() if each.default is each.empty]
    if arguments == ("value",) and len(needed) == 2:
        return "; with_key=True gives it the key first"
    if arguments == ("key", "value") and len(needed) == 1:
        return "; leave out with_key=True if it takes only the value"
    return ""
