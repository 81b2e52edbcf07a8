"""InputTopic and OutputTopic: the handles of a test driver that write to one topic and read one topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock import Duration, Headers, Record, duration_ms


class InputTopic:
    """Pipes records to one source topic."""

    def __init__(self, topic: str, pipe: Callable[[str, Any, Any, int | None, Headers], None]) -> None:
        self.topic = topic
        self._pipe = pipe

    def pipe(self, key: Any, value: Any, timestamp: int | None = None, headers: Headers = ()) -> None:
        """Send one record and run everything it causes."""
        self._pipe(self.topic, key, value, timestamp, headers)

    def pipe_values(self, values: Iterable[Any], *, start: int = 0, advance: Duration = "0ms") -> None:
        """Send values without keys, with timestamps from `start` (ms) on, `advance` apart."""
        step = duration_ms(advance, "pipe_values: advance")
        for number, value in enumerate(values):
            self.pipe(None, value, start + number * step)


class OutputTopic:
    """Reads records of one output topic."""

    def __init__(self, topic: str, unread: Callable[[], Iterator[Record]]) -> None:
        self.topic = topic
        self._unread = unread

    def read(self) -> Record | None:
        """Return the next record that was not read yet, or None."""
        return next(self._unread(), None)

    def read_all(self) -> list[Record]:
        """Return every record that was not read yet."""
        return list(self._unread())

    def read_pairs(self) -> list[tuple[Any, Any]]:
        """Return key and value of every record that was not read yet."""
        return [(record.key, record.value) for record in self.read_all()]

    def read_values(self) -> list[Any]:
        """Return the values of every record that was not read yet."""
        return [record.value for record in self.read_all()]

    def read_table(self) -> dict[Any, Any]:
        """Return the last value of each key among the unread records; a tombstone removes its key."""
        table: dict[Any, Any] = {}
        for record in self.read_all():
            if record.value is None:
                table.pop(record.key, None)
            else:
                table[record.key] = record.value
        return table
