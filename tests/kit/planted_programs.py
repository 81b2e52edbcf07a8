"""Right programs, and programs with one bug each that `ProcessorContract` has to find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from penstock import Processor, Record, Topology, key_value_store
from penstock.context import ProcessorContext

SEEN_BY_MODULE: Counter[str] = Counter()


def counting(processor: type[Processor], *, cached: bool = False) -> Topology:
    """Return words -> processor with the store `counts` -> counts."""
    counts = key_value_store("counts", value_serde="int", cached=cached)
    topology = Topology().add_source("in", "words", value_serde="int")
    return topology.add_processor("count", processor, "in", stores=[counts]).add_sink(
        "out", "counts", "count", value_serde="int"
    )


def running_sums(records: Iterable[Record]) -> list[tuple[str, int, int]]:
    """Return the sum of each key's values after each record, at the record's time."""
    sums: Counter[str] = Counter()
    answers = []
    for key, value, timestamp, _ in records:
        sums[key] += value
        answers.append((key, sums[key], timestamp))
    return answers


class Sum(Processor):
    """Right."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        total = (store.get(record.key) or 0) + record.value
        store.put(record.key, total)
        self.context.forward(record.with_value(total))


class InAnAttribute(Processor):
    """Keeps its state in an attribute."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.sums: Counter[str] = Counter()

    def process(self, record: Record) -> None:
        self.sums[record.key] += record.value
        self.context.forward(record.with_value(self.sums[record.key]))


class InTheClass(Processor):
    """Keeps its state in an attribute of the class."""

    sums: ClassVar[Counter[str]] = Counter()

    def process(self, record: Record) -> None:
        self.sums[record.key] += record.value
        self.context.forward(record.with_value(self.sums[record.key]))


class InTheModule(Processor):
    """Keeps its state in a global of the module."""

    def process(self, record: Record) -> None:
        SEEN_BY_MODULE[record.key] += record.value
        self.context.forward(record.with_value(SEEN_BY_MODULE[record.key]))


class NotPut(Sum):
    """Puts nothing when the value is 7, which few examples have."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        total = (store.get(record.key) or 0) + record.value
        if record.value != 7:
            store.put(record.key, total)
        self.context.forward(record.with_value(total))


class OneKeyForAll(Sum):
    """Counts all keys together, in each partition."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        total = (store.get("all") or 0) + record.value
        store.put("all", total)
        self.context.forward(record.with_value(total))


class WallClock(Sum):
    """Stamps its answers with the wall clock."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        total = (store.get(record.key) or 0) + record.value
        store.put(record.key, total)
        self.context.forward(Record(record.key, total, self.context.current_system_time_ms()))


class FirstSeen(Processor):
    """Remembers in an attribute which keys it has seen, as a cache of the store that is never filled again."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.seen: set[str] = set()

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        total = (store.get(record.key) or 0) + record.value if record.key in self.seen else record.value
        self.seen.add(record.key)
        store.put(record.key, total)
        self.context.forward(record.with_value(total))


class OnlyInTheSecondTask(Sum):
    """Is wrong in all tasks but the first."""

    def process(self, record: Record) -> None:
        if not self.context.task_id.endswith("_0"):
            record = record.with_value(record.value + 1)
        super().process(record)


class BuffersUntilThree(Processor):
    """Forwards records by threes, and forgets the rest when its task closes."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.waiting: list[Record] = []

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        total = (store.get(record.key) or 0) + record.value
        store.put(record.key, total)
        self.waiting.append(record.with_value(total))
        if len(self.waiting) == 3:
            for each in self.waiting:
                self.context.forward(each)
            self.waiting = []


class LastOfTheCommit(Sum):
    """Right, but its store is cached, so that only the last sum of each commit goes on."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        context.set_flush_listener(
            "counts", lambda update: context.forward(Record(update.key, update.value.new, update.timestamp))
        )

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        store.put(record.key, (store.get(record.key) or 0) + record.value)


PLANTED: dict[type[Processor], Any] = {
    InAnAttribute: {},
    InTheClass: {},
    InTheModule: {},
    NotPut: {},
    OneKeyForAll: {},
    WallClock: {},
    FirstSeen: {},
    OnlyInTheSecondTask: {},
    BuffersUntilThree: {},
    LastOfTheCommit: {"cached": True},
}
"""Each planted bug, with the options of `counting`."""
