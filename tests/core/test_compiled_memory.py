"""Compiled functions keep nothing alive: counts of references and blocks, and cycles that are collected."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Record, Skip, ValueAndTimestamp, key_value_store
from penstock.compiled import records
from penstock.record import OutputBatch
from penstock.support.own_copy import IMMUTABLE
from penstock.task.failures import RECORD_ERRORS
from penstock.task.input_queue import InputQueue
from penstock.task.loop import run_records
from penstock.task.progress import TaskProgress

from .compiled_parts import OfUnhashable, in_python, needs_compiled
from .tasks import Pass, batch, one_node, open_task

pytestmark = needs_compiled


def _raises(*args: Any) -> Any:
    raise ValueError("as asked")


def _interrupts(*args: Any) -> Any:
    raise KeyboardInterrupt


def _nothing(*args: Any) -> None:
    return None


KEY, VALUE, STAMP = "a key" + "!", "a value" + "!", 2**61 + int("7")
RECORD = Record(KEY, VALUE, STAMP)


def _queue() -> Any:
    queue = InputQueue.__new__(InputQueue)
    queue.partition_time = -1
    return queue


def _loops(run: Any, items: list[Any]) -> Callable[[], Any]:
    loop, progress, queue = records.run_records(run_records, chain), TaskProgress(0), _queue()
    return lambda: loop(iter(items), run, progress, queue, 2**62)


def _edge(run: Any, failed: Any, immutable: Any = None, record: Any = RECORD) -> Callable[[], Any]:
    forward = records.forward(_nothing, run, failed, "child", RECORD_ERRORS, immutable)
    return lambda: forward(record)


def _sink(key: Any, value: Any, record: Any = RECORD, slow: Any = _nothing, **columns: Any) -> Callable[[], Any]:
    output = OutputBatch("t", [], [], [], **columns)
    write = records.write(slow, output, key, value)

    def call() -> None:
        try:
            write(record)
        finally:
            for column in (output.keys, output.values, output.timestamps, output.headers, output.partitions):
                if column is not None:
                    column.clear()

    return call


FIT: Any = (frozenset({float}), 0, frozenset({str}), 256, None)


def _put(key: Any, value: Any, fit: Any = FIT, known: bool = True, slow: Any = _nothing) -> Callable[[], Any]:
    put = records.put(slow, {}, {KEY: 1} if known else {}, frozenset({str}), fit)
    return lambda: put(key, value)


def _window(call: str, key: Any, *args: Any, slow: Any = _nothing, kept_after: Any = 1) -> Callable[[], Any]:
    opened = {STAMP: SimpleNamespace(pending={}, clean={KEY: 1})}
    retention = SimpleNamespace(kept_after=kept_after, newest=2**62)
    types, changed = frozenset({str}), []  # type: ignore[var-annotated]
    if call == "fetch":
        function = records.fetch(slow, opened, retention, types)
    else:
        function = records.put_window(slow, opened, changed, retention, types, FIT)

    def called() -> None:
        try:
            function(key, *args)
        finally:
            changed.clear()
            opened[STAMP].pending.clear()

    return called


CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "with_part": lambda: (
        lambda: (RECORD.with_key(1), Record.with_value(RECORD, KEY), RECORD.with_timestamp(timestamp=1))
    ),
    "with_part, wrong": lambda: lambda: RECORD.with_key(1, 2),  # type: ignore[call-arg]
    "bound": lambda: lambda: Record.with_key.__get__(RECORD)(1),
    "attributes": lambda: lambda: (Record.with_key.__doc__, Record.with_key.__name__, repr(Record.with_key)),
    "no attribute": lambda: lambda: Record.with_key.nothing,  # type: ignore[attr-defined]
    "reduce": lambda: lambda: Record.with_key.__reduce__(),
    "weak": lambda: lambda: weakref.ref(records.noting(_nothing, _nothing, TaskProgress(0))),
    "texts": lambda: lambda: records.texts([b"text" * 9, None, b"text", bytearray(b"text" * 9)]),
    "texts, wrong": lambda: lambda: records.texts([b"text" * 9, None, b"\xff"]),
    "texts, nothing": lambda: lambda: records.texts([b"text" * 9, 1]),
    "rows": lambda: lambda: records.rows([KEY, KEY], (VALUE, VALUE), [1, STAMP], None, Record),
    "rows, headers": lambda: lambda: records.rows([KEY, KEY], iter([VALUE]), [1, STAMP], [((KEY, b"1"),)], None),
    "rows, wrong": lambda: lambda: records.rows([KEY], 1, [1], None, None),
    "loop": lambda: _loops(_nothing, [RECORD, RECORD]),
    "loop, raises": lambda: _loops(_raises, [RECORD, RECORD]),
    "loop, odd": lambda: _loops(_nothing, [RECORD, RECORD.with_timestamp(2**65), RECORD.with_timestamp(1.5), RECORD]),  # type: ignore[arg-type]
    "loop, none": lambda: _loops(_nothing, [RECORD, None]),
    "loop, no slots": lambda: lambda: records.run_records(run_records, chain)(iter([]), _nothing, KEY, KEY, 1),
    "edge": lambda: _edge(_nothing, _nothing),
    "edge, failed": lambda: _edge(_raises, _nothing),
    "edge, failed twice": lambda: _edge(_raises, _raises),
    "edge, interrupted": lambda: _edge(_interrupts, _nothing),
    "edge, values": lambda: _edge(_nothing, _nothing, IMMUTABLE, (KEY, [VALUE], 1, ())),
    "edge, type": lambda: _edge(_nothing, _nothing, IMMUTABLE, (KEY, OfUnhashable(), 1, ())),
    "transformer": lambda: lambda: records.transformer(_nothing, lambda key, value: key, _nothing, Record)(RECORD),
    "transformer, raises": lambda: lambda: records.transformer(_nothing, _raises, _nothing, Record)(RECORD),
    "transformer, below": lambda: (
        lambda: records.transformer(_nothing, lambda key, value: key, _raises, Record)(RECORD)
    ),
    "noting": lambda: lambda: records.noting(_nothing, _nothing, TaskProgress(0))(RECORD),
    "noting, raises": lambda: lambda: records.noting(_nothing, _raises, TaskProgress(0))(RECORD),
    "write": lambda: _sink(str.encode, str.encode),
    "write, columns": lambda: _sink(str.encode, str.encode, headers=[], partitions=[]),
    "write, slow": lambda: _sink(str.encode, str.encode, RECORD.with_timestamp(-1)),
    "write, value raises": lambda: _sink(str.encode, _raises),
    "write, key raises": lambda: _sink(_raises, str.encode),
    "write, both raise": lambda: _sink(_raises, str.encode, slow=_raises),
    "write, interrupted": lambda: _sink(str.encode, _interrupts),
    "put": lambda: _put(KEY, VALUE),
    "put, another": lambda: _put(KEY + "?", VALUE),
    "put, raises": lambda: _put(KEY, 1, slow=_raises),
    "put, type": lambda: _put(KEY, OfUnhashable()),
    "put, stamped": lambda: _put(KEY, ValueAndTimestamp(VALUE, STAMP), (*FIT[:-1], ValueAndTimestamp)),
    "put, stamped wrong": lambda: _put(KEY, ValueAndTimestamp(VALUE, -1), (*FIT[:-1], ValueAndTimestamp)),
    "fetch": lambda: _window("fetch", KEY, STAMP),
    "fetch, another": lambda: _window("fetch", KEY + "?", STAMP),
    "fetch, raises": lambda: _window("fetch", KEY, 7, slow=_raises),
    "fetch, no number": lambda: _window("fetch", KEY, STAMP, kept_after=None),
    "put_window": lambda: _window("put", KEY, VALUE, STAMP),
    "put_window, another": lambda: _window("put", KEY + "?", VALUE, STAMP),
    "put_window, no number": lambda: _window("put", KEY, VALUE, STAMP, kept_after="1"),
    "put_window, raises": lambda: _window("put", KEY, 1, STAMP, slow=_raises),
    "made wrongly": lambda: lambda: records.put(_nothing, {}, {}, frozenset(), (frozenset(), 0, KEY, 1, None)),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_left_after_calls(name: str) -> None:
    call = CALLS[name]()

    def rounds(number: int) -> None:
        for _ in range(number):
            try:
                call()
            except (Exception, KeyboardInterrupt):
                pass

    watched = [KEY, VALUE, STAMP, RECORD, None, (), Record, ValueAndTimestamp, _nothing, _raises, IMMUTABLE, str.encode]
    rounds(300)
    gc.collect()
    blocks, counts = sys.getallocatedblocks(), [sys.getrefcount(each) for each in watched]
    rounds(2_000)
    gc.collect()
    now = [sys.getrefcount(each) for each in watched]
    changed = {str(each): after - before for each, before, after in zip(watched, counts, now, strict=True)
               if abs(after - before) > 50}  # fmt: skip
    assert not changed and sys.getallocatedblocks() - blocks < 500


@pytest.mark.parametrize("name", CALLS)
def test_calls_make_no_cycles(name: str) -> None:
    """The collector is for the few cycles of a program, not for one with each record that fails."""
    call = CALLS[name]()
    call_quietly(call)
    gc.collect()
    for _ in range(200):
        call_quietly(call)
    assert gc.collect() < 200


def call_quietly(call: Callable[[], Any]) -> None:
    try:
        call()
    except (Exception, KeyboardInterrupt):
        pass


@pytest.mark.parametrize("kind", ["run", "fails", "open"])
def test_a_task_is_collected(kind: str) -> None:
    def run(context: Any, record: Record) -> None:
        context.get_store("s").put("k", 1)
        context.get_store("s").get("k")
        context.forward(record)
        if kind == "fails":
            raise ValueError("as asked")

    texts: Any = {"key_serde": "str", "value_serde": "int"}
    stores = [key_value_store("s", **texts)]
    topology = one_node(lambda context, record: None, sink=False)
    topology.add_processor("q", _calling(run), "in", stores=stores).add_processor("r", Pass, "q").add_sink(
        "out", "out", "r"
    )
    others = _functions()
    task = open_task(topology, processing_handler=lambda failure: Skip())
    if kind != "open":
        task.feed(batch("in", *[("k", "v", number) for number in range(20)]))
        assert task.process(100) == 20
    functions = [each for each in _functions() if not any(each is other for other in others)]
    references = [weakref.ref(each) for each in (task, *functions)]
    assert len(references) > 3
    del task, functions
    gc.collect()
    assert [each() for each in references if each() is not None] == []


def _calling(run: Any) -> Any:
    from .tasks import Calling

    return lambda: Calling(run)


def _functions() -> list[Any]:
    return [each for each in gc.get_objects() if type(each).__module__ == records.__name__]


def test_failures_leave_as_little_as_without_compiled_parts() -> None:
    def left() -> int:
        def run(context: Any, record: Record) -> None:
            raise ValueError("as asked")

        task = open_task(one_node(run), processing_handler=lambda failure: Skip())
        task.feed(batch("in", *[("k", "v", number) for number in range(500)]))
        gc.collect()
        assert task.process(1000) == 500
        return gc.collect()

    fast = left()
    with in_python():
        assert fast <= left() + 10


def test_functions_that_are_called_while_their_cycle_is_taken_apart() -> None:
    """A collector that clears the function first leaves one that raises, and no dangling pointer."""
    said: list[Any] = []

    class CallsAtTheEnd:
        def __init__(self) -> None:
            self.forward = records.forward(_nothing, self.run, _nothing, "c", RECORD_ERRORS, None)
            self.note = records.noting(_nothing, self.run, TaskProgress(0))
            self.get = records.get(lambda key: (self, key), {"a": self}, {}, frozenset({str}), None)

        def run(self, record: Any) -> None:
            said.append(record)

        def __del__(self) -> None:
            self.forward(RECORD)
            self.note(RECORD)
            said.append(self.get("a") is self)

    for _ in range(3):
        CallsAtTheEnd()
    gc.collect()
    assert said == [RECORD, RECORD, True] * 3
