"""A program with state, timers of both clocks and a repartition topic, which changes how and where it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Processor, Record, Topology, key_value_store
from penstock.plugins.spark import run

from .surroundings import Surroundings
from .test_hosts import running

PARTITIONS, KEYS, PIECE = 2, 30, 1_000
TRIGGERS = ("continuous", "0s", "available_now", "continuous")
"""Backwards they are the other three changes."""
END = 10**6
Output = tuple[str | None, str | None]


class Rename(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_key(f"new-{record.key}"))


class Visits(Processor):
    """Counts each key's records. One ms after each record, by stream time, says so; and again soon after, by the wall
    clock, with how often."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(f"count {self._count(record.key)}"))
        at = record.timestamp + 1
        self.context.timer(f"{record.key}/{at}", max(at, self.context.current_stream_time_ms()), STREAM_TIME)

    def on_timer(self, key: Any, at: int) -> None:
        name, _, rest = key.partition("/")
        if rest.startswith("wall"):
            self.context.forward(Record(name, f"wall {self._count(f'{name}/wall')}", at))
        else:
            self.context.forward(Record(name, f"stream {rest}", at))
            self.context.timer(f"{name}/wall {rest}", self.context.current_system_time_ms() + 20, WALL_CLOCK_TIME)

    def _count(self, name: str) -> int:
        count = (self.counts.get(name) or 0) + 1
        self.counts.put(name, count)
        return int(count)


def topology(source: str, sink: str) -> Topology:
    return (
        Topology()
        .add_source("in", source)
        .add_processor("rename", Rename, "in")
        .add_repartition("renamed", "rename", partitions=3)
        .add_processor("visits", Visits, "renamed", stores=["counts"])
        .add_store(key_value_store("counts", key_serde="str"))
        .add_sink("out", sink, "visits")
    )


class Input:
    """Appends records, each later than the one before, and counts what must come out."""

    def __init__(self, surroundings: Surroundings, topic: str) -> None:
        self._surroundings = surroundings
        self._topic = topic
        self.total = 0
        self._counts: Counter[str] = Counter()
        self.expected: Counter[Output] = Counter()

    def append(self, count: int = PIECE) -> None:
        """Append to each partition the records of its keys."""
        rows: list[list[tuple[str | None, str | None, int]]] = [[] for _ in range(PARTITIONS)]
        for timestamp in range(self.total + 1, self.total + 1 + count):
            number = timestamp % KEYS
            rows[number % PARTITIONS].append((f"k{number}", "v", timestamp))
            key = f"new-k{number}"
            self._counts[key] += 1
            nth = self._counts[key]
            self.expected.update([(key, f"count {nth}"), (key, f"stream {timestamp + 1}"), (key, f"wall {nth}")])
        self.total += count
        for partition, each in enumerate(rows):
            self._surroundings.put(self._topic, each, partition)

    def end(self) -> None:
        """Move stream time past all timers, in every partition of the repartition topic."""
        self._surroundings.put(self._topic, [(f"end{number}", "v", END) for number in range(KEYS)])
        self.expected.update((f"new-end{number}", "count 1") for number in range(KEYS))


def check_moves(surroundings: Surroundings, spark: Any, triggers: Sequence[str], name: str, **settings: Any) -> None:
    """Run the program with one trigger after the other, on one slot and on two; each but the last is stopped in the
    middle. Every second one begins without local state."""
    source, sink = f"{name}-in", f"{name}-out"
    surroundings.create(**{source: PARTITIONS, sink: 2})
    sent = Input(surroundings, source)

    def written() -> int:
        return sum(surroundings.log.end_offsets(surroundings.partitions(sink)).values())

    for number, trigger in enumerate(triggers):
        application = surroundings.application(
            name, topology(source, sink), parallelism=1 + number % 2, state_dir=f"state-{number // 2}",
            commit_interval="20ms", **settings,
        )  # fmt: skip
        sent.append()
        if trigger == "available_now":
            run(application, trigger, session=spark)
            continue
        before = written()
        with running(application, spark, trigger) as one:
            one.wait(lambda: written() > before, "work after a move")  # noqa: B023
            sent.append()
            if number == len(triggers) - 1:
                one.wait(lambda: counted(surroundings, sink) >= sent.total, "all records")
                sent.end()
                one.wait(lambda: outputs(surroundings, sink).total() >= sent.expected.total(), "all timers")
            one.stop()
    for key, values in surroundings.values_by_key(sink).items():
        counts = [value for value in values if value is not None and value.startswith("count")]
        assert counts == [f"count {number}" for number in range(1, len(counts) + 1)], key
    found = outputs(surroundings, sink)
    assert found == sent.expected, f"too many: {dict(found - sent.expected)}; too few: {dict(sent.expected - found)}"


def counted(surroundings: Surroundings, sink: str) -> int:
    return sum(number for (_, value), number in outputs(surroundings, sink).items() if str(value).startswith("count"))


def outputs(surroundings: Surroundings, sink: str) -> Counter[Output]:
    return Counter((key, value) for rows in surroundings.read(sink).values() for key, value, _ in rows)
