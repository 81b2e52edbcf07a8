"""A program with every kind of store, whose outputs show the content for the key of each record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import Application, Processor, PunctuationType, Record, Topology, ValueAndTimestamp, Windowed
from tests.replicas.every_kind import STORES

from .runs import settings


class Show(Processor):
    """Puts each record into every store, and forwards what the stores have for its key; a timer forwards, too."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.kept = {each.name: context.get_store(each.name) for each in STORES if each.name != "recent"}

    def process(self, record: Record) -> None:
        key, value, time, stores = record.key, record.value, record.timestamp, self.kept
        stores["plain"].put(key, (stores["plain"].get(key) or "") + value)
        stores["expiring"].put(key, value)
        stores["stamped"].put(key, ValueAndTimestamp(value, time))
        stores["windows"].put(key, value, time // 10 * 10)
        stores["twice"].put(key, value, time // 10 * 10)
        stores["sessions"].put(Windowed(key, time // 20 * 20, time), value)
        stores["versions"].put(key, value, time)
        stores["lists"].add(key, value)
        self.context.timer(key, time + 1000, PunctuationType.STREAM_TIME)
        self.context.forward(record.with_value(self.text(key, time)))

    def text(self, key: str, time: int) -> str:
        stores = self.kept
        found: list[Any] = [stores["plain"].get(key), stores["expiring"].get(key), stores["stamped"].get(key)]
        found += [list(stores[name].fetch(key, max(0, time - 30), time)) for name in ("windows", "twice")]
        found += [list(stores["sessions"].find_sessions(key, max(0, time - 40), time))]
        found += [stores["versions"].get(key, as_of=time - 10) if time > 10 else None]
        return repr([*found, list(stores["lists"].get(key))])

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, f"timer {at}", at))


def every_kind(directory: Path, changelog: str, topic: str = "in") -> Application:
    """Return an application with every kind of store."""
    topology = (
        Topology()
        .add_source("in", topic)
        .add_processor("show", Show, "in", stores=STORES)
        .add_sink("out", "out", "show")
    )
    return Application("shop", topology, **settings(directory, changelog))


class Count(Processor):
    """Appends to a key's total and to that of its window, and forwards both."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.totals, self.windows = context.get_store("totals"), context.get_store("windows")

    def process(self, record: Record) -> None:
        key, start = record.key, record.timestamp // 10 * 10
        total = f"{self.totals.get(key) or ''},{record.value}"
        window = f"{self.windows.fetch(key, start) or ''},{record.value}"
        self.totals.put(key, total)
        self.windows.put(key, window, start)
        self.context.forward(record.with_value(f"{total} {window}"))


class Append(Processor):
    """Appends each record to what the store `kept` has for its key, and forwards that."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("kept")
        text = (store.get(record.key) or "") + record.value
        store.put(record.key, text)
        self.context.forward(record.with_value(text))


class Numbered(Processor):
    """Forwards how many records its task has processed: a number under one key, whatever the record's."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("kept")
        number = int(store.get("number") or 0) + 1
        store.put("number", str(number))
        self.context.forward(record.with_value(str(number)))
