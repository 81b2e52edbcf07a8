"""Applications with every kind of store, and what they left on a disk: `ARCHIVES`, which later versions must read.

`python -m tests.upgrades` makes the newest if it is not there. To change a format on purpose, keep reading the old one,
and add the new one beside it.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Application,
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
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.runtime.topic_ids import without_ids
from penstock.plugins.testing.contracts.log_tests import Found, read
from penstock.record import Headers, OutputBatch, TopicPartition
from penstock.store.kinds.headers import ValueTimestampHeaders
from tests.processes import opened_workers

ARCHIVES = [Path(__file__).parent / name for name in ("state.tar.xz", "state_by_store.tar.xz")]
"""The newest last. In the first, times of the DSL's operators are saved under the names of their nodes."""
HEADERS = (("trace", b"1"), ("empty", None))
_FAR = 2**62
_NOWADAYS = 10**12

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
    topology = Topology().add_source("in", "left")
    topology.add_processor("keep", Keep, "in", stores=list(STORES.values()), timers=True)
    return topology.add_sink("out", "out", "keep")


def dsl(*, in_front: bool = False) -> StreamsBuilder:
    """Return a program of the DSL with what keeps state: tables, windows, sessions, suppressions and joins.

    `in_front`: with a verb more at the top.
    """
    builder = StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    if in_front:
        left = left.peek(lambda value: None)
    one, two = builder.table("table-one", "one"), builder.table("table-two", "two")
    by_key = left.group_by_key()
    counts = by_key.windowed_by(tumbling("1s", grace="1s")).count("counts")
    visits = by_key.windowed_by(sessions(gap="1s", grace="1s"), emit="on_close", idle="30s").count("visits")
    for windowed in (counts, counts.suppress("window_closes", name="final"), visits):
        windowed.to_stream().map(lambda key, n: (key.key, f"{key.start} {key.end} {n}"), with_key=True).to(
            "out", key_serde="str", value_serde="str"
        )
    left.outer_join(right, lambda a, b: f"{a}+{b}", within("1s", grace="1s"), name="pairs").to("out", value_serde="str")
    left.left_join(one, lambda a, b: f"{a}*{b}").to("out", value_serde="str")
    one.outer_join(two, lambda a, b: f"{a}/{b}", "both").to_stream().to("out", value_serde="str")
    named = one.join(two, lambda a, b: f"{a}>{b}", foreign_key=lambda value: value[0], name="named")
    named.to_stream().to("out", value_serde="str")
    return builder


PROGRAMS: Mapping[str, Callable[[], Any]] = {"kinds": kinds, "dsl": dsl}
CHANGELOGS = {"directory": "directory:changelog", "topic": "topic:"}
NAMES = [f"{program}-{changelog}" for program in PROGRAMS for changelog in CHANGELOGS]
LAST = 4_200
"""The time at which the archive was made, in the applications."""
INPUTS = ("left", "right", "table-one", "table-two")


def application(directory: Path, name: str, program: Any = None) -> Application:
    """Return one of the applications, or what it becomes with another program."""
    own, _, changelog = name.partition("-")
    return Application(
        name,
        PROGRAMS[own]() if program is None else program,
        log="local:log",
        data_dir=str(directory),
        changelog=CHANGELOGS[changelog],
        dsl_store_format="headers" if changelog == "topic" else "default",
    )


class Saved:
    """Every application on one data directory; `first` is what the archive was made by, `second` goes on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = LocalLog(str(directory / "log"))
        self._outputs = 0

    def close(self) -> None:
        """Close the log."""
        self.log.close()

    def make(self) -> None:
        """Create the topics, and run every application over the first records."""
        for topic in (*INPUTS, "out"):
            self.log.create_topic(topic, 1)
        for at in (1_000, 2_500, LAST):
            self._feed(at)
            for name in NAMES:
                self.run(name, at)

    def go_on(self, name: str, program: Any = None) -> tuple[list[Any], dict[str, Any]]:
        """Run one application over more records, and until a minute has passed; return outputs and contents.

        `program` is in place of its own.
        """
        partition = TopicPartition("out", 0)
        before = len(read(self.log, partition))
        for at in (5_100, 9_000):
            self._feed(at)
            self.run(name, at, program)
        contents = self.run(name, 100_000, program)
        return sorted(map(repr, map(_row, read(self.log, partition)[before:]))), contents

    def run(self, name: str, now: int, program: Any = None) -> dict[str, Any]:
        """Run an application, or another program as it, until nothing is left; return what its stores have."""
        found: dict[str, Any] = {}
        with opened_workers(application(self.directory, name, program), self.log) as workers:
            reports: list[Any] = [None]
            while any(each is None or each.records_in for each in reports):
                reports = [worker.run_batch(self.log.end_offsets(worker.partitions), now) for worker in workers]
            for worker in workers:
                assert worker.task is not None
                for store_name, store in worker.task.stores.items():
                    found[store_name] = _content(store)
        return found

    def _feed(self, at: int) -> None:
        for topic in INPUTS:
            rows: list[tuple[str, str | None]] = [("a", f"a{at}"), ("b", f"b{at}")]
            rows.append((f"{'c' if topic == 'left' else 'd'}{at}", "b"))
            times, headers = [at] * 3, list[Headers]()
            if topic == "left":
                times, headers = [at, at + 300, at], [HEADERS, (), ()]
            elif topic == "table-one":
                # Comes and goes.
                rows[-1] = ("c", "b" if at in (1_000, 5_100) else None)
            keys: list[bytes | None] = [key.encode() for key, _ in rows]
            values = [None if each is None else each.encode() for _, each in rows]
            self.log.append(OutputBatch(topic, keys, values, times, headers or None))

    def raw(self, name: str) -> dict[str, Any]:
        """Return the bytes in the changelog of an application, by store and key."""
        if name.endswith("-topic"):
            topics = [each for each in self.log.topics() if each.startswith(f"{name}-") and each.endswith("-changelog")]
            return {topic: list(map(_row, read(self.log, TopicPartition(topic, 0)))) for topic in sorted(topics)}
        return _raw_files(self.directory / "changelog" / name)


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


@contextmanager
def opened(directory: Path) -> Iterator[Saved]:
    """Open a data directory."""
    with ExitStack() as stack:
        saved = Saved(directory)
        stack.callback(saved.close)
        yield saved


def pack(directory: Path) -> None:
    """Make the archive of a data directory."""
    with tarfile.open(ARCHIVES[-1], "w:xz") as archive:
        archive.add(directory, arcname=".", filter=lambda each: None if "lock" in Path(each.name).name else each)


def unpack(directory: Path, archived: Path) -> None:
    """Write out what is in an archive."""
    with tarfile.open(archived) as archive:
        archive.extractall(directory, filter="data")
