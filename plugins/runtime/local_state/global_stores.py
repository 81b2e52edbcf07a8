"""Global stores: one copy for each machine and application, filled from topics, shared by all processes there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.context import NodeMetrics
from penstock.errors import OffsetOutOfRangeError, UnknownTopicError
from penstock.log import Log, TopicInfo
from penstock.program.nodes import GlobalStore, TaskId
from penstock.program.serdes import resolve_serde
from penstock.record import TopicPartition
from penstock.settings.application import Application
from penstock.store import StateStore
from penstock.support.repeats import Repeats
from penstock.task.failures import FailureKey, RetryRequested

from .global_copy import Copies, Copy, Position
from .refill import filling_task
from .stretch import Stretch

_FETCH_BYTES = 1024 * 1024
"""Records of a fetch are Python objects until they are processed; small ones take ten times their bytes."""
_PORTION_BYTES = 8 * 1024 * 1024
"""About how many bytes of memory the changes of one write may take."""
_PORTION_FETCHES = 64
"""Number of fetches after which the position is saved, even if little changed."""
_CHUNK = 10_000
_MOST_TRIES = 3
_CONFIRM_MS = 60_000
"""Age up to which the note counts that a copy has all of its topic."""

IsOver = Callable[[], bool]
"""Returns whether the caller has no more time."""

_log = logging.getLogger("penstock.state")


class GlobalStores:
    """The global stores of one application on this machine.

    Every task calls `update` when it begins a batch. The first one takes the store's lock, reads each topic up to the
    batch's planned end, and writes rows and position together, a portion at a time. The others find that done and need
    no request to the log. There is no changelog: the topic is the source of truth. If the topic does not continue what
    a copy has read, a new copy is built and replaces it. `filling` counts what was read: another thread may watch it.
    """

    def __init__(
        self,
        application: Application,
        directory: Path,
        repeats: Repeats | None = None,
        filling: Stretch | None = None,
    ) -> None:
        filling = filling or Stretch("the global stores")
        self._parts: list[_Part] = []
        try:
            for each in application.program.global_stores:
                self._parts.append(_Part(application, each, directory / each.store.name, repeats, filling))
        except BaseException:
            self.close()
            raise
        self.stores: dict[str, StateStore] = {part.spec.store.name: part.copies.current.store for part in self._parts}

    def update(
        self,
        log: Log,
        ends: Mapping[TopicPartition, int],
        now_ms: int,
        topic_ids: Mapping[str, str] | None = None,
        is_over: IsOver | None = None,
    ) -> bool:
        """Read on to `ends`, the plan made at `now_ms`; a topic without a plan is read to its end.

        `topic_ids`: the topics' ids (`TopicInfo.id`) in that plan. With `is_over`, stop once it returns True, and wait
        for no other process that reads on. Return whether everything was read.
        """
        are_done = [part.update(log, ends, now_ms, topic_ids or {}, is_over) for part in self._parts]
        return all(are_done)

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return the counters of the nodes that fill the stores, as of this process."""
        return {name: counted for part in self._parts for name, counted in part.metrics.items()}

    def close(self) -> None:
        """Close every backend."""
        for part in self._parts:
            part.copies.close()


class _Part:
    """One global store: its copies, and the processor that fills them."""

    def __init__(
        self, application: Application, spec: GlobalStore, directory: Path, repeats: Repeats | None, filling: Stretch
    ) -> None:
        self.application = application
        self._repeats = repeats
        self._filling = filling
        self.spec = spec
        self.copies = Copies(application, spec, directory, filling)
        self._topic = spec.source.topics[0]
        self._form = ", ".join(
            resolve_serde(
                getattr(spec.store, name), application.settings.state_serde, f"store {spec.store.name!r}"
            ).written_form()
            for name in ("key_serde", "value_serde")
            if hasattr(spec.store, name)
        ) + (", with a TTL" if spec.store.traits.expires else "")
        self._attempts: dict[FailureKey, int] = {}
        self.metrics: dict[str, NodeMetrics] = {spec.source.name: NodeMetrics(), spec.processor.name: NodeMetrics()}

    def update(
        self,
        log: Log,
        ends: Mapping[TopicPartition, int],
        now_ms: int,
        topic_ids: Mapping[str, str],
        is_over: IsOver | None,
    ) -> bool:
        targets = {each: end for each, end in ends.items() if each.topic == self._topic}
        topic_id = topic_ids.get(self._topic, "")
        is_done = True
        self.copies.refresh(wait=is_over is None)
        self.copies.current.progress.wall_clock = now_ms
        position = self.copies.current.position()
        # A plan may be older than the copy, if a batch is repeated: ask the log when they contradict each other.
        if not targets or self.copies.is_being_replaced() or _contradiction(position, targets, topic_id, self._form):
            info = self._info(log)
            topic_id = info.id
            targets = dict(log.end_offsets([TopicPartition(self._topic, each) for each in range(info.partitions)]))
        if not _is_fresh(position, targets, topic_id, self._form, now_ms) or self.copies.is_being_replaced():
            with self.copies.writing(wait=is_over is None) as has_lock:
                is_done = _is_fresh(self.copies.current.position(), targets, topic_id, self._form, now_ms)
                if has_lock and (not is_done or self.copies.is_being_replaced()):
                    is_done = self._bring_up(log, targets, topic_id, now_ms, is_over)
        # Drop cached objects, if another process wrote.
        self.copies.current.position()
        return is_done

    def _info(self, log: Log) -> TopicInfo:
        try:
            return log.topic(self._topic)
        except UnknownTopicError as error:
            raise UnknownTopicError(
                f"global store {self.spec.store.name!r}: topic {self._topic!r} does not exist; create it: "
                f"penstock topics create {self._topic}"
            ) from error

    def _bring_up(
        self, log: Log, targets: Mapping[TopicPartition, int], topic_id: str, now_ms: int, is_over: IsOver | None
    ) -> bool:
        """Read on, or build a new copy where the topic does not continue the current one. Return as `update`."""
        current = self.copies.current
        if not self.copies.is_being_replaced():
            reason = self._check(log, current.position(), targets, topic_id, now_ms)
            if reason is None:
                try:
                    return self._fill(current, log, targets, topic_id, now_ms, is_over)
                except OffsetOutOfRangeError as error:
                    reason = str(error)
            _log.warning(
                "application %s, global store %r: %s. What this host has of it is out of date: the store is built "
                "again from topic %r",
                self.application.id, self.spec.store.name, reason, self._topic,
            )  # fmt: skip
        for attempt in range(1, _MOST_TRIES + 1):
            copy = self.copies.open_next()
            try:
                if self._check(log, copy.position(), targets, topic_id, now_ms) is None:
                    is_done = self._fill(copy, log, targets, topic_id, now_ms, is_over)
                    if is_done:
                        self.copies.replace(copy)
                    else:
                        copy.close()
                    return is_done
            except OffsetOutOfRangeError:
                # Records were deleted faster than they were read, or the topic was made again just now.
                if attempt == _MOST_TRIES:
                    copy.close()
                    raise
            except BaseException:
                copy.close()
                raise
            self.copies.drop_next(copy)
        raise AssertionError("the last try returns or raises")

    def _check(
        self, log: Log, position: Position, targets: Mapping[TopicPartition, int], topic_id: str, now_ms: int
    ) -> str | None:
        """Return why a copy cannot be read on; None when it can."""
        reason = _contradiction(position, targets, topic_id, self._form)
        if reason is not None or not position.positions or not _is_behind(position, targets):
            return reason
        age = 0 if position.as_of_ms is None else now_ms - position.as_of_ms
        if age > _CONFIRM_MS:
            config = log.topic(self._topic).config
            kept = int(config.get("delete.retention.ms", 86_400_000))
            if "compact" in config.get("cleanup.policy", "delete") and age >= kept:
                return (
                    f"the store has not been up to date for {age / 1000:.0f} s, and topic {self._topic!r} forgets "
                    f"after {kept / 1000:.0f} s (delete.retention.ms) which keys were deleted"
                )
        return None

    def _fill(
        self,
        copy: Copy,
        log: Log,
        targets: Mapping[TopicPartition, int],
        topic_id: str,
        now_ms: int,
        is_over: IsOver | None,
    ) -> bool:
        """Read on to `targets`, and save rows and positions after every portion; return whether all was read.

        After a kill, and after a call that `is_over` ended, the next one goes on from the last portion.
        """
        before = copy.position()
        starts = log.start_offsets([each for each in targets if str(each.partition) not in before.positions])
        positions = {each: before.positions.get(str(each.partition), starts.get(each, 0)) for each in targets}
        # Until everything is read, the copy keeps its earlier time.
        as_of_ms = now_ms if before.as_of_ms is None else before.as_of_ms
        task = filling_task(
            self.application,
            TaskId(-1, 0),
            self.spec,
            copy.store,
            positions,
            lambda failed: self._attempts.get(failed, 0) + 1,
            saved=before.engine.encode(),
            wall_clock_ms=now_ms,
            repeats=self._repeats,
        )
        copy.progress = task.progress

        def save(as_of_ms: int) -> None:
            # A global store has no sinks; only dead letters leave it, and each host that keeps a copy sends its own.
            for output in task.take_outputs():
                log.append(output)
            engine = task.engine_state().decode()
            numbers = {str(each.partition): position for each, position in positions.items()}
            copy.write(Position(numbers, engine, topic_id or before.topic_id, as_of_ms, self._form))
            self._attempts.clear()
            self.copies.show_progress()

        fetches, size = 0, min(_FETCH_BYTES, self.application.settings.fetch_bytes)
        try:
            for partition, end in targets.items():
                while positions[partition] < end:
                    batches = log.fetch(partition, positions[partition], end, size)
                    for batch in batches:
                        task.feed(batch)
                    while task.process(_CHUNK):
                        pass
                    positions[partition] = batches[-1].next_offset if batches else end
                    copy.store.flush()
                    fetches += 1
                    self._filling.moved(sum(map(len, batches)))
                    if is_over is not None and is_over() and any(positions[each] < targets[each] for each in targets):
                        save(as_of_ms)
                        return False
                    if copy.buffer.size_bytes >= _PORTION_BYTES or fetches % _PORTION_FETCHES == 0:
                        save(as_of_ms)
            save(max(now_ms, as_of_ms))
            return True
        except BaseException as error:
            if isinstance(error, RetryRequested):
                self._attempts[error.key] = error.failure.attempt
            copy.give_up()
            raise
        finally:
            for name, counted in task.metrics().items():
                self.metrics[name].add(counted)
            task.close()


def _is_behind(position: Position, targets: Mapping[TopicPartition, int]) -> bool:
    return any(position.positions.get(str(each.partition), 0) < end for each, end in targets.items())


def _is_fresh(position: Position, targets: Mapping[TopicPartition, int], topic_id: str, form: str, now_ms: int) -> bool:
    """Return whether a copy has all of the targets, and its note of that is recent."""
    is_noted = position.as_of_ms is not None and now_ms - position.as_of_ms < _CONFIRM_MS
    return is_noted and not _is_behind(position, targets) and not _contradiction(position, targets, topic_id, form)


def _contradiction(position: Position, targets: Mapping[TopicPartition, int], topic_id: str, form: str) -> str | None:
    """Return why a topic that ends at `targets` cannot be the one that was read; None when it can.

    Also when the entries have another form.
    """
    if position.form not in ("", form):
        return f"its entries were written with the serdes {position.form}, and those of the program are {form}"
    if position.topic_id and topic_id and position.topic_id != topic_id:
        return "its topic was deleted and made again"
    ends = {str(each.partition): end for each, end in targets.items()}
    for number, at in position.positions.items():
        if number not in ends:
            return f"its topic has no partition {number} any more: it was deleted and made again"
        if ends[number] < at:
            return (
                f"partition {number} of its topic ends at offset {ends[number]}, and the store has read up to {at}: it "
                "was deleted and made again"
            )
    return None
