"""Drawn examples of a contract suite: tried, kept where they fail, and repeated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hypothesis import HealthCheck, Phase, given, reproduce_failure, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

_BLOB = re.compile(r"\n?[^\n]*@reproduce_failure\(([^)]*)\)[^\n]*")


def try_examples(
    check: Callable[[st.DataObject], None],
    suite: type,
    test: str,
    *,
    examples: int,
    shrinks: bool = True,
    seed: int | None = None,
    replay: tuple[str, bytes] | None = None,
) -> None:
    """Call `check` with drawn data, `examples` times at most. Raises the error of the first example that fails.

    A failing example is kept in hypothesis' database, and tried first the next time. The error's notes say how to
    repeat it alone, which `replay` does. With `seed` the examples are the same each time, and none is kept.
    """
    phases = set(Phase) - ({Phase.explain} if shrinks else {Phase.shrink, Phase.explain})
    database = settings().database
    if database is not None:
        database = None if seed is not None else _Own(database, f"{suite.__module__}.{suite.__qualname__}.{test}")
    tried = settings(
        max_examples=examples, phases=phases, deadline=None, suppress_health_check=[HealthCheck.too_slow],
        database=database, print_blob=True,
    )(given(st.data())(check))  # fmt: skip
    if seed is not None:
        tried = with_seed(seed)(tried)
    if replay is not None:
        tried = reproduce_failure(*replay)(tried)
    try:
        tried()
    except Exception as error:
        error.__notes__ = [_said(note, f"{suite.__qualname__}.{test}") for note in getattr(error, "__notes__", [])]
        raise


def _said(note: str, test: str) -> str:
    """Return a note of hypothesis that says how to repeat an example in a suite, whose tests cannot be decorated."""
    return _BLOB.sub(rf"\nTo repeat this example alone, set `replay = (\1)` in the class, and run {test}", note)


class _Own(ExampleDatabase):
    """The part of a database that belongs to one test of one suite: the function that hypothesis sees is all theirs."""

    def __init__(self, database: ExampleDatabase, test: str) -> None:
        super().__init__()
        self._database = database
        self._test = test.encode() + b"\0"

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._database.fetch(self._test + key)

    def save(self, key: bytes, value: bytes) -> None:
        self._database.save(self._test + key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        self._database.delete(self._test + key, value)
