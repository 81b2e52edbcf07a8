"""Visits: calls visitors with the entries of a store, a portion at a time, and keeps the position."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import TopologyError
from ..processor import Visitor
from ..program.nodes import ProcessorNode
from ..program.visited import check_visitors_of, visited_store, visitor_name
from ..program.wrapping import innermost, visitor_of
from ..store import StateStore, VisitableStore
from ..support.callbacks import check_result
from .failures import RECORD_ERRORS
from .progress import TaskProgress

PORTION = 500
"""About how many entries are visited between two turns of the records."""
_PREFIX = 256
"""So many bytes of a row's key are saved, for a commit has little room: rows that agree in them are of one portion."""

_log = logging.getLogger("penstock.task")


class Visit(NamedTuple):
    """A visit that was asked for. `number` grows with each; `visitor`: node and method, "NODE.METHOD"; JSON data."""

    number: int
    visitor: str
    argument: Any = None
    is_stopped: bool = False


@dataclass
class VisitProgress:
    """How far a task is with the last visit of a visitor. `at`: the first row that is left; None: it is over."""

    number: int
    at: bytes | None = b""
    visited: int = 0


class _Found(NamedTuple):
    node: str
    method: Callable[..., Any]
    visitor: Visitor
    store: VisitableStore


class Visits:
    """The visits of one task. `saved` is the `engine_state` of the last commit.

    `failed` is called with the node and the error when a visitor raises.
    """

    def __init__(
        self, saved: bytes, progress: TaskProgress, failed: Callable[[str, Exception | SystemExit], None]
    ) -> None:
        self._progress = progress
        self._failed = failed
        self._found: dict[str, _Found] = {}
        self._states = dict(saved_visits(saved))
        self._asked: Sequence[Visit] | None = None
        self._portion = PORTION
        self._left: list[Visit] = []

    def add(self, node: ProcessorNode, processor: object, stores: Mapping[str, StateStore]) -> None:
        """Add the visitors of a node. Raises TopologyError if a visitor does not fit its store."""
        inner = innermost(processor)
        for name, visitor in check_visitors_of(node, type(inner)).items():
            store = stores[visited_store(node, name, visitor)]
            if not isinstance(store, VisitableStore):
                raise TopologyError(
                    f"node {node.name!r}, visitor {name!r}: store {store.name!r} is a {type(store).__name__}; "
                    "key-value, window and session stores can be visited"
                )
            self._found[visitor_name(node, name)] = _Found(node.name, visitor_of(processor, name), visitor, store)

    def ask(self, visits: Sequence[Visit] | None, portion: int = PORTION) -> None:
        """Set the requested visits of all tasks; None: unknown.

        `portion`: about how many entries are visited between two turns of the records.
        """
        self._portion = portion
        if visits is None or visits is self._asked:
            return
        self._asked = visits
        active = {(each.visitor, each.number) for each in visits if not each.is_stopped}
        newest = max((each.number for each in visits), default=-1)
        for name, state in self._states.items():
            # One that is newer than all of these is not known to a driver that was replaced. Positions take room.
            if state.at is not None and state.number <= newest and (name, state.number) not in active:
                state.at, self._progress.has_changed = None, True
        left = (each for each in visits if each.visitor in self._found and self._is_left(each))
        self._left = sorted(left, key=lambda each: each.number)

    def _is_left(self, visit: Visit) -> bool:
        state = self._states.get(visit.visitor)
        is_over = state is not None and (state.number, state.at is None) >= (visit.number, True)
        return not (visit.is_stopped or is_over)

    @property
    def are_due(self) -> bool:
        """Whether a visit is not over."""
        return bool(self._left)

    def run(self) -> bool:
        """Visit a portion of the entries; return whether there was a visit.

        After one entry at least, it ends early where the driver has no more time, or a visitor asks for a commit.
        """
        if not self._left:
            return False
        visit = self._left[0]
        state = self._states.get(visit.visitor)
        if state is None or state.number < visit.number:
            state = self._states[visit.visitor] = VisitProgress(visit.number)
        self._progress.has_changed = True
        found = self._found[visit.visitor]
        entries = found.store.entries_from(state.at or b"")
        state.at = self._visit(found, visit, state, entries)
        if state.at is None:
            del self._left[0]
            _log.info("visit %s of node %r is over: %d entries", visit.visitor, found.node, state.visited)
        return True

    def _visit(
        self, found: _Found, visit: Visit, state: VisitProgress, entries: Iterator[tuple[bytes, Any, Any]]
    ) -> bytes | None:
        """Visit entries; return where the next portion begins, None at the end."""
        progress, method = self._progress, found.method
        is_given = visit.argument is not None or found.visitor.needs_argument
        more = (visit.argument,) if found.visitor.takes_argument and is_given else ()
        prefix, done = b"", 0
        for row, key, value in entries:
            if done and row[:_PREFIX] != prefix and (done >= self._portion or progress.must_end):
                return row[:_PREFIX]
            prefix, done = row[:_PREFIX], done + 1
            if value is None:
                continue  # it has expired, or a visitor has deleted it
            state.visited += 1
            progress.set_occasion((found.node, row))
            try:
                check_result(method(key, value, *more), "the visitor")
            except RECORD_ERRORS as error:
                self._failed(found.node, error)
            finally:
                progress.set_occasion(None)
        return None

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Return by visitor: number of its last visit (-1: none yet), 1 if that is over, and the entries visited."""
        none = VisitProgress(-1)
        states = {name: self._states.get(name, none) for name in self._found}
        return {name: (each.number, int(each.at is None), each.visited) for name, each in states.items()}

    def state(self) -> dict[str, Any]:
        """Return the progress of all visits, as a part of the engine state."""
        states = {name: [each.number, _text(each.at), each.visited] for name, each in sorted(self._states.items())}
        return {"visits": states} if states else {}


def saved_visits(engine_state: bytes) -> Mapping[str, VisitProgress]:
    """Return the task's progress in the last visit of each visitor, as of a commit with this engine state."""
    saved = json.loads(engine_state).get("visits", {}) if engine_state else {}
    return {
        name: VisitProgress(number, None if at is None else b64decode(at), visited)
        for name, (number, at, visited) in saved.items()
    }


def _text(at: bytes | None) -> str | None:
    return None if at is None else b64encode(at).decode()
