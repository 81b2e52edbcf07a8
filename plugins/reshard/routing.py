"""Route: which partition the entries of a store belong to, by the topic whose records they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock import (
    IncompatibleStateError,
    Partitioner,
    ProcessorNode,
    Record,
    Serde,
    SinkNode,
    SourceNode,
    StoreSpec,
    Subtopology,
    Windowed,
)
from penstock.plugins.logs.partitioner import partition_for_key
from penstock.program.nodes import decorate
from penstock.program.serdes import resolve_serde
from penstock.store.specs import declared_serdes
from penstock.stores.kinds.row_keys import OWN_ROW, has_own_row, key_of_row

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
        key_in = key_of_row(kind)
        assert key_in is not None
        self._key_in = key_in
        self._own_row = OWN_ROW if has_own_row(kind) else None
        settings = plan.before.settings
        given = declared_serdes(spec).get("key_serde")
        self._serde = resolve_serde(given, settings.state_serde, f"store {store!r}", settings.of_plugins)
        self._record_key = spec.record_key
        self._candidates = [
            _Candidate(plan, subtopology, source, of_window)
            for source in _sources_of(subtopology, store)
            for of_window in (False, True)
        ]
        self._refused = f"no source of sub-topology {subtopology.id} leads to it"

    def check(self, task: str, partition: int, count: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Leave the candidates that find this partition of `count` for all rows of a task of the old layout.

        Raises IncompatibleStateError, naming a key, if none is left.
        """
        for row, _ in rows:
            if row == self._own_row:
                continue
            raw = self._key_in(row)
            for candidate in tuple(self._candidates):
                reason = self._misfit(candidate, raw, partition, count)
                if reason:
                    self._candidates.remove(candidate)
                    self._refused = f"task {task}: {reason}"
            if not self._candidates:
                break
        if not self._candidates:
            raise IncompatibleStateError(
                f"{self._where} is not divided by key: {self._refused}. If the writers of the topic choose partitions "
                "by a function of their own, name it with --partitioner; --drop lets the store start empty"
            )

    def _misfit(self, candidate: _Candidate, raw: bytes, partition: int, count: int) -> str:
        try:
            found = candidate.partition(self._key(raw), count)
        except Exception as error:  # serdes and partitioners of users may raise anything
            return f"key {_shown(raw)}: {candidate.name} raises {type(error).__name__}: {error}"
        return "" if found == partition else f"key {_shown(raw)} belongs to partition {found} by {candidate.name}"

    def _key(self, raw: bytes) -> Any:
        key = self._serde.deserialize(raw)
        return key if self._record_key is None else self._record_key(key)

    def split(self, count: int) -> Callable[[bytes], int | None]:
        """Return the function from a row's key to its partition of `count`; None for the store's own row.

        It raises IncompatibleStateError if the partitioner does.
        """
        candidate, known = self._candidates[0], dict[bytes, int]()

        def partition_of(row: bytes) -> int | None:
            if row == self._own_row:
                return None
            raw = self._key_in(row)
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


class _Candidate:
    """The partitions of keys in the topic of one source.

    `of_window`: the records of the topic have keys of windows; else the key of a window is that of its records.
    """

    def __init__(self, plan: ReshardPlan, subtopology: Subtopology, source: SourceNode, of_window: bool) -> None:
        self._of_window = of_window
        settings, program = plan.before.settings, plan.before.program
        topics = plan.tasks.sources[subtopology.id]
        self._topic = next((topic for topic, name in topics.items() if name == source.name), "")
        self.name = f"source {source.name!r} (topic {self._topic!r})"
        self._serde: Serde[Any] = resolve_serde(
            source.key_serde, settings.key_serde, f"source {source.name!r}", settings.of_plugins
        ).bind(self._topic, is_key=True)
        self._partitioner: Partitioner | None = plan.partitioners.get(self._topic)
        internal = program.internal_topics
        for node in program.nodes.values():
            if isinstance(node, SinkNode) and isinstance(node.topic, str) and node.topic in internal:
                is_read = decorate(plan.before.id, node.topic, internal) == self._topic
                self._partitioner = self._partitioner or (node.partitioner if is_read else None)

    def partition(self, key: Any, count: int) -> int:
        """Return the partition of a key. Raises what serde and partitioner raise, and ValueError for no partition."""
        if isinstance(key, Windowed) and not self._of_window:
            key = key.key
        if self._partitioner is not None:
            chosen = self._partitioner(self._topic, Record(key, None, 0), count)
            if chosen is not None:
                if type(chosen) is not int or not 0 <= chosen < count:
                    raise ValueError(f"its partitioner chose {chosen!r}, expected 0 to {count - 1}")
                return chosen
        return partition_for_key(self._serde.serialize(key), count)


def _sources_of(subtopology: Subtopology, store: str) -> Iterator[SourceNode]:
    """Yield the sources from which records reach a processor with the store."""
    users = {node.name for node in subtopology.nodes if isinstance(node, ProcessorNode) and store in node.stores}
    for source in subtopology.sources:
        reached, waiting = set[str](), [source.name]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += subtopology.children.get(name, ())
        if users & reached:
            yield source


def _shown(raw: bytes) -> str:
    return repr(raw[:40])
