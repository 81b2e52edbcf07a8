"""The engine state of new tasks: times, schedules and numbers of operators, of all old tasks together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import IncompatibleStateError

_LATER = frozenset({"observed", "closed", "wait", "arrived", "moved", "stream_time", "ticket"})
"""Numbers of operators of which the highest counts: times that only grow, and counters."""
_EARLIER = frozenset({"next_end", "min_time", "first", "next_emit"})
"""Those of which the lowest counts: when something is due."""
_SENT = "closed_to"
"""Windows up to this end were sent when they closed."""


def merged_state(where: str, states: Sequence[bytes], dropped: frozenset[str]) -> dict[str, Any]:
    """Return the engine state with which each new task of a sub-topology begins, without partition times.

    Stream time is the highest of the old tasks: nothing that was closed is opened again. A schedule that `init` makes
    is due when the first of them was. `dropped`: stores whose numbers go. Raises IncompatibleStateError, naming the
    node, for a schedule that the tasks do not have in common, and for numbers with no rule.
    """
    read = [json.loads(each) for each in states if each]
    made: dict[str, Any] = {
        "stream": max((each.get("stream", -1) for each in read), default=-1),
        "wall": max((each.get("wall", 0) for each in read), default=0),
    }
    if stores := _numbers(where, read, dropped):
        made["stores"] = stores
    if timers := _schedules(where, read):
        made["timers"] = timers
    if names := {name: alias for each in read for name, alias in each.get("names", {}).items()}:
        made["names"] = names
    return made


def with_partition_times(state: Mapping[str, Any], times: Mapping[str, int]) -> bytes:
    """Return an engine state as it is saved, with the times of the partitions that the task goes on reading."""
    made = dict(state)
    if any(time >= 0 for time in times.values()):
        made["partitions"] = dict(times)
    return json.dumps(made, separators=(",", ":")).encode()


def partition_times(states: Sequence[bytes]) -> dict[str, int]:
    """Return the time of each input partition that the old tasks have read."""
    return {name: time for each in states if each for name, time in json.loads(each).get("partitions", {}).items()}


def _numbers(where: str, read: Sequence[Mapping[str, Any]], dropped: frozenset[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, list[int]]] = {}
    for state in read:
        for store, values in state.get("stores", {}).items():
            if store.partition("/")[0] not in dropped:
                for name, value in values.items():
                    found.setdefault(store, {}).setdefault(name, []).append(value)
    made: dict[str, dict[str, int]] = {}
    for store, values in found.items():
        made[store] = {name: _number(where, store, name, numbers) for name, numbers in values.items()}
    return made


def _number(where: str, store: str, name: str, numbers: Sequence[int]) -> int:
    if name in _LATER:
        return max(numbers)
    if name in _EARLIER:
        return min(numbers)
    if len(set(numbers)) == 1 and name == _SENT:
        return numbers[0]
    reason = (
        f"it sends windows when they close, and its tasks are at different times ({min(numbers)} to {max(numbers)})"
        if name == _SENT
        else f"it saves a number {name!r}, and no rule says what it is for several tasks together"
    )
    raise IncompatibleStateError(f"{where}, {store!r}: {reason}")


def _schedules(where: str, read: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[str | None]]]:
    made: dict[str, dict[str, list[str | None]]] = {}
    for state in read:
        for node, keys in state.get("timers", {}).items():
            for key, texts in keys.items():
                before = made.setdefault(node, {}).get(key)
                made[node][key] = list(texts) if before is None else _earlier(where, node, before, texts)
    return made


def _earlier(where: str, node: str, first: Sequence[str | None], second: Sequence[str | None]) -> list[str | None]:
    """Return the schedules of a node with the earlier times of two tasks."""
    if [_form(each) for each in first] != [_form(each) for each in second]:
        raise IncompatibleStateError(
            f"{where}, node {node!r}: its tasks have different schedules, so they belong to single keys or records, "
            "and a schedule does not say to which: keep in a store what is to be done and when"
        )
    return [
        None if one is None or other is None else min(one, other, key=_due)
        for one, other in zip(first, second, strict=True)
    ]


def _form(text: str | None) -> str | None:
    """Return what a schedule calls and how often, without when it is due."""
    return None if text is None else text[0] + text.partition("/")[2]


def _due(text: str) -> int:
    return int(text[1:].partition("/")[0])
