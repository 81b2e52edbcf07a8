"""The engine state of new tasks: times, schedules and numbers of operators, of all old tasks together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import IncompatibleStateError

_LATER = frozenset({"observed", "closed", "wait", "arrived", "moved", "stream_time", "ticket"})
"""Numbers of operators of which the highest counts: times that only grow, and counters."""
_EARLIER = frozenset({"next_end", "closed_to", "min_time", "first", "next_emit"})
"""Those of which the lowest counts: when something is due, and up to where windows were sent when they closed."""
_SENT, _NEXT = "closed_to", "next_end"

SentWindows = Mapping[str, Mapping[int, int]]
"""By store and partition: windows up to this end were sent when they closed."""


def sent_windows(where: str, states: Mapping[int, bytes], dropped: frozenset[str]) -> SentWindows:
    """Return the stores of windows that are sent when they close, if their tasks are at different times.

    `states` are those of the old tasks by partition. A window is sent when time passes its end and its grace. Raises
    IncompatibleStateError for a store that several operators write, whose windows one of them may have sent.
    """
    found: dict[str, dict[int, int]] = {}
    for partition, state in states.items():
        for name, values in (json.loads(state) if state else {}).get("stores", {}).items():
            if _NEXT in values and name.partition("/")[0] not in dropped:
                found.setdefault(name, {})[partition] = _sent_to(values)
    differing = {name: times for name, times in found.items() if len(set(times.values())) > 1}
    for name in differing:
        if "/" in name:
            raise IncompatibleStateError(
                f"{where}, store {name.partition('/')[0]!r}: it sends windows when they close, and the streams that it "
                "is made of are at different times; let each of its tasks process records of a later time"
            )
    return differing


def _sent_to(values: Mapping[str, int]) -> int:
    now = values.get("observed", -1)
    passed = now - values.get("wait", 0) if now >= 0 else -1
    return max(passed, values.get("closed", -1), values.get(_SENT, -1))


def merged_state(where: str, states: Sequence[bytes], dropped: frozenset[str]) -> dict[str, Any]:
    """Return the engine state with which each new task of a sub-topology begins, without partition times.

    Stream time is the highest of the old tasks: nothing that was closed is opened again. A schedule that `init` makes
    is due when the first of them was. `dropped`: stores whose numbers go. Raises IncompatibleStateError, naming the
    node, for a schedule that the tasks do not have in common, and for numbers with no rule.
    """
    read = [json.loads(each) if each else {} for each in states]
    for state in read:
        for values in state.get("stores", {}).values():
            if _NEXT in values:
                values[_SENT] = _sent_to(values)
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
    raise IncompatibleStateError(
        f"{where}, {store!r}: it saves a number {name!r}, and no rule says what it is for several tasks together"
    )


def _schedules(where: str, states: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[str | None]]]:
    found: dict[str, dict[str, list[list[str | None]]]] = {}
    for state in states:
        for node, keys in state.get("timers", {}).items():
            for key, texts in keys.items():
                found.setdefault(node, {}).setdefault(key, []).append(texts)
    return {
        node: {key: _earliest(where, node, of_tasks, len(states)) for key, of_tasks in keys.items()}
        for node, keys in found.items()
    }


def _earliest(where: str, node: str, of_tasks: Sequence[Sequence[str | None]], tasks: int) -> list[str | None]:
    """Return the schedules of a node that all tasks have, with the earliest times.

    A task that has processed nothing yet has not saved those that `init` makes.
    """
    forms = {tuple(map(_form, texts)) for texts in of_tasks}
    are_later = any(text is not None and "/" in text for texts in of_tasks for text in texts)
    if len(forms) > 1 or (are_later and len(of_tasks) < tasks):
        raise IncompatibleStateError(
            f"{where}, node {node!r}: its tasks have different schedules, so they belong to single keys or records, "
            "and a schedule does not say to which: keep in a store what is to be done and when"
        )
    return [
        None if None in texts else min(filter(None, texts), key=lambda text: int(text[1:].partition("/")[0]))
        for texts in zip(*of_tasks, strict=True)
    ]


def _form(text: str | None) -> str | None:
    """Return what a schedule calls and how often, without when it is due."""
    return None if text is None else text[0] + text.partition("/")[2]
