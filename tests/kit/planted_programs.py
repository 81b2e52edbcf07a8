"""A right program, which keeps a sum for each key, and programs with one bug each that `ProcessorContract` finds."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar
from uuid import uuid4

from penstock import WALL_CLOCK_TIME, Processor, ProcessorContext, Record, Topology, key_value_store

SEEN_BY_MODULE: Counter[str] = Counter()
MAILS: list[str] = []
"""What programs here did outside."""


def counting(processor: type[Processor], *, cached: bool = False, logged: bool = True) -> Topology:
    """Return words -> processor with the store `counts` -> counts."""
    counts = key_value_store("counts", value_serde="int", cached=cached, logged=logged)
    topology = Topology().add_source("in", "words", value_serde="int")
    return topology.add_processor("count", processor, "in", stores=[counts]).add_sink(
        "out", "counts", "count", value_serde="int"
    )


def running_sums(records: Iterable[Record]) -> list[tuple[str, int | None, int]]:
    """Return the sum of each key's values after each record, at the record's time; a tombstone begins anew."""
    return [record[:3] for record in sums_with_headers(records)]


def sums_with_headers(records: Iterable[Record]) -> list[Record]:
    """Return the answers with their headers."""
    sums: Counter[str] = Counter()
    answers = []
    for record in records:
        if record.key is None:
            continue
        sums[record.key] = 0 if record.value is None else sums[record.key] + record.value
        answers.append(record.with_value(None if record.value is None else sums[record.key]))
    return answers


class Sum(Processor):
    """Right."""

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        total = None if record.value is None else self.total(record)
        self.keep(record, total)
        self.answer(record, total)

    def total(self, record: Record) -> int:
        return int((self.context.get_store("counts").get(record.key) or 0) + record.value)

    def keep(self, record: Record, total: int | None) -> None:
        self.context.get_store("counts").put(record.key, total)

    def answer(self, record: Record, total: int | None) -> None:
        self.context.forward(record.with_value(total))


class InAnAttribute(Sum):
    """Keeps its state in an attribute."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.sums: Counter[str] = Counter()

    def total(self, record: Record) -> int:
        return self.sums[record.key] + int(record.value)

    def keep(self, record: Record, total: int | None) -> None:
        self.sums[record.key] = total or 0


class InTheClass(InAnAttribute):
    """Keeps its state in an attribute of the class."""

    sums: ClassVar[Counter[str]] = Counter()  # type: ignore[misc]

    def init(self, context: ProcessorContext) -> None:
        Processor.init(self, context)


class InTheModule(Sum):
    """Keeps its state in a global of the module."""

    def total(self, record: Record) -> int:
        return SEEN_BY_MODULE[record.key] + int(record.value)

    def keep(self, record: Record, total: int | None) -> None:
        SEEN_BY_MODULE[record.key] = total or 0


class InADefault(Sum):
    """Keeps its state in the default of an argument."""

    def total(self, record: Record) -> int:
        return self.sums()[record.key] + int(record.value)

    def keep(self, record: Record, total: int | None) -> None:
        self.sums()[record.key] = total or 0

    def sums(self, kept: Counter[str] = Counter()) -> Counter[str]:  # noqa: B006 - the planted line
        return kept


def in_a_closure() -> type[Processor]:
    """Return a processor that keeps its state in the function that made it."""
    sums: Counter[str] = Counter()

    class InAClosure(Sum):
        """Keeps its state in a closure."""

        def total(self, record: Record) -> int:
            return sums[record.key] + int(record.value)

        def keep(self, record: Record, total: int | None) -> None:
            sums[record.key] = total or 0

    return InAClosure


class NotPut(Sum):
    """Puts nothing when the value is 7, which few examples have."""

    def keep(self, record: Record, total: int | None) -> None:
        if record.value != 7:
            super().keep(record, total)


class OneKeyForAll(Sum):
    """Counts all keys of a partition together."""

    def total(self, record: Record) -> int:
        return super().total(record._replace(key="all"))

    def keep(self, record: Record, total: int | None) -> None:
        super().keep(record._replace(key="all"), total)


class WallClock(Sum):
    """Stamps its answers with the task's wall clock."""

    def answer(self, record: Record, total: int | None) -> None:
        super().answer(record.with_timestamp(self.context.current_system_time_ms()), total)


class MachineClock(Sum):
    """Adds 1 in every 97th millisecond of the machine's clock."""

    def total(self, record: Record) -> int:
        return super().total(record) + (time.time_ns() // 1_000_000 % 97 == 0)


class StreamTime(Sum):
    """Stamps its answers with stream time, which is another for late records only."""

    def answer(self, record: Record, total: int | None) -> None:
        super().answer(record.with_timestamp(self.context.current_stream_time_ms()), total)


class FirstSeen(Sum):
    """Remembers in an attribute which keys it has seen, as a cache of the store that is never filled again."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.seen: set[str] = set()

    def total(self, record: Record) -> int:
        return super().total(record) if record.key in self.seen else int(record.value)

    def keep(self, record: Record, total: int | None) -> None:
        self.seen.add(record.key)
        super().keep(record, total)


class Cached(Sum):
    """Has a cache in front of its store, which a class below this one fills."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.cache: dict[str, int] = {}

    def total(self, record: Record) -> int:
        known = self.cache.get(record.key)
        return int(known + record.value) if known is not None else super().total(record)


class OldCache(Cached):
    """Has a cache in front of its store, which tombstones do not reach."""

    def keep(self, record: Record, total: int | None) -> None:
        super().keep(record, total)
        if total is not None:
            self.cache[record.key] = total


class OnlyInTheSecondTask(Sum):
    """Is wrong in all tasks but the first."""

    def total(self, record: Record) -> int:
        return super().total(record) + (not self.context.task_id.endswith("_0"))


class BuffersUntilThree(Sum):
    """Forwards records by threes, and forgets the rest when its task closes."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.waiting: list[tuple[Record, int | None]] = []

    def answer(self, record: Record, total: int | None) -> None:
        self.waiting.append((record, total))
        if len(self.waiting) == 3:
            for each in self.waiting:
                super().answer(*each)
            self.waiting = []


class LastOfTheCommit(Sum):
    """Right, but its store is cached, so that only the last sum of each commit goes on."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        context.set_flush_listener(
            "counts", lambda update: context.forward(Record(update.key, update.value.new, update.timestamp))
        )

    def answer(self, record: Record, total: int | None) -> None:
        pass


class TombstoneIsZero(Sum):
    """Adds nothing for a tombstone, instead of beginning anew."""

    def keep(self, record: Record, total: int | None) -> None:
        super().keep(record, (self.context.get_store("counts").get(record.key) or 0) if total is None else total)


class TombstoneIsDropped(Sum):
    """Deletes, and tells nobody."""

    def answer(self, record: Record, total: int | None) -> None:
        if total is not None:
            super().answer(record, total)


class NullKey(Sum):
    """Passes records without a key."""

    def process(self, record: Record) -> None:
        super().process(record)
        if record.key is None:
            self.context.forward(record)


class DropsHeaders(Sum):
    """Makes a new record, without the headers of the old one."""

    def answer(self, record: Record, total: int | None) -> None:
        self.context.forward(Record(record.key, total, record.timestamp))


class DropsAnEmptyHeader(Sum):
    """Takes headers without a value for none."""

    def answer(self, record: Record, total: int | None) -> None:
        super().answer(record._replace(headers=tuple(each for each in record.headers if each[1])), total)


class HashOfTheKey(Sum):
    """Has the hash of a key in its store, which is another in each process."""

    def total(self, record: Record) -> int:
        return super().total(record._replace(key=str(hash(record.key))))

    def keep(self, record: Record, total: int | None) -> None:
        super().keep(record._replace(key=str(hash(record.key))), total)


class RandomKey(Sum):
    """Has another name for the entries of each process."""

    name = ""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.name = uuid4().hex

    def total(self, record: Record) -> int:
        return super().total(record._replace(key=self.name + record.key))

    def keep(self, record: Record, total: int | None) -> None:
        super().keep(record._replace(key=self.name + record.key), total)


class Sampled(Sum):
    """Forgets one record of fifty, by chance."""

    def keep(self, record: Record, total: int | None) -> None:
        if random.random() > 0.02:
            super().keep(record, total)


class RaisesRarely(Sum):
    """Fails for one value of one key."""

    def total(self, record: Record) -> int:
        return super().total(record) // (0 if (record.key, record.value) == ("f", 9) else 1)


class Mails(Sum):
    """Sends a mail for each large sum, whether its commit takes place or not."""

    def answer(self, record: Record, total: int | None) -> None:
        if total is not None and total > 9:
            MAILS.append(f"{record.key} {total}")
        super().answer(record, total)


class CountsCalls(Sum):
    """Counts what it has processed in its class, for a report."""

    calls: ClassVar[Counter[str]] = Counter()

    def answer(self, record: Record, total: int | None) -> None:
        self.calls["processed"] += 1
        super().answer(record, total)


class KeepsAllTimes(Sum):
    """Notes the time of each record in its store, and never deletes one."""

    def keep(self, record: Record, total: int | None) -> None:
        super().keep(record, total)
        self.context.get_store("counts").put(f"{record.key} at {record.timestamp}", 1)


class KeepsAllInAnAttribute(Sum):
    """Notes each record that it has processed in an attribute."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.processed: set[tuple[str, int]] = set()

    def keep(self, record: Record, total: int | None) -> None:
        super().keep(record, total)
        self.processed.add((record.key, record.timestamp))


class SchedulesForEachRecord(Sum):
    """Schedules a punctuator with each record, and cancels none."""

    def answer(self, record: Record, total: int | None) -> None:
        self.context.schedule("300d", self.tick, WALL_CLOCK_TIME)
        super().answer(record, total)

    def tick(self, now_ms: int) -> None:
        """Do nothing."""


class Unlogged(Sum):
    """Is right, but its store is not logged."""


_PLAIN = (
    *(InAnAttribute, InTheClass, InTheModule, InADefault, in_a_closure(), NotPut, OneKeyForAll, WallClock, StreamTime),
    *(MachineClock, FirstSeen, OldCache, OnlyInTheSecondTask, BuffersUntilThree, TombstoneIsZero, TombstoneIsDropped),
    *(NullKey, HashOfTheKey, RandomKey, Sampled, RaisesRarely, CountsCalls, KeepsAllTimes, KeepsAllInAnAttribute),
    SchedulesForEachRecord,
)
SUMS: dict[type[Processor], dict[str, bool]] = {
    **{each: {} for each in _PLAIN},
    LastOfTheCommit: {"cached": True},
    Unlogged: {"logged": False},
}
"""Processors with one bug each, with the options of `counting`; the suite of `Sum` finds them."""
