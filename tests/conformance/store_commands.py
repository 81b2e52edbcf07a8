"""Processors whose records are commands to a window, session or versioned store, as in the vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock import Processor, Record
from penstock.record import Windowed
from penstock.store.kinds.versioned import NOT_PUT, VALID_TO_UNDEFINED, VersionedRecord


def text(value: Any) -> str:
    """S(x) of the vectors: "-" for null, else the text."""
    return "-" if value is None else str(value)


class StoreCommands(Processor):
    """Performs the command in each record's value on store `s`, and forwards the command with its answer."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store("s")

    def answer(self, record: Record) -> str:
        raise NotImplementedError

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(f"{record.value} -> {self.answer(record)}"))


def listed(entries: Any) -> str:
    """Return the entries of a windowed scan as a list in its order."""
    with entries as found:
        return windowed_list(found)


def listed_by_key(entries: Any) -> str:
    """Return the entries of a windowed scan as a list by key, start and end; Kafka's order depends on the store."""
    with entries as found:
        return windowed_list(sorted(found, key=lambda entry: entry[0]))


def windowed_list(entries: Iterable[tuple[Windowed, Any]]) -> str:
    return "[" + ",".join(f"{key.key}@{key.start}-{key.end}={value}" for key, value in entries) + "]"


def open_end(key: str) -> str | None:
    return None if key == "*" else key


class WindowCommands(StoreCommands):
    def answer(self, record: Record) -> str:
        store, key = self.store, record.key
        command, *arguments = record.value.split(" ")
        if command == "put":
            store.put(key, arguments[0], record.timestamp)
            return "ok"
        if command == "del":
            store.put(key, None, record.timestamp)
            return "ok"
        if command == "get":
            return text(store.fetch(key, int(arguments[0])))
        if command in ("fetch", "bfetch"):
            fetch = store.fetch if command == "fetch" else store.backward_fetch
            with fetch(key, *map(int, arguments)) as entries:
                return "[" + ",".join(f"{start}={value}" for start, value in entries) + "]"
        if command == "krange":
            low, high, *times = arguments
            return listed_by_key(store.fetch_range(open_end(low), open_end(high), *map(int, times)))
        if command == "fetchall":
            return listed_by_key(store.fetch_all(*map(int, arguments)))
        if command == "all":
            return listed_by_key(store.all())
        raise ValueError(f"unknown command {record.value!r}")


class SessionCommands(StoreCommands):
    def answer(self, record: Record) -> str:
        store, key = self.store, record.key
        command, *arguments = record.value.split(" ")
        if command == "put":
            store.put(Windowed(key, int(arguments[0]), int(arguments[1])), arguments[2])
            return "ok"
        if command == "rm":
            store.remove(Windowed(key, *map(int, arguments)))
            return "ok"
        if command == "get":
            return text(store.fetch_session(key, *map(int, arguments)))
        if command == "fetch":
            return listed(store.fetch(key))
        if command == "bfetch":
            return listed(store.backward_fetch(key))
        if command == "find":
            return listed(store.find_sessions(key, *map(int, arguments)))
        if command == "bfind":
            return listed(store.backward_find_sessions(key, *map(int, arguments)))
        if command == "findrange":
            low, high, *times = arguments
            return listed_by_key(store.find_sessions_range(open_end(low), open_end(high), *map(int, times)))
        raise ValueError(f"unknown command {record.value!r}")


class VersionedCommands(StoreCommands):
    def answer(self, record: Record) -> str:
        store, key, timestamp = self.store, record.key, record.timestamp
        command, *arguments = record.value.split(" ")
        if command in ("put", "putnull"):
            valid_to = store.put(key, arguments[0] if arguments else None, timestamp)
            if valid_to == NOT_PUT:
                return "not_put"
            return f"valid_to={'undefined' if valid_to == VALID_TO_UNDEFINED else valid_to}"
        if command == "del":
            return shown(store.delete(key, timestamp))
        if command == "get":
            return shown(store.get(key))
        if command == "asof":
            return shown(store.get(key, int(arguments[0])))
        raise ValueError(f"unknown command {record.value!r}")


def shown(version: VersionedRecord | None) -> str:
    return "-" if version is None else f"{version.value}@{version.timestamp}"
