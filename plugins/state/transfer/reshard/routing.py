"""Route: which partition the entries of a store belong to, by the topic whose records they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from penstock import (
    IncompatibleStateError,
    ProcessorNode,
    Serde,
    SinkNode,
    SourceNode,
    StoreSpec,
    Subtopology,
    Windowed,
)
from penstock.program.nodes import decorate
from penstock.program.partitioning import partitions_of_key, whole_key
from penstock.program.serdes import resolve_serde
from penstock.stores.kinds.row_keys import row_keys_of
from penstock.support.names import changelog_topic

from .plan import ReshardPlan

Route = Callable[[bytes, int], int]
"""(key of a row, number of partitions) -> the partition of its entry."""
_CACHED = 1 << 16


class StoreRoute:
    """Finds the partition of each row of one store.

    The key of an entry, as the source's serde writes it, gives the partition, by the partitioner of the source's topic.
    Where a store is reached from several sources, the first one counts that fits every row of the old layout.
    """

    def __init__(self, plan: ReshardPlan, subtopology: Subtopology, store: str) -> None:
        assert subtopology.layouts is not None
        self._where = f"application {plan.id!r}, store {store!r}"
        spec = next(each for each in subtopology.stores if each.name == store)
        assert isinstance(spec, StoreSpec)
        kind = subtopology.layouts.now[store].kind
        keys = row_keys_of(spec, kind)
        assert keys is not None
        self.keys = keys
        settings = plan.before.settings
        serde = resolve_serde(keys.serde(spec), settings.state_serde, f"store {store!r}", settings.of_plugins)
        self._serde = serde.bind(changelog_topic(plan.before.id, store), is_key=True)
        self._record_key = spec.division.record_key
        self._candidates = candidates_of(plan, subtopology, _sources_of(subtopology, store))
        self._refused = ""

    def check(self, task: str, partition: int, count: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Leave the candidates that find this partition of `count` for all rows of a task of the old layout.

        Raises IncompatibleStateError, naming a key, if none is left.
        """
        for row, _ in rows:
            raw = self._key_in(row)
            if raw is None:
                continue
            for candidate in tuple(self._candidates):
                reason = self._misfit(candidate, raw, partition, count)
                if reason:
                    self._candidates.remove(candidate)
                    self._refused = self._refused or f"task {task}, key {_shown(raw)}: {reason}"
            if not self._candidates:
                break
        if not self._candidates:
            raise IncompatibleStateError(
                f"{self._where} is not divided by key: {self._refused}. If the writers of the topic choose partitions "
                "by a function of their own, name it with --partitioner; --drop lets the store start empty"
            )

    def _misfit(self, candidate: Candidate, raw: bytes, partition: int, count: int) -> str:
        try:
            key = self._key(raw)
        except Exception as error:  # a serde of another package may raise anything
            return f"its serde raises {type(error).__name__}: {error}"
        return candidate.misfit(key, partition, count)

    def _key_in(self, row: bytes) -> bytes | None:
        try:
            return self.keys.key_of(row)
        except Exception as error:  # another package may raise anything
            raise IncompatibleStateError(
                f"{self._where}: its kind finds no key in the row {_shown(row)}: {type(error).__name__}: {error}"
            ) from error

    def merged(self, row: bytes, one: bytes, other: bytes) -> bytes:
        """Return the content of a row of the whole store in two tasks together. Raises IncompatibleStateError."""
        if self.keys.merged is not None:
            return self.keys.merged(one, other)
        if one != other:
            raise IncompatibleStateError(
                f"{self._where}: its row {_shown(row)} is of the whole store, and two tasks have different ones; its "
                "kind does not say what they are together (`RowKeys.merged`); --drop lets the store start empty"
            )
        return one

    def _key(self, raw: bytes) -> Any:
        key = self._serde.deserialize(raw)
        return key if self._record_key is None else self._record_key(key)

    def split(self, count: int) -> Callable[[bytes], int | None]:
        """Return the function from a row's key to its partition of `count`; None for the store's own row.

        It raises IncompatibleStateError if the partitioner does.
        """
        candidate, known = self._candidates[0], dict[bytes, int]()

        def partition_of(row: bytes) -> int | None:
            raw = self._key_in(row)
            if raw is None:
                return None
            found = known.get(raw)
            if found is None:
                try:
                    found = candidate.partition(self._key(raw), count)
                except Exception as error:  # as above
                    raise IncompatibleStateError(
                        f"{self._where}, key {_shown(raw)}: {candidate.name} raises {type(error).__name__} for "
                        f"{count} partitions: {error}"
                    ) from error
                if len(known) >= _CACHED:
                    known.clear()
                known[raw] = found
            return found

        return partition_of


class Candidate:
    """The partitions of keys in the topic of one source.

    `of_window`: the records of the topic have keys of windows; else the key of a window is that of its records.
    `outside`: the sink of the writers of a topic from outside.
    """

    def __init__(
        self, plan: ReshardPlan, subtopology: Subtopology, source: SourceNode, of_window: bool, outside: SinkNode
    ) -> None:
        self._of_window, self.outside = of_window, outside
        settings, program = plan.before.settings, plan.before.program
        topics = plan.tasks.sources[subtopology.id]
        self.topic = next((topic for topic, name in topics.items() if name == source.name), "")
        self.name = f"source {source.name!r} (topic {self.topic!r})"
        self._serde: Serde[Any] = resolve_serde(
            source.key_serde, settings.key_serde, f"source {source.name!r}", settings.of_plugins
        ).bind(self.topic, is_key=True)
        self.is_windowed = self._serde.window_bytes > 0
        given, internal = plan.partitioners.get(self.topic), program.internal_topics
        own = [
            node
            for node in program.nodes.values()
            if isinstance(node, SinkNode) and isinstance(node.topic, str) and node.topic in internal
            if decorate(plan.before.id, node.topic, internal) == self.topic
        ]
        self._sink = own[0] if own and given is None else replace(outside, partitioner=given)

    def misfit(self, key: Any, partition: int, count: int) -> str:
        """Return why a key is not in this partition of `count`, in words; "" if it is."""
        if self._of_window and not isinstance(key, Windowed):
            return "it is of no window"
        try:
            found = self.partition(key, count)
        except Exception as error:  # serdes and partitioners of users may raise anything
            return f"{self.name} raises {type(error).__name__}: {error}"
        return "" if found == partition else f"it belongs to partition {found} by {self.name}"

    def partition(self, key: Any, count: int) -> int:
        """Return the partition of a key. Raises what serde and partitioner raise, and ValueError for no partition."""
        if isinstance(key, Windowed) and not self._of_window:
            key = key.key
        chosen = partitions_of_key(self._sink, self._serde, self.topic, key, count)
        if len(chosen) != 1 or type(chosen[0]) is not int or not 0 <= chosen[0] < count:
            shown = chosen[0] if len(chosen) == 1 else chosen
            raise ValueError(f"its partitioner chose {shown!r}, expected 0 to {count - 1}")
        return chosen[0]


def candidates_of(
    plan: ReshardPlan, subtopology: Subtopology, sources: Iterable[SourceNode], *, without: str = ""
) -> list[Candidate]:
    """Return the topics of sources by which keys may be divided, each in every form, but for one topic.

    Writers of windowed keys from outside may choose partitions by the key alone, or by key and window.
    """
    found = [
        Candidate(plan, subtopology, source, of_window, SinkNode("", "", (), partition_by=by))
        for source in sources
        for of_window, by in ((False, None), (True, None), (True, whole_key))
    ]
    return [each for each in found if each.topic != without and (each.is_windowed or each.outside.partition_by is None)]


def _sources_of(subtopology: Subtopology, store: str) -> Iterator[SourceNode]:
    """Yield the sources of a sub-topology, first those from which records reach a processor with the store."""
    users = {node.name for node in subtopology.nodes if isinstance(node, ProcessorNode) and store in node.stores}
    others = []
    for source in subtopology.sources:
        reached, waiting = set[str](), [source.name]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += subtopology.children.get(name, ())
        if users & reached:
            yield source
        else:
            others.append(source)
    yield from others


def _shown(raw: bytes) -> str:
    return repr(raw[:40])
