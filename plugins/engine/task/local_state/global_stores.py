"""Global stores: one copy for each machine and application, filled from topics, shared by all processes there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock import (
    Application,
    GlobalStore,
    Log,
    NodeMetrics,
    OffsetOutOfRangeError,
    StateStore,
    TaskId,
    TopicInfo,
    TopicPartition,
    UnknownTopicError,
)
from penstock.support.repeats import Repeats
from penstock.task.failures import FailureKey, RetryRequested
from penstock.task.task import Task

from .global_copy import GlobalCopy, GlobalDirectory, Position, form_of_entries
from .refill import filling_task
from .restoring import Stretch

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

    Every task calls `update` at the start of a batch: the first takes the store's lock, and reads each topic up to the
    planned end; the others need no request. The topic is the changelog; if it does not continue a copy, a new copy is
    built. `filling` counts what was read.
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
            for store in application.program.global_stores:
                self._parts.append(_Part(application, store, directory / store.store.name, repeats, filling))
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


@dataclass(eq=False)
class _Part:
    """One global store: its copies, and the processor that fills them."""

    application: Application
    spec: GlobalStore
    directory: Path
    repeats: Repeats | None
    filling: Stretch

    def __post_init__(self) -> None:
        self.copies = GlobalDirectory(self.application, self.spec, self.directory, self.filling)
        self._topic = self.spec.source.topics[0]
        self._form = form_of_entries(self.application, self.spec.store)
        self._attempts: dict[FailureKey, int] = {}
        self.metrics: dict[str, NodeMetrics] = {
            self.spec.source.name: NodeMetrics(),
            self.spec.processor.name: NodeMetrics(),
        }

    def update(
        self,
        log: Log,
        ends: Mapping[TopicPartition, int],
        now_ms: int,
        topic_ids: Mapping[str, str],
        is_over: IsOver | None,
    ) -> bool:
        targets = {each: end for each, end in ends.items() if each.topic == self._topic}
        goal = _Goal(log, targets, topic_ids.get(self._topic, ""), self._form, now_ms, is_over)
        is_done = True
        self.copies.refresh(wait=is_over is None)
        self.copies.current.progress.wall_clock = now_ms
        position = self.copies.current.position()
        # A plan may be older than the copy, if a batch is repeated: ask the log when they contradict each other.
        if not targets or self.copies.is_being_replaced() or goal.contradiction(position):
            info = self._info(log)
            partitions = [TopicPartition(self._topic, each) for each in range(info.partitions)]
            goal = replace(goal, topic_id=info.id, targets=dict(log.end_offsets(partitions)))
        if not goal.is_reached(position) or self.copies.is_being_replaced():
            with self.copies.writing(wait=is_over is None) as has_lock:
                is_done = goal.is_reached(self.copies.current.position())
                if has_lock and (not is_done or self.copies.is_being_replaced()):
                    is_done = self._bring_up(goal)
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

    def _bring_up(self, goal: _Goal) -> bool:
        """Read on, or build a new copy where the topic does not continue the current one. Return as `update`."""
        current = self.copies.current
        if not self.copies.is_being_replaced():
            reason = self._check(goal, current.position())
            if reason is None:
                try:
                    return self._fill(current, goal)
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
                if self._check(goal, copy.position()) is None:
                    is_done = self._fill(copy, goal)
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

    def _check(self, goal: _Goal, position: Position) -> str | None:
        """Return why a copy cannot be continued; None if it can."""
        reason = goal.contradiction(position)
        if reason is not None or not position.positions or not goal.is_ahead_of(position):
            return reason
        age = 0 if position.as_of_ms is None else goal.now_ms - position.as_of_ms
        if age > _CONFIRM_MS:
            config = goal.log.topic(self._topic).config
            kept = int(config.get("delete.retention.ms", 86_400_000))
            if "compact" in config.get("cleanup.policy", "delete") and age >= kept:
                return (
                    f"the store has not been up to date for {age / 1000:.0f} s, and topic {self._topic!r} forgets "
                    f"after {kept / 1000:.0f} s (delete.retention.ms) which keys were deleted"
                )
        return None

    def _fill(self, copy: GlobalCopy, goal: _Goal) -> bool:
        """Read on to the goal, and save rows and positions after every portion; return whether all was read.

        After a kill, and after a call that `is_over` ended, the next one continues from the last portion.
        """
        log, targets, now_ms = goal.log, goal.targets, goal.now_ms
        before = copy.position()
        goal = replace(goal, topic_id=goal.topic_id or before.topic_id)
        starts = log.start_offsets([target for target in targets if str(target.partition) not in before.positions])
        positions = {target: before.positions.get(str(target.partition), starts.get(target, 0)) for target in targets}
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
            repeats=self.repeats,
        )
        copy.progress = task.progress

        fetches, size = 0, min(_FETCH_BYTES, self.application.settings.fetch_bytes)
        try:
            for partition, end in targets.items():
                while positions[partition] < end:
                    batches = log.fetch(partition, positions[partition], end, size)
                    for batch in batches:
                        task.feed(batch)
                    while task.process(_CHUNK):
                        pass
                    task.end_batches()
                    positions[partition] = batches[-1].next_offset if batches else end
                    copy.store.flush()
                    fetches += 1
                    self.filling.moved(sum(map(len, batches)))
                    if goal.is_over() and any(positions[target] < targets[target] for target in targets):
                        self._save(copy, task, goal, positions, as_of_ms)
                        return False
                    if copy.buffer.size_bytes >= _PORTION_BYTES or fetches % _PORTION_FETCHES == 0:
                        self._save(copy, task, goal, positions, as_of_ms)
            self._save(copy, task, goal, positions, max(now_ms, as_of_ms))
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

    def _save(
        self, copy: GlobalCopy, task: Task, goal: _Goal, positions: Mapping[TopicPartition, int], as_of_ms: int
    ) -> None:
        # A global store has no sinks; only dead letters leave it, and each host that keeps a copy sends its own.
        for output in task.take_outputs():
            goal.log.append(output)
        engine = task.engine_state().decode()
        numbers = {str(each.partition): position for each, position in positions.items()}
        copy.write(Position(numbers, engine, goal.topic_id, as_of_ms, self._form))
        self._attempts.clear()
        self.copies.show_progress()


@dataclass(frozen=True)
class _Goal:
    """A plan for one store: to have all of `targets`, as of `now_ms`. `form`: the serdes of the program's entries.

    `ends_when` returns whether the caller has no more time; None: it waits.
    """

    log: Log
    targets: Mapping[TopicPartition, int]
    topic_id: str
    form: str
    now_ms: int
    ends_when: IsOver | None

    def is_over(self) -> bool:
        return self.ends_when is not None and self.ends_when()

    def is_ahead_of(self, position: Position) -> bool:
        return any(position.positions.get(str(each.partition), 0) < end for each, end in self.targets.items())

    def is_reached(self, position: Position) -> bool:
        """Return whether a copy has reached all targets and recorded that recently."""
        is_noted = position.as_of_ms is not None and self.now_ms - position.as_of_ms < _CONFIRM_MS
        return is_noted and not self.is_ahead_of(position) and not self.contradiction(position)

    def contradiction(self, position: Position) -> str | None:
        """Return why a topic that ends at the targets cannot be the topic of the copy; None if it can.

        Also returns a reason if the entries have another form.
        """
        if reason := position.contradiction(self.form, self.topic_id):
            return reason
        ends = {str(each.partition): end for each, end in self.targets.items()}
        for number, at in position.positions.items():
            if number not in ends:
                return f"its topic has no partition {number} any more: it was deleted and made again"
            if ends[number] < at:
                return (
                    f"partition {number} of its topic ends at offset {ends[number]}, and the store has read up to "
                    f"{at}: it was deleted and made again"
                )
        return None
