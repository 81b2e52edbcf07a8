"""Right processors of several kinds, what they answer in plain Python, and processors with one bug each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Processor, ProcessorContext, Record
from penstock.plugins.testing.contracts.program_runs import ClockStep


class Parts(Processor):
    """What the processors below share: a store, and records that are none of theirs."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.store = context.get_store("store")


# -------------------------------------------------------------------------------- a record in ten seconds


class Seldom(Parts):
    """Passes a key's record if the last one that passed is at least 10 s older."""

    def process(self, record: Record) -> None:
        if record.key is not None:
            last = self.store.get(record.key)
            if last is None or self.is_due(record.timestamp - last):
                self.store.put(record.key, self.time(record))
                self.context.forward(record)

    def is_due(self, age: int) -> bool:
        return age >= 10_000

    def time(self, record: Record) -> int:
        return record.timestamp


class SeldomEdge(Seldom):
    """Does not pass a record exactly 10 s after the last one."""

    def is_due(self, age: int) -> bool:
        return age > 10_000


class SeldomStreamTime(Seldom):
    """Notes stream time instead of the record's time."""

    def time(self, record: Record) -> int:
        return self.context.current_stream_time_ms()


def seldom(records: Iterable[Record]) -> Iterable[Record]:
    last: dict[str, int] = {}
    for record in records:
        if record.key is not None and record.timestamp - last.get(record.key, -10_000) >= 10_000:
            last[record.key] = record.timestamp
            yield record


# -------------------------------------------------------------------------------- counts of windows


class Windows(Parts):
    """Counts in windows of 10 s with a grace of 5 s, and deletes windows that are over."""

    size, grace = 10_000, 5_000

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        context.schedule("10s", self.clean, STREAM_TIME)

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        start = self.start(record)
        if not self.is_over(start, self.context.current_stream_time_ms()):
            count = (self.store.get(f"{start:015} {record.key}") or 0) + 1
            self.store.put(f"{start:015} {record.key}", count)
            self.context.forward(Record(record.key, [start, count], record.timestamp))

    def start(self, record: Record) -> int:
        return record.timestamp // self.size * self.size

    def is_over(self, start: int, stream_time: int) -> bool:
        return start + self.size + self.grace <= stream_time

    def clean(self, stream_time: int) -> None:
        for name, _ in self.store.all():
            if Windows.is_over(self, int(name[:15]), stream_time):
                self.store.delete(name)


class GraceEdge(Windows):
    """Takes a record into a window that is over since exactly now."""

    def is_over(self, start: int, stream_time: int) -> bool:
        return start + self.size + self.grace < stream_time


class NoGrace(Windows):
    """Forgets the grace."""

    grace = 0


class LastWindow(Windows):
    """Counts a late record in the present window."""

    def start(self, record: Record) -> int:
        return self.context.current_stream_time_ms() // self.size * self.size


class WindowsKept(Windows):
    """Deletes no window."""

    def clean(self, stream_time: int) -> None:
        """Do nothing."""


class CleansEarly(Windows):
    """Deletes windows when they end, though late records still count."""

    def clean(self, stream_time: int) -> None:
        super().clean(stream_time + self.grace)


def windows(records: Iterable[Record]) -> Iterable[Record]:
    counts: dict[tuple[str, int], int] = {}
    stream_time = 0
    for record in records:
        stream_time = max(stream_time, record.timestamp)
        start = record.timestamp // 10_000 * 10_000
        if record.key is not None and start + 15_000 > stream_time:
            counts[record.key, start] = counts.get((record.key, start), 0) + 1
            yield Record(record.key, [start, counts[record.key, start]], record.timestamp)


# -------------------------------------------------------------------------------- the wall clock


class EachMinute(Parts):
    """Sends the last value of each key at the end of a minute of the wall clock, and forgets it."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        context.schedule("1m", self.send, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.store.put(record.key, record.value)

    def send(self, now_ms: int) -> None:
        for key, value in list(self.store.all()):
            self.context.forward(Record(key, [value, self.now(now_ms)], 0))
            self.forget(key)

    def now(self, now_ms: int) -> int:
        return now_ms

    def forget(self, key: str) -> None:
        self.store.delete(key)


class CountsMinutes(EachMinute):
    """Takes the number of calls for the number of minutes."""

    def now(self, now_ms: int) -> int:
        calls = (self.store.get("calls of the minute") or 0) + 1
        return calls * 60_000 if now_ms % 60_000 == 0 and now_ms < 60_000 * calls else now_ms // 60_000 * 60_000


class SendsAgain(EachMinute):
    """Forgets values only in tasks that are open since the last minute."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.new: set[str] = set()

    def process(self, record: Record) -> None:
        super().process(record)
        self.new.add(record.key)

    def forget(self, key: str) -> None:
        if key in self.new:
            super().forget(key)


class MinutesOfRecords(EachMinute):
    """Is scheduled by stream time."""

    def init(self, context: ProcessorContext) -> None:
        Parts.init(self, context)
        context.schedule("1m", self.send, STREAM_TIME)


def each_minute(records: Iterable[Any]) -> Iterable[tuple[str, list[int]]]:
    last: dict[str, int] = {}
    due = 60_000
    for each in records:
        if isinstance(each, ClockStep):
            if each.now_ms >= due:
                yield from [(key, [value, each.now_ms]) for key, value in last.items()]
                last.clear()
                due = (each.now_ms // 60_000 + 1) * 60_000
        elif each.key is not None:
            last[each.key] = each.value
            if each.value is None:
                del last[each.key]


# -------------------------------------------------------------------------------- two topics


class Joins(Parts):
    """Joins clicks with the last value of the user."""

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        metadata = self.context.record_metadata
        if metadata is not None and metadata.topic == "users":
            self.update(record)
        elif (user := self.user(record)) is not None:
            self.context.forward(record.with_value([user, record.value]))

    def update(self, record: Record) -> None:
        self.store.put(record.key, record.value)

    def user(self, record: Record) -> Any:
        return self.store.get(record.key)


class KeepsDeletedUsers(Joins):
    """Ignores that a user was deleted."""

    def update(self, record: Record) -> None:
        if record.value is not None:
            super().update(record)


class RemembersUsers(Joins):
    """Remembers users that it has found, and does not see updates."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.found: dict[str, Any] = {}

    def user(self, record: Record) -> Any:
        if record.key not in self.found:
            self.found[record.key] = super().user(record)
        return self.found[record.key]


class OldUsersOnly(Joins):
    """Does not see a user that has the time of the click."""

    def update(self, record: Record) -> None:
        super().update(record)
        self.store.put(f"time of {record.key}", record.timestamp)

    def user(self, record: Record) -> Any:
        return None if self.store.get(f"time of {record.key}") == record.timestamp else super().user(record)


def joins(records: Iterable[tuple[str, Record]]) -> Iterable[Record]:
    users: dict[str, int] = {}
    for topic, record in records:
        if record.key is not None and topic == "users":
            users[record.key] = record.value
        elif record.key is not None and users.get(record.key) is not None:
            yield record.with_value([users[record.key], record.value])


# -------------------------------------------------------------------------------- two outputs


class Routes(Parts):
    """Sends even values to one topic, and the others to another one."""

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.context.forward(record, self.way(record))

    def way(self, record: Record) -> str:
        return "even" if (record.value or 0) % 2 == 0 else "odd"


class RoutesByTask(Routes):
    """Sends the values of the second task and those after it to one topic."""

    def way(self, record: Record) -> str:
        return "even" if self.context.task_id != "0_0" else super().way(record)


class RoutesDeletions(Routes):
    """Sends deletions to the other topic."""

    def way(self, record: Record) -> str:
        return "odd" if record.value is None else super().way(record)


def routes(records: Iterable[Record]) -> Iterable[tuple[str, Record]]:
    for record in records:
        if record.key is not None:
            yield "odd" if (record.value or 0) % 2 else "even", record


# -------------------------------------------------------------------------------- the tags of a key


class Tags(Parts):
    """Answers with all values of a key so far."""

    def process(self, record: Record) -> None:
        if record.key is not None:
            tags = {*(self.store.get(record.key) or ()), f"tag {record.value}"}
            self.store.put(record.key, self.listed(tags))
            self.context.forward(record.with_value(self.listed(tags)))

    def listed(self, tags: set[str]) -> list[str]:
        return sorted(tags)


class TagsOfASet(Tags):
    """Lists a set as it comes."""

    def listed(self, tags: set[str]) -> list[str]:
        return list(tags)


class AllTags(Tags):
    """Lists the tags of a key as often as they came."""

    def process(self, record: Record) -> None:
        if record.key is not None:
            tags = [*(self.store.get(record.key) or ()), f"tag {record.value}"]
            self.store.put(record.key, tags)
            self.context.forward(record.with_value(sorted(set(tags))))


def tags(records: Iterable[Record]) -> Iterable[Record]:
    found: dict[str, set[str]] = {}
    for record in records:
        if record.key is not None:
            found.setdefault(record.key, set()).add(f"tag {record.value}")
            yield record.with_value(sorted(found[record.key]))
