"""Topic ids: checks that a topic is still the one of a task's positions. A topic that is made again is another."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Any
from zlib import crc32

from penstock import ENGINE_STATE_BYTES, Log

EVERY_SECONDS = 2.0
"""How often the topics of open tasks are looked at; on Kafka each look is a request for all tasks of a process."""

_KEY = b'"ids":'


class TopicMadeAgainError(Exception):
    """A topic of an open task was deleted and made again: open the task again, which decides where it continues."""


def with_ids(engine_state: bytes, ids: Mapping[str, str]) -> bytes:
    """Return a task's engine state with the ids of the topics that it reads, if there is room for them.

    They are part of the commit, so that they change in one step with the positions.
    """
    if _KEY in engine_state:
        engine_state = without_ids(engine_state)
    short = {topic: _short(each) for topic, each in sorted(ids.items()) if each}
    if not short:
        return engine_state
    text = json.dumps({"ids": short}, separators=(",", ":")).encode()
    found = text if not engine_state else engine_state[:-1] + b"," + text[1:]
    return found if len(found) <= ENGINE_STATE_BYTES else engine_state


def without_ids(engine_state: bytes) -> bytes:
    """Return an engine state without the ids in it."""
    state: dict[str, Any] = json.loads(engine_state) if engine_state else {}
    state.pop("ids", None)
    return json.dumps(state, separators=(",", ":")).encode() if state else b""


def replaced(engine_state: bytes, ids: Mapping[str, str]) -> set[str]:
    """Return the topics that have another id now than when this state was saved; unknown ids are no others."""
    saved: dict[str, str] = json.loads(engine_state).get("ids", {}) if engine_state else {}
    return {topic for topic, each in ids.items() if each and topic in saved and saved[topic] != _short(each)}


def differ(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether a topic has another id than before."""
    return any(each and now.get(topic) and now[topic] != each for topic, each in before.items())


class RecentIds:
    """Ids of topics that a process reads, up to `EVERY_SECONDS` old by the stopwatch `seconds`. Thread-safe."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._found: Mapping[str, str] = {}
        self._names: set[str] = set()
        self._asked_at = -inf

    def of(self, log: Log, names: Collection[str]) -> Mapping[str, str]:
        """Return the ids of topics, and maybe of others."""
        with self._lock:
            now = self._seconds()
            if not self._names.issuperset(names) or now - self._asked_at >= EVERY_SECONDS:
                self._names.update(names)
                self._found, self._asked_at = log.topic_ids(self._names), now
            return self._found


def _short(topic_id: str) -> str:
    return f"{crc32(topic_id.encode()):08x}"
