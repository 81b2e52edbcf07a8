"""A right visitor, and visitors with one bug each that `ProcessorContract` finds."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from penstock import ProcessorContext, Record, visitor

from .planted_programs import Cached

MAILS: list[str] = []
"""What visitors here did outside."""


class Doubles(Cached):
    """Right, with a cache in front of its store."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.store, self.seen = context.get_store("counts"), 0

    def keep(self, record: Record, total: int | None) -> None:
        super().keep(record, total)
        self.remember(record.key, total)

    def remember(self, key: str, total: int | None) -> None:
        self.cache[key] = total or 0

    @visitor("counts")
    def double(self, key: str, value: int, argument: int) -> None:
        self.seen += 1
        self.change(key, value * argument)
        self.context.forward(Record(key, value * argument, 0))

    def change(self, key: str, value: int) -> None:
        self.store.put(key, value)
        self.remember(key, value)


class NumbersKeys(Doubles):
    """Adds to each value how many keys it has visited, which it counts in an attribute."""

    def change(self, key: str, value: int) -> None:
        super().change(key, value + self.seen)


class KeepsTheLargest(Doubles):
    """Drops a value that is smaller than the largest one so far, which it remembers in an attribute."""

    largest = 0

    def change(self, key: str, value: int) -> None:
        self.largest = max(self.largest, value)
        super().change(key, value if value == self.largest else 0)


class LeavesTheCache(Doubles):
    """Changes the store, and not the cache in front of it."""

    def change(self, key: str, value: int) -> None:
        self.store.put(key, value)


class RenamesForEver(Doubles):
    """Moves each entry to a longer key, which is behind it in the order of the keys, and is visited as well."""

    def change(self, key: str, value: int) -> None:
        self.store.delete(key)
        super().change(key + "+", value)


class RenamesToTheNext(Doubles):
    """Moves each entry one letter on, up to z."""

    def change(self, key: str, value: int) -> None:
        self.store.delete(key)
        super().change("".join(chr(min(ord(each) + 1, ord("z"))) for each in key), value)


class MailsInAVisit(Doubles):
    """Sends a mail for each key that it visits, whether its commit takes place or not."""

    def change(self, key: str, value: int) -> None:
        MAILS.append(f"{key} {value}")
        super().change(key, value)


class CountsInTheClass(Doubles):
    """Counts what it has visited in its class, for a report."""

    visits: ClassVar[Counter[str]] = Counter()

    def change(self, key: str, value: int) -> None:
        self.visits["visited"] += 1
        super().change(key, value)


class VisitsOnce(Doubles):
    """Passes keys that an earlier visit has changed, which it remembers in an attribute."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.visited: set[str] = set()

    def change(self, key: str, value: int) -> None:
        if key not in self.visited:
            self.visited.add(key)
            super().change(key, value)


VISITORS: dict[type[Doubles], dict[str, Any]] = {
    **{bug: {} for bug in (NumbersKeys, KeepsTheLargest, LeavesTheCache, RenamesForEver, RenamesToTheNext)},
    **{bug: {} for bug in (CountsInTheClass, VisitsOnce)},
    MailsInAVisit: {"probe": staticmethod(lambda: MAILS)},
}
"""Processors whose visitor has a bug, with more attributes of the suite that finds it."""
