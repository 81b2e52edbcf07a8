"""SplitState: the state of all tasks of a sub-topology, divided among the tasks of the new layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from penstock import (
    Assignment,
    IncompatibleStateError,
    Serde,
    StoreBackend,
    StoreBackendFactory,
    StoreSpec,
    Subtopology,
    TaskId,
)
from penstock.hooks import registry
from penstock.plugins.engine.task.locations import making_state_directory
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.state.copies.state_reader import Portion, Row
from penstock.program.nodes import decorate
from penstock.program.serdes import resolve_serde
from penstock.store import Changes
from penstock.store.envelope import unwrap, wrap
from penstock.store.specs import declared_serdes
from penstock.stores.kinds.row_keys import OWN_ROW, merged_numbers, time_in_row
from penstock.support.names import changelog_topic
from penstock.support.private_files import make_private_directory

from .plan import ReshardPlan, StoreRoute, candidates_of, moves, stays, task_count

Workers = Mapping[TaskId, TaskWorker]
_PORTION_BYTES = 4 * 1024 * 1024
_LEAST_BYTES = 1 << 18
_VERSION = "split"


class SplitState:
    """The logged stores of the new tasks of a sub-topology, a directory for each; `stack` closes them."""

    def __init__(self, directory: Path, stores: Sequence[str], tasks: int, stack: ExitStack) -> None:
        self.stores = sorted(stores)
        factory: StoreBackendFactory = registry().load("store backend", "lmdb")
        self._backends: list[StoreBackend] = []
        for number in range(tasks):
            with making_state_directory(directory):
                make_private_directory(directory / str(number))
            backend = factory(directory / str(number), self.stores)
            self._backends.append(stack.enter_context(closing(backend)))
        self._waiting = [Portion(max(_PORTION_BYTES // tasks, _LEAST_BYTES)) for _ in range(tasks)]
        self.change: Mapping[str, Callable[[bytes], bytes]] = {}
        """By store, the change of its rows."""

    def add(self, partition: int, store: str, row: bytes, data: bytes) -> None:
        """Give a row to a task. Raises StoreError when the disk is full."""
        change = self.change.get(store)
        data = data if change is None else change(data)
        portion = self._waiting[partition]
        portion.add(store, ((row, data),))
        if portion.is_full:
            self._write(partition, portion.take())

    def add_to_all(self, store: str, row: bytes, data: bytes, merged: Callable[[bytes, bytes], bytes]) -> None:
        """Give every task a row of the whole store, `merged` with the one that it has already."""
        self.flush()
        for backend in self._backends:
            other = backend.get(store, row)
            together = data if other is None else merged(other, data)
            backend.write({store: [(row, together)]}, backend.version(), _VERSION)

    def flush(self) -> None:
        """Write the waiting rows."""
        for partition, portion in enumerate(self._waiting):
            self._write(partition, portion.take())

    def _write(self, partition: int, changes: Changes) -> None:
        backend = self._backends[partition]
        if changes:
            backend.write(changes, backend.version(), _VERSION)

    def rows(self, partition: int) -> Iterator[Row]:
        """Yield the rows of a task, by store and key."""
        backend = self._backends[partition]
        return ((store, row, data) for store in self.stores for row, data in backend.range(store))

    def get(self, partition: int, store: str, row: bytes) -> bytes | None:
        """Return the value of a row."""
        return self._backends[partition].get(store, row)


@contextmanager
def split_state(
    plan: ReshardPlan, subtopology: Subtopology, workers: Workers, then: Assignment, directory: Path
) -> Iterator[SplitState]:
    """Return the state of the new tasks of a sub-topology; `then` has all tasks of the new layout.

    Raises IncompatibleStateError, naming the store and a key, where the state is not divided by key.
    """
    layout = {} if subtopology.layouts is None else subtopology.layouts.now
    tasks = task_count(then, subtopology.id)
    logged = [name for name, kept in layout.items() if kept.logged]
    stores = [name for name in logged if name not in plan.dropped]
    own = {task.partition: worker for task, worker in workers.items() if task.subtopology == subtopology.id}
    with ExitStack() as stack:
        split = SplitState(directory, logged, tasks, stack)
        split.change = _changes(plan, subtopology, own, stores, then)
        if moves(plan, then, subtopology.id):
            _divide(plan, subtopology, own, stores, then, split)
        else:
            for partition, store, row, data in _rows(own, stores):
                split.add(partition, store, row, data)
        split.flush()
        yield split


def _rows(own: Mapping[int, TaskWorker], stores: Collection[str]) -> Iterator[tuple[int, str, bytes, bytes]]:
    """Yield the partition of a task, store, key and value of all rows of the old tasks in some stores."""
    for partition, worker in own.items():
        for store, row, data in worker.rows():
            if store in stores:
                yield partition, store, row, data


def _changes(
    plan: ReshardPlan, subtopology: Subtopology, own: Mapping[int, TaskWorker], stores: Sequence[str], then: Assignment
) -> Mapping[str, Callable[[bytes], bytes]]:
    """Return, by store, the function that changes its rows, where these have the numbers of partitions."""
    routes: dict[str, ValueRoute] = {}
    for spec in subtopology.stores:
        if spec.name in stores and isinstance(spec, StoreSpec) and spec.division.partition_in_value is not None:
            routes[spec.name] = ValueRoute(plan, spec, then)
    for _, store, _, data in _rows(own, routes) if routes else ():
        routes[store].check(data)
    return {store: route.moved for store, route in routes.items()}


def _divide(
    plan: ReshardPlan,
    subtopology: Subtopology,
    own: Mapping[int, TaskWorker],
    stores: Sequence[str],
    then: Assignment,
    split: SplitState,
) -> None:
    routes = {store: StoreRoute(plan, subtopology, store, then) for store in stores}
    staying = {store for store in stores if stays(plan, subtopology, store, then)}
    for (partition, store), rows in groupby(_rows(own, stores), key=itemgetter(0, 1)):
        if store not in staying:
            routes[store].check(f"{subtopology.id}_{partition}", partition, (row for *_, row, _ in rows))
    tasks = task_count(then, subtopology.id)
    choose = {store: routes[store].kept(tasks) if store in staying else routes[store].split() for store in stores}
    is_sent = _sent_rows(plan, subtopology, own)
    for partition, store, row, data in _rows(own, stores):
        if store in is_sent and is_sent[store](partition, row):
            continue
        target = choose[store](partition, row)
        if target is None:
            # What has expired for one old task alone stays where windows are sent when they close.
            keeps_rows = partial(merged_numbers, keeps_rows=True)
            split.add_to_all(store, row, data, keeps_rows if store in is_sent else partial(routes[store].merged, row))
        else:
            split.add(target, store, row, data)


def _sent_rows(
    plan: ReshardPlan, subtopology: Subtopology, own: Mapping[int, TaskWorker]
) -> Mapping[str, Callable[[int, bytes], bool]]:
    """Return, by store, whether a row of a task is of a window that was sent when it closed.

    Where tasks are at different times, the new ones begin with the lowest: windows that a task has sent are left out.
    """
    states = {partition: worker.commit.engine_state for partition, worker in own.items() if worker.commit is not None}
    sent = sent_windows(f"application {plan.id!r} cannot be resharded", states, plan.dropped)
    return {store: _sent_row(subtopology, store, times) for store, times in sent.items()}


def _sent_row(subtopology: Subtopology, store: str, times: Mapping[int, int]) -> Callable[[int, bytes], bool]:
    assert subtopology.layouts is not None
    kind, lowest = subtopology.layouts.now[store].kind, min(times.values())
    spec = next(each for each in subtopology.stores if each.name == store)
    end_of = spec.division.window_end if isinstance(spec, StoreSpec) else None

    def is_sent(partition: int, row: bytes) -> bool:
        if row == OWN_ROW:
            return False
        time = time_in_row(kind, row)
        end = time if end_of is None else end_of(time)
        return end is not None and lowest < end <= times.get(partition, lowest)

    return is_sent


class ValueRoute:
    """The values of one store, which have the partition of a record with another key: see `PartitionInValue`."""

    def __init__(self, plan: ReshardPlan, store: StoreSpec, then: Assignment) -> None:
        self._where = f"application {plan.id!r}, store {store.name!r}"
        in_value, settings, program = store.division.partition_in_value, plan.before.settings, plan.before.program
        assert in_value is not None
        self._in_value = in_value
        topic = decorate(plan.before.id, in_value.topic, program.internal_topics)
        other = next(each for each in program.subtopologies if topic in plan.tasks.sources[each.id])
        serde = resolve_serde(
            declared_serdes(store)["value_serde"], settings.state_serde, f"store {store.name!r}", settings.of_plugins
        )
        self._serde: Serde[Any] = serde.bind(changelog_topic(plan.before.id, store.name), is_key=False)
        self._candidates = candidates_of(plan, other, other.sources, then, without=topic)
        self._refused = "no source has records of these keys"

    def check(self, data: bytes) -> None:
        """Leave the candidates that find the partition in a row. Raises IncompatibleStateError if none is left."""
        key, partition = self._in_value.find(self._serde.deserialize(unwrap(data).value))
        for candidate in tuple(self._candidates):
            reason = candidate.misfit(key, partition)
            if reason:
                self._candidates.remove(candidate)
                self._refused = reason
        if not self._candidates:
            raise IncompatibleStateError(
                f"{self._where} has partitions that are not those of its keys: key {key!r}: {self._refused}"
            )

    def moved(self, data: bytes) -> bytes:
        """Return a row with the partition among those of the new layout."""
        envelope = unwrap(data)
        value = self._serde.deserialize(envelope.value)
        key, _ = self._in_value.find(value)
        value = self._in_value.put(value, self._candidates[0].target(key))
        return wrap(self._serde.serialize(value), *envelope[1:])


_LATER = frozenset({"observed", "closed", "wait", "arrived", "moved", "stream_time", "ticket", "held_back"})
"""Numbers of operators of which the highest counts: times that only grow, and counters."""
_EARLIER = frozenset({"next_end", "closed_to", "min_time", "first", "next_emit", ".passed", "open_sent"})
"""Those of which the lowest counts: when something is due, and up to where windows were sent when they closed."""
_IN_TARGET = frozenset({"next_offset", "topic"})
"""Those of an external sink: how far its target is in one partition, which the target itself says as well."""
_SENT, _NEXT = "closed_to", "next_end"

SentWindows = Mapping[str, Mapping[int, int]]
"""By store and partition: windows up to this end were sent when they closed."""


def sent_windows(where: str, states: Mapping[int, bytes], dropped: frozenset[str]) -> SentWindows:
    """Return the stores of windows that are sent when they close, if their tasks are at different times.

    `states`: by partition. Raises IncompatibleStateError for a store that several operators write.
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

    Stream time is the highest, schedules are due when the first was. Raises IncompatibleStateError, naming the node,
    for schedules that the tasks do not have in common, and for numbers with no rule.
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
                    if name in _IN_TARGET:
                        continue
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
    """Return the schedules of a node that all tasks have, with the earliest times; a new task has none yet."""
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
    """Return a schedule's callback and interval, without its due time."""
    return None if text is None else text[0] + text.partition("/")[2]
