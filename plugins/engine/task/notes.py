"""Note: a few bytes that an application keeps in its log beside its commits; and the list of all notes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from penstock import Application, Lease, Log
from penstock.support.names import LAYOUTS
from penstock.task.visits import Visit

Value = TypeVar("Value")


@dataclass(frozen=True)
class Note(Generic[Value]):
    """A note under an application's id, by its name there. All methods raise LogError.

    `default`: the bytes of a note that is not there, or was taken back. `suffix` follows the id: a note of an id of its
    own stays when the application's commits are deleted, and its other notes with them.
    """

    name: str
    encode: Callable[[Value], bytes]
    decode: Callable[[bytes], Value]
    default: bytes
    suffix: str = ""

    def of(self, part: str | int) -> Note[Value]:
        """Return the note of one part: a slot, or an incarnation of the application."""
        return replace(self, name=f"{self.name}-{part}")

    def read(self, application_id: str, log: Log) -> Value:
        """Return the value."""
        return self.decode(log.get_meta(application_id + self.suffix, self.name) or self.default)

    def write(self, application_id: str, log: Log | Lease, value: Value) -> None:
        """Write a value; durable when it returns.

        With a lease it raises FencedError where that was lost: a process that was frozen must not change its
        successor's notes.
        """
        log.put_meta(application_id + self.suffix, self.name, self.encode(value))

    def take_back(self, application_id: str, log: Log | Lease) -> None:
        """Write nothing in place of the value. Raises as `write`."""
        log.put_meta(application_id + self.suffix, self.name, b"")

    def change(self, application_id: str, log: Log, change: Callable[[Value], Value]) -> None:
        """Replace the value by the result of `change` for it, in one step; see `Log.change_meta`."""
        log.change_meta(
            application_id + self.suffix,
            self.name,
            lambda saved: self.encode(change(self.decode(saved or self.default))),
        )


@dataclass(frozen=True)
class Paused:
    """The paused sub-topologies, by number; None: all, also those that a later program adds."""

    subtopologies: frozenset[int] | None = frozenset()

    def __bool__(self) -> bool:
        return self.subtopologies != frozenset()

    def of(self, application: Application) -> frozenset[int]:
        """Return the numbers of the paused sub-topologies of an application."""
        every = frozenset(subtopology.id for subtopology in application.program.subtopologies)
        return every if self.subtopologies is None else self.subtopologies & every

    def to_json(self) -> bytes:
        """Return the bytes of a note."""
        numbers = None if self.subtopologies is None else sorted(self.subtopologies)
        return json.dumps({"subtopologies": numbers}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Paused:
        """Return the value of a note's JSON."""
        numbers = json.loads(data)["subtopologies"]
        return cls(None if numbers is None else frozenset(numbers))


def _json(name: str, default: bytes, *, suffix: str = "", sort_keys: bool = False) -> Note[Any]:
    return Note(name, lambda value: json.dumps(value, sort_keys=sort_keys).encode(), json.loads, default, suffix)


_text = partial(Note[str], encode=str.encode, decode=bytes.decode, default=b"")

PROGRAM = _json("program", b"{}")
"""The program that ran last; see `ProgramNote`."""
EPOCH = _text("epoch")
"""The epoch, a random name."""
CHANGELOG = _text("changelog")
"""Where the changelog is, without secrets; by incarnation."""
CLUSTER = _text("cluster")
"""The id of the cluster on which the application ran last."""
COMMITTED = _json("committed", b"{}")
"""The partitions with a committed position, by topic; by incarnation."""
COMMITTED_IDS = _json("committed-ids", b"{}", sort_keys=True)
"""The ids of their topics; by incarnation."""
PAUSED = Note("paused", Paused.to_json, Paused.from_json, Paused().to_json())
"""The paused sub-topologies."""
VISITS = replace(_json("visits", b"[]"), decode=lambda data: [Visit(*each) for each in json.loads(data)])
"""The visits that were asked for, the oldest first."""
RESTORING = _text("restoring")
"""What fills the application now, which must not start until that has ended: a backup, or an import of a store."""
SLOT = _json("slot", b"null")
"""The executor that has a slot; by slot. See `Claim`."""
APPLICATION_SERVER = _text("application_server")
"""The URL of the server of queries on the machine where the application runs."""
TASK_SERVERS = _json("task_servers", b"[]")
"""The servers of queries beside tasks; see `TaskServer`."""
STORED_AS = _json("stored-as", b"{}", suffix=LAYOUTS)
"""The id under which the log has the application since it was resharded; see `StoredAs`."""
GROWN = _json("grown", b"{}", suffix=LAYOUTS)
"""The topics that had grown before the application was resharded; by the id of the layout."""
RESHARDING = _json("resharding", b"{}", suffix=LAYOUTS)
"""The resharding that has begun."""
