"""Applications with every kind of store, verb and serde, and the state that commit `BASE` wrote for them, which later
versions must read.

In the archive are a data directory for each log, what the applications made of more records at that commit
(`expected.json`), and this package as it was then: `python -m tests.upgrades.back` runs it there on state of today.
To change a format on purpose, keep reading the old one, and add an archive beside this one.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Application,
    Log,
    Processor,
    Record,
    Topology,
    ValueAndTimestamp,
    Windowed,
    key_value_store,
    list_store,
    lru_map,
    session_store,
    versioned_store,
    window_store,
)
from penstock.plugins.changelogs.file_format import DELTA, OPENING_BYTES, Reader
from penstock.plugins.dsl import StreamsBuilder, sessions, tumbling, within
from penstock.plugins.dsl.graph.serdes import SessionWindowedSerde, TimeWindowedSerde
from penstock.plugins.engine.task.topic_ids import without_ids
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.serdes.json import JsonSerde
from penstock.plugins.serdes.msgpack import MsgpackSerde
from penstock.plugins.serdes.pickle import PickleSerde
from penstock.plugins.testing.contracts.log_tests import Found, everything, read, settled_ends
from penstock.record import Headers, OutputBatch, TopicPartition
from penstock.serde import BoolSerde, BytesSerde, FloatSerde, IntSerde, Serde, StrSerde
from penstock.store import ValueTimestampHeaders
from tests.processes import opened_workers

from .dsl_programs import PROGRAMS as OF_DSL
from .dsl_programs import YOUNGER
from .dsl_programs import program as verb_program
from .restarts import INPUTS as INPUT_TOPICS
from .restarts import OUTPUTS, START_MS, TICKS, phases

BASE = "abf99ab"
VERBS = {name: verb for name, verb in OF_DSL.items() if name not in YOUNGER}
"""The programs of the DSL that the archive has."""
ARCHIVE = Path(__file__).parent / "saved.tar.xz"
HEADERS = (("trace", b"1"), ("empty", None))
PREFIX = "penstock-saved-"
"""The names of topics and applications begin with it: on a broker there are others."""
_FAR = 2**62
_NOWADAYS = 10**12


def topic(name: str) -> str:
    """Return the name of a topic of the programs here."""
    return PREFIX + name


STORES = {
    "plain": key_value_store("plain"),
    "stamped": key_value_store("stamped", timestamped=True, key_serde="str", value_serde="int"),
    "headers": key_value_store("headers", headers=True, cached=True),
    "ttl": key_value_store("ttl", ttl="1h"),
    "expires": key_value_store("expires", expires=True, ttl_clock=WALL_CLOCK_TIME),
    "window": window_store("window", retention="10s", window_size="1s"),
    "window-stamped": window_store("window-stamped", retention="10s", window_size="1s", timestamped=True),
    "window-headers": window_store("window-headers", retention="10s", window_size="1s", headers=True),
    "window-duplicates": window_store("window-duplicates", retention="10s", window_size="1s", retain_duplicates=True),
    "session": session_store("session", retention="10s"),
    "session-headers": session_store("session-headers", retention="10s", headers=True),
    "versioned": versioned_store("versioned", history_retention="10s", key_serde="str"),
    "list": list_store("list"),
    "lru": lru_map("lru", max_entries=2),
}
PUT: Mapping[str, Callable[[Any, str, int, int], object]] = {
    "plain": lambda store, key, value, at: store.put(key, value),
    "stamped": lambda store, key, value, at: store.put(key, ValueAndTimestamp(value, at)),
    "headers": lambda store, key, value, at: store.put(key, ValueTimestampHeaders(value, at, HEADERS)),
    "ttl": lambda store, key, value, at: store.put(key, value),
    "expires": lambda store, key, value, at: store.put(key, value, ttl="1h"),
    "window": lambda store, key, value, at: store.put(key, value, at // 1000 * 1000),
    "window-stamped": lambda store, key, value, at: store.put(key, ValueAndTimestamp(value, at), at // 1000 * 1000),
    "window-headers": lambda store, key, value, at: store.put(
        key, ValueTimestampHeaders(value, at, HEADERS), at // 1000 * 1000
    ),
    "window-duplicates": lambda store, key, value, at: store.put(key, value, at // 1000 * 1000),
    "session": lambda store, key, value, at: store.put(Windowed(key, at - 5, at), value),
    "session-headers": lambda store, key, value, at: store.put(
        Windowed(key, at - 5, at), ValueTimestampHeaders(value, at, HEADERS)
    ),
    "versioned": lambda store, key, value, at: store.put(key, value, at),
    "list": lambda store, key, value, at: store.add(key, value),
    "lru": lambda store, key, value, at: store.put(key, value),
}


class Keep(Processor):
    """Puts each record into every store, sets timers, and counts by a schedule."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("10s", self.tick, WALL_CLOCK_TIME, name="tick")
        context.schedule("2s", self.tick, STREAM_TIME, name="stream-tick")

    def process(self, record: Record) -> None:
        for name, put in PUT.items():
            put(self.context.get_store(name), record.key, len(record.value), record.timestamp)
        self.context.timer("stream", record.timestamp + 3_000, STREAM_TIME)
        self.context.timer("wall", 60_000, WALL_CLOCK_TIME)
        self.context.forward(record.with_value(f"put {record.value}"))

    def tick(self, now: int) -> None:
        self.context.forward(Record("tick", str(now), now))

    def on_timer(self, key: Any, timer: Any) -> None:
        self.context.forward(Record(str(key), f"timer {timer}", 0))


def kinds() -> Topology:
    """Return a processor with a store of each kind, timers and schedules."""
    topology = Topology().add_source("in", topic("left"))
    topology.add_processor("keep", Keep, "in", stores=list(STORES.values()), timers=True)
    return topology.add_sink("out", topic("out"), "keep")


class Celsius(Serde[float]):
    """A user's serde with an attribute. Its module is fixed, wherever this file is."""

    __module__ = "shop.serdes"

    def __init__(self, digits: int) -> None:
        self.digits = digits

    def serialize(self, value: float) -> bytes:
        return f"{value:.{self.digits}f}C".encode()

    def deserialize(self, data: bytes) -> float:
        return float(data[:-1])


SERDES: Mapping[str, tuple[Serde[Any], Callable[[str], Any]]] = {
    "bytes": (BytesSerde(), str.encode),
    "str": (StrSerde(), str),
    "int": (IntSerde(), len),
    "float": (FloatSerde(), lambda text: len(text) / 2),
    "bool": (BoolSerde(), lambda text: text.endswith("0")),
    "json": (JsonSerde(), lambda text: {"text": text}),
    "msgpack": (MsgpackSerde(), lambda text: {(text, 1)}),
    "pickle": (PickleSerde(), lambda text: [text]),
    "windowed:str:1s": (TimeWindowedSerde(StrSerde(), 1_000), lambda text: Windowed(text, 0, 1_000)),
    "session:json": (SessionWindowedSerde(JsonSerde()), lambda text: Windowed(text, 0, 7)),
    "celsius": (Celsius(2), len),
}
"""Each serde by its name, as an object, and a value for it made of a text."""


class KeepEach(Processor):
    """Puts each record into a store for each serde, by name and as an object, as key and as value."""

    def process(self, record: Record) -> None:
        for name, (_, make) in SERDES.items():
            for how in ("named", "object"):
                if how == "object" or name != "celsius":
                    self.context.get_store(f"{how}-{name.replace(':', '-')}").put(make(record.key), make(record.value))
        self.context.forward(record)


def serdes() -> StreamsBuilder:
    """Return a program whose stores, topics and repartition topics have serdes by name and as objects."""
    builder = StreamsBuilder()
    stores = []
    for name, (serde, _) in SERDES.items():
        label = name.replace(":", "-")
        stores.append(key_value_store(f"object-{label}", key_serde=serde, value_serde=serde))
        if name != "celsius":
            stores.append(key_value_store(f"named-{label}", key_serde=name, value_serde=name))
    left = builder.stream(topic("left"), key_serde=StrSerde(), value_serde=StrSerde())
    by_object = left.repartition("by-object", key_serde=StrSerde(), value_serde=StrSerde())
    by_name = builder.stream(topic("right"), name="again").repartition("by-name", key_serde="str", value_serde="str")
    kept = by_object.process(KeepEach, stores=stores, name="keep")
    lengths = by_name.map_values(len).repartition("lengths", key_serde="str", value_serde=Celsius(1))
    table = lengths.to_table("lengths")
    totals = lengths.group_by_key(key_serde=StrSerde(), value_serde=Celsius(1)).reduce(add, "totals")
    kept.to(topic("out"), key_serde=StrSerde(), value_serde=StrSerde())
    for each in (table, totals):
        each.to_stream().map_values(str).to(topic("out"), key_serde="str", value_serde="str")
    return builder


def add(one: Any, two: Any) -> Any:
    """Return a sum."""
    return one + two


def dsl(*, in_front: bool = False) -> StreamsBuilder:
    """Return a program of the DSL with what keeps state: tables, windows, sessions, suppressions and joins.

    `in_front`: with a verb more at the top.
    """
    builder = StreamsBuilder()
    left, right = builder.stream(topic("left")), builder.stream(topic("right"))
    if in_front:
        left = left.peek(lambda value: None)
    one, two = builder.table(topic("table-one"), "one"), builder.table(topic("table-two"), "two")
    by_key = left.group_by_key()
    counts = by_key.windowed_by(tumbling("1s", grace="1s")).count("counts")
    visits = by_key.windowed_by(sessions(gap="1s", grace="1s"), emit="on_close", idle="30s").count("visits")
    for windowed in (counts, counts.suppress("window_closes", name="final"), visits):
        windowed.to_stream().map(lambda key, n: (key.key, f"{key.start} {key.end} {n}"), with_key=True).to(
            topic("out"), key_serde="str", value_serde="str"
        )
    left.outer_join(right, lambda a, b: f"{a}+{b}", within("1s", grace="1s"), name="pairs").to(
        topic("out"), value_serde="str"
    )
    left.left_join(one, lambda a, b: f"{a}*{b}").to(topic("out"), value_serde="str")
    one.outer_join(two, lambda a, b: f"{a}/{b}", "both").to_stream().to(topic("out"), value_serde="str")
    named = one.join(two, lambda a, b: f"{a}>{b}", foreign_key=lambda value: value[0], name="named")
    named.to_stream().to(topic("out"), value_serde="str")
    return builder


PROGRAMS: Mapping[str, Callable[[], Any]] = {"kinds": kinds, "dsl": dsl, "serdes": serdes}
CHANGELOGS = {"directory": "directory:changelog", "topic": "topic:"}
NAMES = [f"{program}-{changelog}" for program in PROGRAMS for changelog in CHANGELOGS]
FIRST = (1_000, 2_500, 4_200)
"""The times of the first records, which the archive has, in the applications (ms)."""
THEN = (5_100, 9_000)
"""The times of the records that follow."""
INPUTS = ("left", "right", "table-one", "table-two")


def application(directory: Path, name: str, program: Any = None, log: str = "local:log") -> Application:
    """Return one of the applications, or what it becomes with another program."""
    own, _, changelog = name.partition("-")
    return Application(
        PREFIX + name,
        PROGRAMS[own]() if program is None else program,
        log=log,
        data_dir=str(directory),
        changelog=CHANGELOGS[changelog],
        dsl_store_format="headers" if changelog == "topic" else "default",
    )


class Saved:
    """Every application on one data directory: `make` is what the archive was made by, `go_on` goes on from there.

    `log` is the log and its location, the local one in the directory if it is not given.
    """

    def __init__(self, directory: Path, log: tuple[Log, str] | None = None) -> None:
        self.directory = directory
        self.log, self._location = log or (LocalLog(str(directory / "log")), "local:log")

    def close(self) -> None:
        """Close the log."""
        self.log.close()

    def make(self) -> None:
        """Create the topics, and run every application over the first records."""
        for each in (*INPUTS, "out"):
            self.log.create_topic(topic(each), 1)
        for at in FIRST:
            self.feed(at)
            for name in NAMES:
                self.run(name, at)

    def go_on(self) -> dict[str, Any]:
        """Run all applications over more records, and until a minute has passed; return outputs and contents."""
        found: dict[str, Any] = {name: {"contents": self.run(name, FIRST[-1]), "outputs": []} for name in NAMES}
        for now in (*THEN, 100_000):
            if now in THEN:
                self.feed(now)
            for name in NAMES:
                before = self._outputs()
                found[name]["then"] = self.run(name, now)
                found[name]["outputs"] += sorted(map(repr, map(_row, self._outputs()[len(before) :])))
        return found

    def run(self, name: str, now: int, program: Any = None) -> dict[str, Any]:
        """Run an application, or another program as it, until nothing is left; return what its stores have."""
        found: dict[str, Any] = {}
        made = application(self.directory, name, program, self._location)
        with opened_workers(made, self.log) as workers:
            run_out(workers, self.log, now)
            for worker in workers:
                assert worker.task is not None
                for store_name, store in worker.task.stores.items():
                    found[store_name] = plain(_content(store))
        return found

    def feed(self, at: int) -> None:
        """Produce records of a time."""
        for number, each in enumerate(INPUTS):
            rows: list[tuple[str, str | None]] = [("a", f"a{at}"), ("b", f"b{at}")]
            rows.append((f"{'c' if each == 'left' else 'd'}{at}", "b"))
            # On Kafka the order of records of one time in several topics is open.
            times, headers = [at + 10 * number] * 3, list[Headers]()
            if each == "left":
                times, headers = [at, at + 300, at], [HEADERS, (), ()]
            elif each == "table-one":
                # Comes and goes.
                rows[-1] = ("c", "b" if at in (FIRST[0], THEN[0]) else None)
            keys: list[bytes | None] = [key.encode() for key, _ in rows]
            values = [None if row is None else row.encode() for _, row in rows]
            self.log.append(OutputBatch(topic(each), keys, values, times, headers or None))

    def _outputs(self) -> list[Found]:
        return everything(self.log, topic("out"))

    def raw(self) -> dict[str, Any]:
        """Return what is saved for each application."""
        return {name: _raw(self.log, self.directory, PREFIX + name) for name in NAMES}


def run_out(workers: Sequence[Any], log: Log, now: int) -> None:
    """Run all tasks at one time until no record is left."""
    reports: list[Any] = [None]
    while any(each is None or each.records_in for each in reports):
        # On Kafka, what a commit wrote can be read a moment after it has returned.
        reports = [worker.run_batch(settled_ends(log, worker.partitions), now) for worker in workers]


def plain(content: Any) -> Any:
    """Return a content as data for JSON, whatever its classes are called."""
    if isinstance(content, dict):
        return {str(key): plain(value) for key, value in content.items()}
    if isinstance(content, (tuple, list)):
        return [plain(each) for each in content]
    return content if isinstance(content, (int, float, str)) or content is None else repr(content)


class Verbs:
    """Each verb of the DSL with state as an application, on one data directory with the local log."""

    def __init__(self, directory: Path, log: None = None) -> None:
        self.directory = directory
        self.log = LocalLog(str(directory / "log"))
        self._seen = dict.fromkeys(OUTPUTS, 0)

    def close(self) -> None:
        """Close the log."""
        self.log.close()

    def make(self) -> None:
        """Create the topics, and run every verb over the records of two starts."""
        for each in (*INPUT_TOPICS, *OUTPUTS):
            self.log.create_topic(each, 1)
        for number in (0, 1):
            self.feed(number)
            for verb in VERBS:
                self.start(verb, number)

    def go_on(self) -> dict[str, Any]:
        """Run every verb over the records of two more starts; return what each sends."""
        found: dict[str, Any] = {verb: [] for verb in VERBS}
        for number in (2, 3):
            self.feed(number)
            for verb in VERBS:
                self._new_outputs()
                self.start(verb, number)
                found[verb].append(self._new_outputs())
        return found

    def start(self, verb: str, number: int) -> None:
        """Start a verb's program, and run it until nothing is left and for a minute."""
        with opened_workers(self.application(verb), self.log) as workers:
            for tick in TICKS:
                run_out(workers, self.log, number * START_MS + tick)

    def application(self, verb: str) -> Application:
        """Return the application of a verb; every other one has the changelog in topics."""
        number = list(VERBS).index(verb)
        return Application(
            f"verb-{number}",
            verb_program(verb),
            log="local:log",
            data_dir=str(self.directory),
            changelog=list(CHANGELOGS.values())[number % 2],
            topology_optimization="single_store_self_join",
        )

    def raw(self) -> dict[str, Any]:
        """Return what is saved for each verb."""
        return {verb: _raw(self.log, self.directory, self.application(verb).id) for verb in VERBS}

    def feed(self, number: int) -> None:
        """Produce the records of one start."""
        for each, key, value, timestamp in phases()[number]:
            raw = None if value is None else value.encode()
            self.log.append(OutputBatch(each, [key.encode()], [raw], [timestamp]))

    def _new_outputs(self) -> list[str]:
        found: list[str] = []
        for each in OUTPUTS:
            records = read(self.log, TopicPartition(each, 0), self._seen[each] or None)
            if records:
                self._seen[each] = records[-1].offset + 1
            found += [f"{each} {row.key!r} {row.value!r} {row.timestamp}" for row in records]
        return found


def _raw(log: Log, directory: Path, application_id: str) -> dict[str, Any]:
    """Return the bytes in the changelog of an application, by store and key, and the note about its program."""
    note = json.loads(log.get_meta(application_id, "program") or b"")
    # Each incarnation of an application has another one.
    note.pop("identity")
    note.pop("whole_keys", None)  # younger than the archive
    found: dict[str, Any] = {"note": note}
    for each in sorted(log.topics()):
        if each.startswith(f"{application_id}-") and log.topic(each).internal:
            found[each] = list(map(_row, read(log, TopicPartition(each, 0))))
    return found | _raw_files(directory / "changelog" / application_id)


def _row(record: Found) -> tuple[Any, ...]:
    # Where a store has no timestamps, the records of its changelog have the producer's time.
    time = record.timestamp if record.timestamp < _NOWADAYS else None
    return record.key, record.value, time, record.headers


def _raw_files(directory: Path) -> dict[str, Any]:
    """Return what the deltas of an application amount to, and the engine state of each task's last one."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*.delta")):
        with path.open("rb") as file:
            while opening := file.read(OPENING_BYTES):
                delta = Reader(file, DELTA, opening)
                for store, changes in delta.chunks():
                    found.setdefault(f"{path.parent.name} {store}", {}).update(changes)
                assert delta.commit is not None
                # Topics have other ids in each directory.
                found[f"{path.parent.name} engine state"] = without_ids(delta.commit.engine_state)
    return found


def _content(store: Any) -> Any:
    """Return what a store has, whatever its kind."""
    if hasattr(store, "find_sessions"):
        with store.fetch_range(None, None) as rows:
            return list(rows)
    if hasattr(store, "all"):
        with store.all() as rows:
            return list(rows)
    if hasattr(store, "put") and hasattr(store, "delete"):
        found = {}
        for key in ("a", "b"):
            with store.get(key, 0, _FAR) as versions:
                found[key] = list(versions)
        return found
    return None


def unpack(directory: Path) -> Path:
    """Write out the archive, and return the directory."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory
