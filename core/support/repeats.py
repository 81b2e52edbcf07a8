"""Repeats: of log lines that repeat, the first is written at once, then one a minute with the number since."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

EVERY_MS = 60_000


@dataclass
class _Line:
    """The last line of a kind, and the number of lines suppressed since."""

    written_at_ms: int
    logger: logging.Logger
    level: int
    message: str
    arguments: tuple[object, ...]
    unwritten: int = 0


class Repeats:
    """Writes log lines that may come with every record. Any thread may call it.

    `now_ms` returns the time in ms. Lines of the same `kind` are counted together, so a kind must not contain text that
    differs from record to record.

    >>> repeats = Repeats(lambda: 0)
    >>> repeats.log(logging.getLogger("shop"), logging.WARNING, "skipped", "offset %d: skipped", 17)
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lines: dict[Hashable, _Line] = {}
        self._lock = threading.Lock()

    def log(self, logger: logging.Logger, level: int, kind: Hashable, message: str, *arguments: object) -> None:
        """Write a line, or only count it if a line of this kind was written less than a minute ago."""
        with self._lock:
            now, line = self._now_ms(), self._lines.get(kind)
            if line is None:
                self._lines[kind] = _Line(now, logger, level, message, arguments)
                logger.log(level, message, *arguments)
                return
            line.logger, line.level, line.message, line.arguments = logger, level, message, arguments
            line.unwritten += 1
            if _is_due(line, now):
                _write(line, now)

    def write_due(self) -> None:
        """Write the counts of suppressed lines whose last line is a minute old, though none follows."""
        with self._lock:
            now = self._now_ms()
            for kind, line in list(self._lines.items()):
                if _is_due(line, now):
                    if line.unwritten:
                        _write(line, now)
                    else:
                        del self._lines[kind]  # the next of this kind is a first one again

    def write_rest(self) -> None:
        """Write the counts that were not written yet, at the end."""
        with self._lock:
            now = self._now_ms()
            for line in self._lines.values():
                if line.unwritten:
                    _write(line, now)
            self._lines.clear()


def _is_due(line: _Line, now: int) -> bool:
    # A clock that was set back must not silence a kind.
    return not 0 <= now - line.written_at_ms < EVERY_MS


def _write(line: _Line, now: int) -> None:
    message, arguments = line.message, line.arguments
    if line.unwritten > 1:
        message += " (the last of %d in %d s)"
        arguments = (*arguments, line.unwritten, max(0, now - line.written_at_ms) // 1000)
    line.logger.log(line.level, message, *arguments)
    line.written_at_ms, line.unwritten = now, 0
