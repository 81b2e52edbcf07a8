"""HeldCalls: calls of a program's async verbs that the test answers, in any order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from penstock.world.calls import CallLimit, Calls, CallTimeout, process_calls

_SECONDS = 86_400.0
"""How long a coroutine may take that a test runs: its time-out is the test's to say."""


class HeldCall:
    """A call that has no result yet; `arguments` are those of the function.

    Each method gives it one, and runs what follows from it.
    """

    def __init__(
        self, function: Callable[[], Any], is_async: bool, future: Future[Any], then: Callable[[], object]
    ) -> None:
        self.arguments: tuple[Any, ...] = function.args if isinstance(function, partial) else ()
        self._function = function
        self._is_async = is_async
        self._future = future
        self._then = then

    def __repr__(self) -> str:
        return f"HeldCall{self.arguments!r}"

    def answer(self, result: Any) -> None:
        """Return this result."""
        self._future.set_result(result)
        self._then()

    def fail(self, error: BaseException) -> None:
        """Raise this error; a TimeoutError without arguments is what a call gets that takes too long."""
        self._future.set_exception(CallTimeout() if type(error) is TimeoutError and not error.args else error)
        self._then()

    def run(self) -> None:
        """Call the function itself."""
        try:
            if self._is_async:
                result = process_calls().submit(self._function, _SECONDS, is_async=True).result()
            else:
                result = self._function()
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)
        self._then()


class HeldCalls(Calls):
    """Keeps each call until the test answers it. `then` is called after each answer."""

    are_held = True

    def __init__(self) -> None:
        self._calls: list[tuple[Future[Any], HeldCall]] = []
        self.then: Callable[[], object] = lambda: None

    def submit(
        self, function: Callable[[], Any], seconds: float, *, is_async: bool, limit: CallLimit | None = None
    ) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.append((future, HeldCall(function, is_async, future, lambda: self.then())))
        return future

    def open(self) -> list[HeldCall]:
        """Return the calls without a result, in the order in which they were made."""
        self._calls = [each for each in self._calls if not each[0].done()]
        return [call for _, call in self._calls]
