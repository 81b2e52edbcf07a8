"""Each compiled function does what the Python function does that it stands for, whatever it is called with."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import sys
import weakref
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Record
from penstock.compiled import records
from penstock.record import OutputBatch
from penstock.serde import StrSerde
from penstock.support.own_copy import IMMUTABLE
from penstock.task import input_queue, loop
from penstock.task.failures import RECORD_ERRORS
from penstock.task.progress import TaskProgress

from .compiled_parts import (
    TIMES,
    AnyIndex,
    Backwards,
    Data,
    LongRecord,
    OfExitsHash,
    anything,
    in_python,
    needs_compiled,
    outcome,
    same,
)

pytestmark = needs_compiled

HEADERS: list[Any] = [(), (("h", b"1"),), [], None, "", {}, ("h",), Data(b"")]
times = st.integers(0, len(TIMES) - 1).map(TIMES.__getitem__)
headers = st.integers(0, len(HEADERS) - 1).map(HEADERS.__getitem__)


def _tuple_of(kind: Any, parts: tuple[Any, ...]) -> Any:
    return kind(parts) if kind is list else tuple.__new__(kind, parts)


parts = st.tuples(anything, anything, times, headers)
tuples = st.builds(_tuple_of, st.sampled_from([Record, Record, tuple, tuple, LongRecord, Backwards, list]), parts)
others = st.builds(_tuple_of, st.sampled_from([LongRecord, tuple]), st.lists(anything, max_size=6).map(tuple))
forwarded = st.one_of(tuples, others, anything)


# ------------------------------------------------------------------ records

PARTS = ("key", "value", "timestamp")


@pytest.mark.parametrize("part", PARTS)
@given(forwarded, st.lists(anything, max_size=3), st.dictionaries(st.sampled_from([*PARTS, "x"]), anything, max_size=2))
def test_a_record_with_another_part(part: str, record: Any, args: list[Any], options: dict[str, Any]) -> None:
    method = vars(Record)[f"with_{part}"]
    assert method.__wrapped__ is not method
    expected = outcome(method.__wrapped__, record, *args, **options)
    found = outcome(method, record, *args, **options)
    assert same(found, expected)
    if issubclass(type(record), Record):
        assert same(outcome(partial(getattr(record, f"with_{part}"), *args), **options), expected)


@pytest.mark.parametrize("part", PARTS)
def test_its_methods_are_methods(part: str) -> None:
    method: Any = vars(Record)[f"with_{part}"]
    name, record = f"with_{part}", Record("k", "v", 1)
    assert method is getattr(Record, name) and getattr(LongRecord, name) is method
    assert method.__doc__ and method.__doc__.startswith("Return this record with another") and method.__name__ == name
    assert method.__qualname__ == f"Record.{name}" and method.__module__ == "penstock.record"
    assert str(inspect.signature(method)) == f"(self, {part}: '{'int' if part == 'timestamp' else 'Any'}') -> 'Record'"
    assert list(inspect.signature(getattr(record, name)).parameters) == [part]
    assert get_type_hints(method)["return"] is Record
    assert method.__doc__ in pydoc.render_doc(Record) and method.__doc__ in pydoc.render_doc(method)
    assert repr(method).startswith(f"<function Record.{name} at ")
    assert bool(inspect.isroutine(method)) and inspect.getsource(method) == inspect.getsource(method.__wrapped__)
    for copied in (copy.copy(method), copy.deepcopy(method), pickle.loads(pickle.dumps(method))):
        assert copied is method
    bound = pickle.loads(pickle.dumps(getattr(record, name)))
    assert bound(7) == getattr(record, name)(7) and copy.deepcopy(record) == record
    assert bool(weakref.ref(method)() is method)
    assert method.__get__(None, Record) is method and method.__get__(record)(7) == getattr(record, name)(7)
    subclass = LongRecord("k", "v", 1)
    assert type(getattr(subclass, name)(2)) is Record  # as in Python
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = method.nothing


def test_what_is_set_on_a_compiled_function_is_set_on_the_python_function() -> None:
    def slow(record: Any) -> None:
        """Nothing."""

    function = records.noting(slow, slow, TaskProgress(0))
    function.__qualname__ = "store 's': put"
    function.note = 1
    assert slow.__qualname__ == function.__qualname__ == "store 's': put" and vars(slow) == {"note": 1}
    del function.note
    assert not hasattr(function, "note") and not hasattr(slow, "note")
    with pytest.raises(TypeError, match=r"store 's': put\(\) missing 1 required positional argument: 'record'"):
        function()


# ------------------------------------------------------------------ columns

DATA = [
    b"",
    b"a",
    "ä".encode(),
    b"\xff",
    b"\xed\xa0\x80",
    None,
    Data(b"a"),
    bytearray(b"b"),
    "text",
    1,
    memoryview(b"a"),
]
column = st.lists(st.integers(0, len(DATA) - 1).map(DATA.__getitem__), max_size=4)


@given(st.one_of(column, column.map(tuple)))
def test_texts(data: Any) -> None:
    serde = StrSerde()
    found = outcome(serde.deserialize_column, data)
    with in_python():
        assert same(found, outcome(serde.deserialize_column, data))


def test_a_column_that_changes_while_it_is_decoded() -> None:
    class Clears(bytes):
        def decode(self, *args: Any) -> str:
            del data[:]
            return "text"

    data = [Clears(b"a"), *([b"b"] * 9)]
    with pytest.raises(RuntimeError, match="the column changed while it was decoded"):
        records.texts(data)


@given(
    st.lists(anything, max_size=3),
    st.lists(anything, max_size=3).map(tuple),
    st.lists(times, max_size=3),
    st.one_of(st.none(), st.lists(headers, max_size=3)),
    st.sampled_from([None, Record, LongRecord]),
)
def test_rows(keys: Any, values: Any, stamps: Any, headers: Any, kind: Any) -> None:
    found = input_queue._rows(keys, values, stamps, headers, kind)
    assert same(found, input_queue.rows(keys, values, stamps, headers, kind))
    assert input_queue._rows is not input_queue.rows
    iterables = iter(keys), iter(values), iter(stamps), None if headers is None else iter(headers), kind
    assert same(found, input_queue._rows(*iterables))


# ------------------------------------------------------------------ the loop


class Queue:
    __slots__ = ("partition_time",)

    def __init__(self, partition_time: Any) -> None:
        self.partition_time = partition_time


class Stops:
    """An iterator that raises StopIteration itself."""

    def __init__(self, items: list[Any]) -> None:
        self.items = iter(items)

    def __iter__(self) -> Stops:
        return self

    def __next__(self) -> Any:
        return next(self.items)


EFFECTS = ("nothing", "raise", "exit", "interrupt", "attention", "stream time", "take")


@given(
    st.lists(st.tuples(forwarded, st.sampled_from([*["nothing"] * 6, *EFFECTS])), max_size=6),
    st.sampled_from([-1, 0, 5, 2**63 - 1, 2**63, 1.5]),
    st.sampled_from([-1, 5, 2**63, 0.5]),
    st.sampled_from([0, 1, 6, 1 << 62, 2**63, 7.5]),
    st.booleans(),
    st.sampled_from([iter, Stops]),
)
def test_the_loop_over_records(
    items: list[tuple[Any, str]], stream_time: Any, partition_time: Any, due: Any, attention: bool, kind: Any
) -> None:
    def tried(run_records: Callable[..., Any]) -> Any:
        progress, queue = TaskProgress(0), Queue(partition_time)
        seen: list[Any] = []
        progress.stream_time, progress.needs_attention = stream_time, attention
        remaining = kind([record for record, _ in items])

        def run(record: Any) -> Any:
            effect = items[len(seen)][1]
            seen.append((record, progress.stream_time))
            if effect == "raise":
                raise ValueError("as asked")
            if effect == "exit":
                raise SystemExit(3)
            if effect == "interrupt":
                raise KeyboardInterrupt
            if effect == "attention":
                progress.needs_attention = True
            if effect == "stream time":
                progress.stream_time += 1  # nobody does, and the loop goes on from its own
            if effect == "take":
                next(remaining, None)
                seen.append(None)
            return record

        found = outcome(run_records, remaining, run, progress, queue, due)
        return found, seen, progress.stream_time, progress.needs_attention, queue.partition_time, len(list(remaining))

    assert same(tried(loop._run_records), tried(loop.run_records))


def test_the_loop_takes_what_the_python_loop_takes() -> None:
    run_records = loop._run_records
    assert run_records is not loop.run_records
    tried: list[list[Any]] = [[], [1], [iter([]), print, TaskProgress(0), Queue(1)], [iter([])] * 6]
    for args in tried:
        assert outcome(run_records, *args) == outcome(loop.run_records, *args)
    options: dict[str, Any] = {"run": print, "progress": TaskProgress(0), "queue": Queue(1), "stream_due": 1}
    assert run_records(iter([]), **options) is None and run_records(remaining=iter([]), **options) is None
    assert outcome(run_records, 5, print, TaskProgress(0), Queue(1), 1) == (
        "raised",
        TypeError,
        "'int' object is not iterable",
    )


# ------------------------------------------------------------------ edges

ERRORS = [ValueError("v"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), MemoryError(), RecursionError("r"),
          StopIteration(1), Exception()]  # fmt: skip


def _context_of(error: BaseException | None) -> list[str]:
    seen = []
    while error is not None:
        seen.append(f"{type(error).__name__} {error} {error.__cause__!r} {error.__suppress_context__}")
        error = error.__context__
    return seen


def _forwards(fast: bool, immutable: Any, run: Any, failed: Any, sent: list[Any]) -> Callable[..., Any]:
    """Return an edge as core/task/compiling.py makes it."""

    def forward(record: Any, to: str | None = None) -> None:
        sent.append(to)
        try:
            if immutable is None or (type(record[1]) in immutable and type(record[0]) in immutable):
                run(record)
            else:
                run(("copy", record))
        except RECORD_ERRORS as error:
            failed("child", record, error)

    return records.forward(forward, run, failed, "child", RECORD_ERRORS, immutable) if fast else forward


@given(
    forwarded,
    st.one_of(st.none(), st.sampled_from(ERRORS)),
    st.sampled_from(["return", "raise", "raise from", "same", "bare", "exit"]),
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from([None, "child", "other"]), max_size=2),
    st.sampled_from(["", "in except", "in a generator"]),
)
def test_an_edge(
    record: Any, error: Any, answer: str, is_checked: bool, has_context: bool, to: list[Any], where: str
) -> None:
    def tried(fast: bool) -> Any:
        sent: list[Any] = []
        seen: list[Any] = []
        if error is not None:
            error.__traceback__ = error.__context__ = error.__cause__ = None

        def run(record: Any) -> Any:
            seen.append((record, repr(sys.exc_info()[1])))
            if error is None:
                return record
            if not has_context:
                raise error
            try:
                raise LookupError("before")
            except LookupError:
                raise error  # noqa: B904

        def failed(child: str, record: Any, caught: BaseException) -> Any:
            last = caught.__traceback__
            while last is not None and last.tb_next is not None:
                last = last.tb_next
            seen.append((child, record, type(caught), _context_of(caught), sys.exc_info()[1] is caught))
            seen.append(None if last is None else last.tb_frame.f_code.co_name)
            if answer == "return":
                return record
            if answer == "same":
                raise caught
            if answer == "bare":
                raise
            if answer == "raise from":
                raise ArithmeticError("of the handler") from caught
            if answer == "exit":
                raise SystemExit("of the handler")
            raise ArithmeticError("of the handler")

        forward = _forwards(fast, IMMUTABLE if is_checked else None, run, failed, sent)

        def called() -> Any:
            try:
                return "returned", forward(record, *to)
            except BaseException as raised:
                return "raised", raised, _context_of(raised)

        def generated() -> Any:
            yield called()
            yield repr(sys.exc_info()[1])

        if not where:
            result = called()
        elif where == "in except":
            try:
                raise KeyError("outer")
            except KeyError as outer:
                result = (*called(), sys.exc_info()[1] is outer)
        else:
            generator = generated()
            try:
                raise KeyError("outer")
            except KeyError:
                result = next(generator)
            result = (*result, next(generator))
        count = len(sent) + (forward.count if fast else 0)  # type: ignore[attr-defined]
        return _shown(result), seen, count, repr(sys.exc_info()[1])

    assert same(tried(True), tried(False))


def _shown(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a result whose error is compared by its type and text, since each call may raise a new one."""
    return tuple((type(each), str(each)) if isinstance(each, BaseException) else each for each in result)


@pytest.mark.parametrize("kind", [OfExitsHash, AnyIndex])
def test_a_type_that_cannot_be_looked_up(kind: Any) -> None:
    found: list[Any] = []
    forward = _forwards(True, IMMUTABLE, found.append, lambda *args: found.append(args[2]), [])
    assert outcome(forward, ("k", kind(), 1, ())) == ("returned", None)
    assert len(found) == 1


# ------------------------------------------------------------------ nodes


@given(forwarded, st.sampled_from([None, *ERRORS]), st.sampled_from([None, *ERRORS]), st.lists(anything, max_size=1))
def test_a_transformer(record: Any, first: Any, second: Any, extra: list[Any]) -> None:
    def tried(fast: bool) -> Any:
        seen: list[Any] = []

        def transform(key: Any, value: Any) -> Any:
            seen.append((key, value))
            if first is not None:
                raise first
            return "changed"

        def forward(record: Any) -> Any:
            seen.append(record)
            if second is not None:
                raise second
            return "lost"

        def run(record: Record) -> None:
            forward(tuple.__new__(Record, (record[0], transform(record[0], record[1]), record[2], record[3])))

        function = records.transformer(run, transform, forward, Record) if fast else run
        return outcome(function, record, *extra), seen

    assert same(tried(True), tried(False))


@given(forwarded, st.sampled_from([None, *ERRORS]), st.booleans())
def test_a_node_that_notes_its_record(record: Any, error: Any, inner: bool) -> None:
    def tried(fast: bool) -> Any:
        progress = TaskProgress(0)
        seen: list[Any] = []

        def process(record: Any) -> Any:
            seen.append(progress.record)
            if inner and len(seen) == 1:
                seen.append(outcome(function, Record("inner", 1, 1)))
                seen.append(progress.record)
            if error is not None:
                raise error
            return record

        def run(record: Any) -> None:
            before, progress.record = progress.record, record
            try:
                process(record)
            finally:
                progress.record = before

        function = records.noting(run, process, progress) if fast else run
        return outcome(function, record), seen, progress.record, outcome(function), outcome(function, 1, 2)

    assert same(tried(True), tried(False))


# ------------------------------------------------------------------ arguments of the makers


@pytest.mark.parametrize(
    "make",
    [
        lambda: records.with_part(print, int, 0),
        lambda: records.with_part(print, Record, 4),
        lambda: records.with_part(1, Record, 0),
        lambda: records.with_part(print, Record),
        lambda: records.rows([], [], []),
        lambda: records.rows(1, [], [], None, None),
        lambda: records.texts(1),
        lambda: records.run_records(1, chain),
        lambda: records.forward(1, print, print, "c", (), None),
        lambda: records.forward(print, print, print, "c", [], None),
        lambda: records.transformer(print, print, print, 1),
        lambda: records.noting(print, print, object()),
        lambda: records.write(print, object(), print, print),
        lambda: records.write(print, OutputBatch("t", (), [], []), print, print),  # type: ignore[arg-type]
        lambda: records.get(print, [], {}, frozenset(), None),
        lambda: records.put(print, {}, {}, frozenset(), ()),
        lambda: records.put(print, {}, {}, frozenset(), (frozenset(), 0, frozenset(), "long", None)),
        lambda: records.put(print, {}, {}, frozenset(), (frozenset(), 0, frozenset(), 256, None, 1)),
        lambda: records.fetch(print, {}, None),
        lambda: records.put_window(print, {}, [], None, frozenset(), ()),
        lambda: type(records.noting(print, print, TaskProgress(0)))(),
    ],
)
def test_wrong_parts_raise(make: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        make()
