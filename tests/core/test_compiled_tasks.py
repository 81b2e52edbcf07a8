"""Tasks with compiled parts do what tasks without them do: outputs, counts, clocks, handlers and logs."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    STREAM_TIME,
    DeadLetter,
    Fail,
    Failure,
    Processor,
    Record,
    Serde,
    Skip,
    Topology,
    ValueTransformer,
    key_value_store,
)
from penstock.compiled import records
from penstock.record import OutputBatch
from penstock.serde import BytesSerde, IntSerde, StrSerde
from penstock.task.task import Task

from ..rotation import examples
from .compiled_parts import anything, in_python, needs_compiled, outcome, same
from .tasks import Pass, batch, one_node, open_task

pytestmark = needs_compiled


class Acts(Processor):
    """Does what a record's value says. `seen`: what it has found."""

    seen: list[Any]

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("4ms", self.tick, STREAM_TIME)
        self.store = context.get_store("s")

    def tick(self, timestamp: int) -> None:
        self.seen.append(("tick", timestamp, self.context.record_metadata))
        self.context.forward(Record("tick", "tick", timestamp))

    def process(self, record: Record) -> None:
        metadata = self.context.record_metadata
        self.seen.append((metadata and metadata.offset, self.context.current_stream_time_ms(), record))
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)
        value = record.value
        forward = self.context.forward
        if not isinstance(value, str):
            forward(record)
        elif value.startswith("raise "):
            raise getattr(__import__("builtins"), value[6:])(f"as asked at {record.timestamp}")
        elif value == "commit":
            self.context.commit()
            forward(record)
        elif value == "twice":
            forward(record)
            forward(record.with_value("again").with_timestamp(record.timestamp + 7))
        elif value == "to":
            forward(record, to="v")
        elif value == "to keyword":
            forward(record=record, to=None)
        elif value == "nobody":
            forward(record, to="nobody")
        elif value == "wrong call":
            forward(record, None, 1)  # type: ignore[call-arg]
        elif value == "a list":
            forward(list(record))  # type: ignore[arg-type]
        elif value == "nothing":
            forward(None)  # type: ignore[arg-type]
        elif value == "dict":
            shared = {"a": [1]}
            forward(record.with_value(shared))
            shared["a"].append(2)
        elif value == "bad time":
            forward(record.with_timestamp(-3))
        elif value == "headers":
            forward(record.with_headers((("h", b"1"),)))
        elif value == "in except":
            try:
                raise LookupError("handled")
            except LookupError:
                forward(record.with_value("raise below"))
                self.seen.append(("still", str(sys.exc_info()[1])))
        elif value == "in a generator":
            self.seen.extend([("yielded", each) for each in self.several(record)])
        elif value == "own try":
            self.seen.append(outcome(forward, record.with_value("raise below")))
        else:
            forward(record)

    def several(self, record: Record) -> Iterator[str]:
        for value in ("raise below", "fine"):
            self.context.forward(record.with_value(value))
            yield str(sys.exc_info()[1])


class Changes(ValueTransformer):
    def transform(self, key: Any, value: Any) -> Any:
        if value == "raise below":
            try:
                raise KeyError("before")
            except KeyError:
                raise ValueError("below")  # noqa: B904
        if value == "exit below":
            sys.exit(4)
        if value == "interrupt":
            raise KeyboardInterrupt
        return {"text": value} if value == "mutable" else value


class OddSerde(Serde[Any]):
    """Writes values as text, and does what some say; `hook` is called for "re-enter"."""

    hook: Callable[[], Any] = staticmethod(lambda: None)

    def serialize(self, value: Any) -> bytes:
        if value == "serde raises":
            raise ArithmeticError("no bytes")
        if value == "serde exits":
            raise SystemExit("serde")
        if value == "re-enter":
            type(self).hook()
        if value == "no bytes":
            return "text"  # type: ignore[return-value]
        return str(value).encode(errors="surrogatepass")

    def deserialize(self, data: bytes) -> Any:
        return data.decode()


VALUES = [
    "fine", "ä", "", "commit", "twice", "to", "to keyword", "nobody", "wrong call", "a list", "nothing", "dict",
    "bad time", "headers", "in except", "in a generator", "own try", "raise below", "exit below", "interrupt",
    "mutable", "serde raises", "serde exits", "no bytes", "raise ValueError", "raise KeyError", "raise MemoryError",
    "raise RecursionError", "raise StopIteration", "raise SystemExit", "raise KeyboardInterrupt",
    "raise GeneratorExit", "late", b"\xff", None,
]  # fmt: skip


def _topology(shape: str, serde: Any) -> Topology:
    topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
    topology.add_processor("a", Acts, "in", stores=[key_value_store("s", key_serde="str", value_serde="int")])
    topology.add_processor("v", Changes, "a")
    if shape == "wide":
        topology.add_processor("b", Pass, "a")
        topology.add_sink("more", "out", "b", value_serde=serde)
    below = "v"
    if shape == "deep":
        for number in range(5):
            topology.add_processor(f"d{number}", (Pass, Changes)[number % 2], below)
            below = f"d{number}"
    return topology.add_sink("out", "out", below, value_serde=serde)


class Handles:
    """A handler that keeps what it sees, and decides by turns."""

    def __init__(self, decisions: list[str]) -> None:
        self.decisions = decisions
        self.seen: list[Any] = []

    def __call__(self, failure: Failure) -> Any:
        error = failure.error
        mine = [each.name for each in traceback.extract_tb(error.__traceback__) if "/tests/" in each.filename]
        chain, each = [], error.__context__
        while each is not None:
            if not isinstance(each, AttributeError):  # Python may have looked for an attribute on the way
                chain.append(f"{type(each).__name__}: {each}")
            each = each.__context__
        handled = sys.exc_info()[1]
        self.seen.append((failure.stage, failure.node, failure.offset, failure.raw_value, type(error), str(error), mine,
                          chain, repr(error.__cause__), handled is error, type(handled), failure.attempt))  # fmt: skip
        decision = self.decisions[len(self.seen) % len(self.decisions)]
        if decision == "raise":
            raise RuntimeError("of the handler")
        return {"skip": Skip(), "fail": Fail(), "letter": DeadLetter("letters")(failure)}.get(decision, decision)


def _tried(shape: str, given_records: list[Any], decisions: list[str], limit: int, way: Any, serde: Any) -> Any:
    handler = Handles(decisions)
    seen: list[Any] = []
    Acts.seen = seen
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, keep = logging.getLogger("penstock.task"), Lines()
    logger.addHandler(keep)
    propagate, logger.propagate = logger.propagate, False
    try:
        with way:
            task = open_task(
                _topology(shape, serde),
                processing_handler=handler, production_handler=handler, deserialization_handler=handler,
            )  # fmt: skip
            task.feed(batch("in", *given_records))
            found: list[Any] = []
            for _ in range(4 + len(given_records)):
                found.append(_outcome(task, limit))
                task.progress.begin()
                if found[-1][0] == "raised":
                    break
            found.append([_columns(each) for each in task.take_outputs()])
            found.append(_counts(task))
            queue, progress = task.inputs._queues[0], task.progress
            found.append((queue.partition_time, queue.position, queue.index, progress.stream_time))
            found.append((progress.last_timestamp, progress.needs_attention, progress.must_end, progress.record))
            store: Any = task.stores["s"]
            found.append((dict(store.pending), dict(store.clean), list(store.range()), store.calls.take()))
            return found, seen, handler.seen, lines
    finally:
        logger.removeHandler(keep)
        logger.propagate = propagate


def _outcome(task: Task, limit: int) -> Any:
    try:
        return "returned", task.process(limit)
    except BaseException as error:
        names, each = [], error
        while each is not None:
            names.append((type(each), str(each), repr(each.__cause__)))
            each = each.__context__  # type: ignore[assignment]
        return "raised", names


def _columns(each: OutputBatch) -> Any:
    """Return the columns of a batch. A dead letter's stack trace has no frames of compiled functions: its end counts."""
    headers: Any = each.headers and [
        [(name, value.split()[-1:]) if name.endswith("stacktrace") and value else (name, value) for name, value in row]
        if type(row) is tuple and all(type(pair) is tuple for pair in row)
        else row
        for row in each.headers
    ]
    return [each.topic, each.keys, each.values, each.timestamps, headers, each.partitions, each.hashed]


def _counts(task: Task) -> Any:
    return {
        name: (each.records_in, each.records_out, dict(each.dropped), dict(each.user))
        for name, each in task.metrics().items()
    }


@settings(max_examples=examples(120))
@given(
    st.sampled_from(["narrow", "wide", "deep"]),
    st.lists(st.tuples(st.sampled_from(["k", "l", None]), st.integers(0, len(VALUES) - 1).map(VALUES.__getitem__),
                       st.integers(0, 12)), min_size=1, max_size=12),
    st.lists(st.sampled_from(["skip", "skip", "skip", "letter", "fail", "raise", "nonsense"]), min_size=1, max_size=3),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([OddSerde(), "str"]),
)  # fmt: skip
def test_a_task(shape: str, given_records: list[Any], decisions: list[str], limit: int, serde: Any) -> None:
    fast = _tried(shape, given_records, decisions, limit, nullcontext(), serde)
    slow = _tried(shape, given_records, decisions, limit, in_python(), serde)
    for one, other in zip(fast, slow, strict=True):
        assert one == other


# ------------------------------------------------------------------ sinks

SERDES = [StrSerde(), BytesSerde(), IntSerde(), OddSerde()]


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(anything, anything, st.sampled_from([0, 5, 2**63 - 1, 2**63, -1, True, 1.5, None]),
                       st.sampled_from([(), (), (("h", b"1"),), [], None, "h"])), max_size=5),
    st.sampled_from(SERDES),
    st.sampled_from(SERDES),
    st.sampled_from(["", "to", "keyword", "nobody"]),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_what_a_sink_writes(given_records: list[Any], key_serde: Any, value_serde: Any, to: str, sinks: int) -> None:
    def tried(way: Any) -> Any:
        seen: list[Any] = []

        def run(context: Any, record: Record) -> None:
            for each in given_records:
                made = tuple.__new__(Record, each)
                if to == "":
                    seen.append(outcome(context.forward, made))
                elif to == "to":
                    seen.append(outcome(context.forward, made, "out"))
                elif to == "keyword":
                    seen.append(outcome(context.forward, record=made))
                else:
                    seen.append(outcome(context.forward, made, to="nobody"))

        with way:
            topology = one_node(run, sink=False)
            topology.add_sink("out", "out", "p", key_serde=key_serde, value_serde=value_serde)
            if sinks == 2:
                topology.add_sink("again", "out", "in", key_serde=key_serde, value_serde=value_serde)
            task = open_task(
                topology, production_handler=lambda failure: Skip(), processing_handler=lambda failure: Skip()
            )
            task.feed(batch("in", ("k", "v", 1)))
            found = outcome(task.process, 10)
            return seen, found, [_columns(each) for each in task.take_outputs()], _counts(task)

    fast, slow = tried(nullcontext()), tried(in_python())
    assert same(fast[0], slow[0]) and fast[1] == slow[1] and same(fast[2], slow[2]) and fast[3] == slow[3]


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("options", [{}, {"headers": (("h", b"1"),)}, {"timestamp": -1}, {"value": "serde raises"}])
def test_a_serde_that_forwards(part: str, options: dict[str, Any]) -> None:
    def tried(way: Any) -> Any:
        def run(context: Any, record: Record) -> None:
            def hook() -> None:
                OddSerde.hook = staticmethod(lambda: None)
                context.forward(Record("inner", options.get("value", "inner"), options.get("timestamp", 3),
                                       options.get("headers", ())))  # fmt: skip

            OddSerde.hook = staticmethod(hook)
            context.forward(Record("k", "v", 1)._replace(**{part: "re-enter"}))  # type: ignore[arg-type]
            context.forward(Record("last", "last", 9))

        with way:
            topology = one_node(run, sink=False).add_sink(
                "out", "out", "p", key_serde=OddSerde(), value_serde=OddSerde()
            )
            task = open_task(topology, production_handler=lambda failure: Skip())
            task.feed(batch("in", ("k", "v", 1)))
            assert task.process(10) == 1
            [written] = task.take_outputs()
            lengths = {len(each) for each in _columns(written)[1:] if each is not None}
            assert len(lengths) == 1, f"columns of several lengths: {written}"
            return _columns(written), _counts(task)

    assert tried(nullcontext()) == tried(in_python())


def test_a_column_that_appears_while_a_key_is_serialized() -> None:
    """A dead letter, or a sink with a partitioner, adds a column for some records of a topic."""
    output = OutputBatch("t", [b"0"], [b"0"], [0])

    def adds(key: Any) -> bytes:
        output.headers, output.partitions, output.hashed = [()], [None], [b"0"]
        return b"1"

    write = records.write(lambda *args: pytest.fail("the record is written already"), output, adds, adds)
    write(("k", "v", 1, ()))
    assert _columns(output) == ["t", [b"0", b"1"], [b"0", b"1"], [0, 1], [[], []], [None, None], [b"0", b"1"]]


# ------------------------------------------------------------------ the loop between two records


@pytest.mark.parametrize("compiled", [True, False])
def test_end_soon_from_another_thread_ends_the_loop_within_a_batch(compiled: bool) -> None:
    with nullcontext() if compiled else in_python():
        begun, asked = threading.Event(), threading.Event()

        def run(context: Any, record: Record) -> None:
            context.forward(record)
            if record.timestamp == 7:
                begun.set()
                assert asked.wait(10)

        task = open_task(one_node(run))
        task.feed(batch("in", *[("k", "v", number) for number in range(100)]))

        def end() -> None:
            assert begun.wait(10)
            task.progress.end_soon()
            asked.set()

        thread = threading.Thread(target=end)
        thread.start()
        assert task.process(1000) == 8
        thread.join()
        task.progress.begin()
        assert task.process(1000) == 92


def test_two_tasks_in_two_threads() -> None:
    def work(seed: int, found: list[Any]) -> None:
        task = open_task(_topology("deep", "str"), processing_handler=lambda failure: Skip())
        texts = [
            ("k", ["fine", "twice", "raise ValueError", "headers"][(number * seed) % 4], number)
            for number in range(2000)
        ]
        task.feed(batch("in", *texts))
        while task.process(500):
            task.progress.begin()
        found.append(([_columns(each) for each in task.take_outputs()], _counts(task)))

    class Silent:
        def append(self, item: Any) -> None:
            pass

    Acts.seen = Silent()  # type: ignore[assignment]
    alone: list[Any] = []
    together: list[list[Any]] = [[], []]
    for seed in (1, 3):
        work(seed, alone)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [
            threading.Thread(target=work, args=(seed, found)) for seed, found in zip((1, 3), together, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert [*together[0], *together[1]] == alone


@pytest.mark.parametrize("compiled", [True, False])
def test_deep_chains_of_nodes(compiled: bool) -> None:
    """A chain as deep as Python's own limit allows without compiled parts is no problem with them."""
    with nullcontext() if compiled else in_python():
        topology, below = Topology().add_source("in", "in"), "in"
        for number in range(300):
            topology.add_processor(f"n{number}", Pass if number % 3 else Changes, below)
            below = f"n{number}"
        task = open_task(topology.add_sink("out", "out", below), processing_handler=lambda failure: Skip())
        task.feed(batch("in", ("k", "v", 1)))
        assert task.process(10) == 1
        written = task.take_outputs()
        assert [each.values for each in written] == [[b"v"]]


def test_no_stack_is_left_over_by_a_recursion_that_never_ends() -> None:
    def run(context: Any, record: Record) -> None:
        def deeper() -> None:
            deeper()

        deeper()

    seen: list[str] = []

    def handler(failure: Failure) -> Any:
        seen.append(type(failure.error).__name__)
        return Skip()

    task = open_task(one_node(run), processing_handler=handler)
    task.feed(batch("in", *[("k", "v", number) for number in range(20)]))
    assert task.process(100) == 20 and seen == ["RecursionError"] * 20
