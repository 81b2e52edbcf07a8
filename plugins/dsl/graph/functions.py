"""The functions that users pass to verbs: how they are called, and the error where one cannot be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock import StoreBuilder, TopologyError
from penstock.program.checks import nearest
from penstock.support.callbacks import check_plain

Function = Callable[..., Any]

_MAY_WAIT = ("map_values", "flat_map_values", "filter", "foreach")
"""Verbs that have a form with a function that may wait: VERB_async."""
_ELSEWHERE = {
    "retention": ", it is for windows; entries of other stores expire with ttl=",
    "ttl": ", windows expire with retention=",
    "ttl_clock": ", windows expire with retention=",
}


def check_function(
    verb: str,
    function: Any,
    *arguments: str,
    what: str = "function",
    may_generate: bool = False,
    may_wait: bool = False,
) -> None:
    """Refuse a function that cannot be called with `arguments`, named in the message, or whose body would not run.

    `may_generate`: a generator will do; `may_wait`: a coroutine function, too. Raises TopologyError.
    """
    if not callable(function):
        taken = ", ".join(arguments)
        is_field = isinstance(function, str) and "value" in arguments
        hint = f"; for a field write lambda {taken}: value[{function!r}]" if is_field else ""
        raise TopologyError(f"{verb}: expected a {what} of ({taken}), found {function!r}{hint}")
    if not may_wait:
        instead = f"{verb}_async" if verb in _MAY_WAIT else None
        check_plain(verb, f"its {what}", function, may_generate=may_generate, instead=instead)
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


def check_mapper(
    verb: str, function: Any, *, with_key: bool, what: str = "function", may_generate: bool = False
) -> dict[str, Any]:
    """Return a function of the value, or of key and value, as options. Raises TopologyError if it is none."""
    arguments = ("key", "value") if with_key else ("value",)
    check_function(verb, function, *arguments, what=what, may_generate=may_generate)
    return {"function": function, "with_key": with_key}


def checked_stores(stores: Sequence[str | StoreBuilder]) -> tuple[str | StoreBuilder, ...]:
    """Return the stores that a processor uses. Raises TopologyError for one that is not in a list."""
    if isinstance(stores, (str, StoreBuilder)):
        raise TopologyError(f"stores is a list of stores or names of stores; write stores=[{stores!r}]")
    return tuple(stores)


def check_same_program(verb: str, one: Any, *others: Any) -> None:
    """Refuse streams and tables of different builders: `recorder` is that of their program. Raises TopologyError."""
    for other in others:
        if other.recorder is not one.recorder:
            raise TopologyError(
                f"{verb}: the {type(other).__name__} belongs to another StreamsBuilder; make both with one builder, or "
                "write to a topic with to(TOPIC) and read it in the other program"
            )


def check_options(verb: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keyword arguments that a verb does not have. Raises TopologyError with the nearest ones."""
    names = list(known)
    for option in sorted(set(options) - set(names)):
        hint = _ELSEWHERE.get(option) or nearest(option, names)
        raise TopologyError(f"{verb}: there is no option {option!r} here{hint}")


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


def check_initializer(verb: str, initializer: Any, *, what: str = "aggregate") -> None:
    """Refuse a first aggregate, or state, in place of the function that makes it. Raises TopologyError."""
    if not callable(initializer):
        made = type(initializer).__name__ if initializer in ([], {}, set()) else f"lambda: {initializer!r}"
        raise TopologyError(
            f"{verb}: its initializer is a function without arguments that makes the first {what} of each key, "
            f"found {initializer!r}; write {made}"
        )
    check_function(verb, initializer, what="initializer")


def check_aggregator(verb: str, aggregator: Any, *, with_key: bool, what: str = "aggregator") -> None:
    """Refuse a function that cannot be called with the aggregate and a value, `with_key` with the key before them."""
    check_function(verb, aggregator, *(("key",) if with_key else ()), "aggregate", "value", what=what)
