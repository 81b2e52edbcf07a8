"""Rules for every plugin: its hooks are marked and return mappings, and its names begin with its package's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ..errors import PluginError


def wrong_hooks(plugin: object, mark: str, hooks: Sequence[str]) -> Iterator[str]:
    """Yield the faults of a plugin's functions that are hooks, or look like one.

    `mark` is the attribute that `@hookimpl` sets.
    """
    found = False
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        if not inspect.isroutine(function):
            continue
        marked = getattr(function, mark, None) is not None
        close = [name] if name in hooks else get_close_matches(name, hooks, 1, 0.85)
        if marked and name not in hooks:
            yield f"there is no hook {name}{f'; did you mean {close[0]}?' if close else ''} (see penstock.hooks)"
        elif not marked and close:
            spelt = "" if close == [name] else f", if it is meant to be {close[0]},"
            yield f"its function {name}{spelt} is not marked as a hook: write @hookimpl above it (penstock.hooks)"
        found = found or marked or bool(close)
    if not found:
        yield (
            f"{getattr(plugin, '__name__', plugin)!r} has no hook: the entry point has to name the module whose "
            f"functions are marked with @hookimpl ({', '.join(hooks[:3])}, ...)"
        )


def checked_components(hook: str, function: Any, package: str) -> tuple[dict[str, Any], dict[object, str]]:
    """Call a hook; return the components that it gives, and why it gives others in vain.

    Raises PluginError unless it returns a mapping from names to things.
    """
    example = f"{{'{prefixes_of(package)[0]}.NAME': 'package.module:attribute'}}"
    given = function()
    if not isinstance(given, Mapping):
        raise PluginError(f"{hook} returned {type(given).__name__}, expected a mapping like {example}")
    right: dict[str, Any] = {}
    wrong: dict[object, str] = {}
    for name, target in given.items():
        if not isinstance(name, str) or not name:
            wrong[name] = f"{hook} returned the name {name!r}, expected text, in a mapping like {example}"
        elif target is None or (isinstance(target, str) and not all(target.partition(":"))):
            wrong[name] = (
                f"{hook} returned {target!r} for {name!r}, expected the thing itself or where it is, as in {example}"
            )
        else:
            right[name] = target
    return right, wrong


def wants(function: Any) -> str:
    """Return why a function cannot be called without arguments; "" if it can."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        return str(error)
    return ""


def prefixes_of(package: str) -> list[str]:
    """Return the prefixes that names of a package may have: its name, with or without "penstock", or first parts of it.

    >>> prefixes_of("penstock-acme"), prefixes_of("Acme_Tools")
    (['acme', 'penstock-acme'], ['acme-tools', 'acme'])
    """
    whole = normal_name(package)
    parts = [part for part in whole.split("-") if part != "penstock"] or [whole]
    shorter = ("-".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return list(dict.fromkeys(["-".join(parts), whole, *shorter]))


def has_prefix(kind: str, name: str, prefixes: Sequence[str]) -> bool:
    """Return whether a component's name is one of the prefixes, or begins with one and a dot (a command: or a dash)."""
    first, dot, rest = name.partition(".")
    if kind == "command" and not dot:
        return any(f"{normal_name(name)}-".startswith(f"{prefix}-") for prefix in prefixes)
    return normal_name(first) in prefixes and bool(rest) == bool(dot)


def normal_name(package: str) -> str:
    """Return the normal form of a distribution's name: in lower case, with dashes."""
    return re.sub(r"[-_.]+", "-", package).lower()
