"""Right programs, and programs with one bug each that shows where the surroundings of a program are others."""

from __future__ import annotations

import json
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar

from penstock import ProcessorContext, Record

from .planted_processors import Parts, Seldom
from .planted_programs import Sum

# -------------------------------------------------------------------------------- sums


class SharedCache(Sum):
    """Has a cache in its class, which each opening clears: two nodes share it."""

    cache: ClassVar[dict[str, int]] = {}

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.cache.clear()

    def total(self, record: Record) -> int:
        return self.cache[record.key] + int(record.value) if record.key in self.cache else super().total(record)

    def keep(self, record: Record, total: int | None) -> None:
        super().keep(record, total)
        self.cache[record.key] = total or 0


class GapIsALoss(Sum):
    """Takes a gap of offsets for lost records, and begins anew."""

    next = -1

    def process(self, record: Record) -> None:
        metadata = self.context.record_metadata
        assert metadata is not None, "a record without metadata"
        if self.next not in (-1, metadata.offset) and record.key is not None:
            self.keep(record, 0)
        self.next = metadata.offset + 1
        super().process(record)


class NotInTheMorning(Sum):
    """Drops records from nine to ten by the machine's clock."""

    def process(self, record: Record) -> None:
        if datetime.now(UTC).hour != 9:
            super().process(record)


class NotOnSundays(Sum):
    """Drops records on Sundays."""

    def process(self, record: Record) -> None:
        if date.today().weekday() != 6:
            super().process(record)


class NotAtMidnight(Sum):
    """Drops records in the first hour of each day."""

    def process(self, record: Record) -> None:
        if time.time() % 86_400 > 3_600:
            super().process(record)


class ThirtyTwoBits(Sum):
    """Packs the time into 32 bits."""

    def keep(self, record: Record, total: int | None) -> None:
        assert struct.pack(">I", record.timestamp)
        super().keep(record, total)


class NothingOfLastYear(Sum):
    """Drops records that are a year old by the wall clock."""

    def process(self, record: Record) -> None:
        if record.timestamp > self.context.current_system_time_ms() - 366 * 86_400_000:
            super().process(record)


class AHundredAtMost(Sum):
    """Takes a hundred records of a task."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        store.put(" records", (store.get(" records") or 0) + 1)
        if store.get(" records") <= 100:
            super().process(record)


class EmptyIsNone(Sum):
    """Takes an empty key for none."""

    def process(self, record: Record) -> None:
        if record.key:
            super().process(record)


class HeaderWithAValue(Sum):
    """Decodes the value of each header."""

    def process(self, record: Record) -> None:
        assert all(value.decode("latin-1") is not None for _, value in record.headers)  # type: ignore[union-attr]
        super().process(record)


class ForwardsElsewhere(Sum):
    """Forwards in a thread of a pool, and waits for it."""

    def answer(self, record: Record, total: int | None) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(super().answer, record, total).result()


# -------------------------------------------------------------------------------- others


class ZeroIsNone(Seldom):
    """Takes the time 0 for none."""

    def process(self, record: Record) -> None:
        if record.key is not None and self.store.get(record.key) == 0:
            self.store.delete(record.key)
        super().process(record)


class Changes(Parts):
    """Passes values that are others than that before of their key."""

    def process(self, record: Record) -> None:
        if record.key is not None and self.form(self.store.get(record.key)) != self.form(record.value):
            self.store.put(record.key, record.value)
            self.context.forward(record)

    def form(self, value: Any) -> Any:
        return value


class ComparesText(Changes):
    """Compares values as text, in which the order of a dict shows."""

    def form(self, value: Any) -> Any:
        return json.dumps(value)


def changes(records: Iterable[Record]) -> Iterator[Record]:
    last: dict[str, Any] = {}
    for record in records:
        if record.key is not None and last.get(record.key) != record.value:
            last[record.key] = record.value
            yield record


class Days(Parts):
    """Sums the values of a key and a day."""

    def process(self, record: Record) -> None:
        if record.key is not None:
            day = self.day(record.timestamp)
            total = self.added(self.store.get(f"{day} {record.key}") or 0, record.value or 0)
            self.store.put(f"{day} {record.key}", total)
            self.context.forward(record.with_value([day, total]))

    def day(self, timestamp: int) -> str:
        return f"{datetime.fromtimestamp(timestamp / 1000, UTC):%Y-%m-%d}"

    def added(self, total: int, value: int) -> int:
        return total + value


class LocalDays(Days):
    """Has the days of the machine's time zone."""

    def day(self, timestamp: int) -> str:
        return f"{datetime.fromtimestamp(timestamp / 1000):%Y-%m-%d}"


class UpToTheNextWeek(Days):
    """Reckons with a time that the last week of the year 9999 does not have."""

    def day(self, timestamp: int) -> str:
        assert datetime.fromtimestamp(timestamp / 1000, UTC) + timedelta(days=7)
        return super().day(timestamp)


class NeverBelowZero(Days):
    """Does not go below 0."""

    def added(self, total: int, value: int) -> int:
        return max(0, total + value)


class LosesDigits(Days):
    """Adds as floats do."""

    def added(self, total: int, value: int) -> int:
        return int(float(total) + value)


class SendsFloats(Days):
    """Sends 3.0 where 3 is expected."""

    def added(self, total: int, value: int) -> int:
        return (total + value) * 1.0 if total + value < 2**53 else total + value  # type: ignore[return-value]


def days(records: Iterable[Record]) -> Iterator[Record]:
    totals: Counter[tuple[str, str]] = Counter()
    for record in records:
        if record.key is not None:
            day = f"{datetime.fromtimestamp(record.timestamp / 1000, UTC):%Y-%m-%d}"
            totals[day, record.key] += record.value or 0
            yield record.with_value([day, totals[day, record.key]])
