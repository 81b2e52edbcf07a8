"""Checks of users' functions: no generators, no `async`, no returned records."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from inspect import getattr_static
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import ProcessingError, TopologyError
from ..record import Record

_METHODS = {
    "init": ("context",),
    "process": ("record",),
    "process_batch": ("records",),
    "transform": ("key", "value"),
    "on_timer": ("key", "at"),
    "close": (),
}
"""The methods of processors and transformers, with the number of their arguments."""
_ASYNC_METHODS = {"request": ("record",), "call": ("request",), "process_result": ("record", "result")}
"""The methods of an AsyncProcessor."""

_CALL_WAITS = "Write `def` without `async`: only `call` may wait"

_sound: WeakKeyDictionary[FunctionType, set[tuple[str, type, bool]]] = WeakKeyDictionary()
"""The functions that `check_methods` has accepted: as which method, bound or not. Each task makes its processors."""

_LOST = (Record, Generator, Coroutine, AsyncGenerator)
_NO_ANSWER = (Awaitable, Generator, AsyncGenerator)


def check_plain(
    where: str, what: str, function: object, *, may_generate: bool = False, instead: str | None = None,
    advice: str | None = None,
) -> None:  # fmt: skip
    """Refuse a function whose body would not run when it is called.

    `may_generate`: its caller iterates over a result. `instead`: the verb for an async function, if there is one.
    `advice`: what to write in place of an async function, if it is something else.

    Looks through `functools.partial`, methods and objects with `__call__`; not through decorators, since what these
    return may be plain. Raises TopologyError.
    """
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    if callable(called) and not inspect.isroutine(called) and not isinstance(called, type):
        called = type(called).__call__
    name = getattr(called, "__qualname__", repr(called))
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise TopologyError(
            f"{where}: {what} is an async function ({name}), and nothing awaits what it returns: its body would never "
            "run. "
            + (
                advice or "Write `def` without `async`; to wait for a coroutine, call asyncio.run(...) in it"
                if instead is None
                else f"Use {instead}(...), which awaits it and goes on with other records meanwhile"
            )
        )
    if inspect.isgeneratorfunction(called) and not may_generate:
        raise TopologyError(
            f"{where}: {what} is a generator ({name}), since it has `yield`, and nothing iterates over what it "
            "returns: its body would never run. A processor calls self.context.forward(record) in place of `yield "
            "record`; another function returns its result"
        )


def check_methods(where: str, processor: object) -> None:
    """Refuse a processor or transformer, or the class of one, with a method whose body would not run."""
    name = (processor if isinstance(processor, type) else type(processor)).__name__
    is_asking = getattr(processor, "answers_later", False) and hasattr(processor, "process_result")
    for method, arguments in (_METHODS | _ASYNC_METHODS if is_asking else _METHODS).items():
        function = getattr(processor, method, None)
        if function is None or (method == "process_batch" and not getattr(processor, "holds_records", False)):
            continue  # of another class it is a method of its own
        is_unbound = isinstance(processor, type) and isinstance(getattr_static(processor, method), FunctionType)
        written, use = getattr(function, "__func__", function), (method, type(function), is_unbound)
        if isinstance(written, FunctionType) and use in _sound.get(written, ()):
            continue
        if method == "call":
            _check_call(where, f"call of {name}", function)
        else:
            check_plain(
                where, f"{method} of {name}", function, advice=_CALL_WAITS if method in _ASYNC_METHODS else None
            )
        check_called_with(where, f"{method} of {name}", function, arguments, ("self",) if is_unbound else ())
        if isinstance(written, FunctionType):
            _sound.setdefault(written, set()).add(use)


def _check_call(where: str, what: str, function: Any) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TopologyError(f"{where}: {what} is a generator, since it has `yield`: return a list in its place")


def check_answer(result: object) -> None:
    """Raise ProcessingError for the result of a call whose body has not run to its end."""
    if isinstance(result, _NO_ANSWER):
        if isinstance(result, Coroutine):
            result.close()  # as below
        raise ProcessingError(
            f"its call returned a {type(result).__name__}, which nothing awaits: write `async def`, and `await` it "
            "there; return a list in place of a generator"
        )


def check_called_with(
    where: str, what: str, function: Any, arguments: Sequence[str], before: Sequence[str] = ()
) -> None:
    """Check that a function can be called with `before` and `arguments`; the message names only the latter.

    A decorated function is checked by its decorator's signature. Raises TopologyError.
    """
    try:
        inspect.signature(function, follow_wrapped=False).bind(*before, *arguments)
    except ValueError:
        return  # Some callables written in C have no signature.
    except TypeError as error:
        name = getattr(function, "__qualname__", function)
        raise TopologyError(
            f"{where}: {what} is called with ({', '.join(arguments)}), and {name} does not take that: {error}"
        ) from error


def bound(processor: Any, context: Any) -> Callable[[Any], Any]:
    """Return the function that a processor's `bind` returns. Raises TopologyError, naming the node, if it is none."""
    process = processor.bind(context)
    if not callable(process):
        raise TopologyError(
            f"node {getattr(context, 'node', None)!r}: bind of {type(processor).__name__} returned {process!r}, "
            "expected the function that gets each record: end bind with `return self.process`, or with another function"
        )
    result: Callable[[Any], Any] = process
    return result


def watched(process: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `process`, or a wrapper that refuses returned records, if its code has a `return VALUE`.

    A function without `return VALUE` costs nothing more.
    """
    code = getattr(process, "__code__", None)
    if isinstance(code, CodeType) and _returns_nothing(code):
        return process

    def run(record: Any) -> None:
        result = process(record)
        if result is not None:
            check_result(result, "process")

    return run


def check_result(result: object, what: str) -> None:
    """Raise ProcessingError for a result that would be lost: a record, a generator or a coroutine."""
    found = result[0] if isinstance(result, list) and result else result
    if not isinstance(found, _LOST):
        return
    if isinstance(result, Coroutine):
        result.close()  # or Python warns that nobody awaited it
    raise ProcessingError(
        f"{what} returned a {type(result).__name__}{f' of {type(found).__name__}' if found is not result else ''}, "
        "which goes nowhere: forward each record with self.context.forward(record); to return a new value, derive the "
        "class from ValueTransformer"
    )


@functools.lru_cache(maxsize=1024)
def _returns_nothing(code: CodeType) -> bool:
    """Return whether each `return` of a function returns None, as far as its instructions show."""
    before = None
    for step in dis.get_instructions(code):
        if step.opname == "RETURN_CONST" and step.argval is not None:
            return False
        if step.opname == "RETURN_VALUE":
            is_none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            if step.is_jump_target or not is_none:
                return False
        before = step
    return True
