"""Retries of failed records, and closing what a task had open."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from penstock import FencedError, StaleStoreError, TaskId, TopicPartition
from penstock.program.messages import describe_cause, describe_place
from penstock.task.failures import FailureKey, RetryRequested

from .process_resources import ProcessResources

_log = logging.getLogger("penstock.worker")


class _Failed(NamedTuple):
    """How often something failed, and the task's clocks (ms) when it failed last."""

    attempts: int
    stream_time: int
    wall_clock: int


class Retries:
    """The failed attempts of a task, and the waits between them.

    An attempt counts until what failed is done and committed: a record once the position is behind it, what a
    punctuator or a timer did once both clocks are where they were.
    """

    def __init__(self, application_id: str, resources: ProcessResources) -> None:
        self._application_id = application_id
        self._resources = resources
        self._failed: dict[FailureKey, _Failed] = {}

    def attempt(self, failed: FailureKey) -> int:
        """Return which attempt this one is, from 1."""
        before = self._failed.get(failed)
        return 1 if before is None else before.attempts + 1

    def note(self, retry: RetryRequested, stream_time: int = -1, wall_clock: int = -1) -> None:
        """Count a failed attempt, at these times."""
        failure = retry.failure
        self._failed[retry.key] = _Failed(failure.attempt, stream_time, wall_clock)
        self._resources.repeats.log(
            _log, logging.WARNING, ("retry", self._application_id, failure.stage, failure.node),
            "%s: %s: attempt %d failed; again in %d ms",
            describe_place(failure, self._application_id), describe_cause(failure.error), failure.attempt,
            retry.delay_ms,
        )  # fmt: skip

    def wait(self, retry: RetryRequested) -> None:
        """Count a failed attempt, and wait as long as the handler says."""
        self.note(retry)
        self._resources.wait_ms(retry.delay_ms)

    def forget_done(self, positions: Mapping[TopicPartition, int], stream_time: int, wall_clock: int) -> None:
        """Forget the attempts at what is done: the task has committed `positions`, and fired what was due.

        Records of other partitions are read while the task is opened, so they are done, too.
        """
        for key, failed in list(self._failed.items()):
            _, _, topic, partition, offset, _ = key
            if topic is None or partition is None or offset is None:
                is_done = failed.stream_time <= stream_time and failed.wall_clock <= wall_clock
            else:
                position = positions.get(TopicPartition(topic, partition))
                is_done = position is None or offset < position
            if is_done:
                del self._failed[key]

    def clear(self) -> None:
        """Forget them: everything is done."""
        self._failed.clear()


class _Part(Protocol):
    def close(self) -> None: ...


def close_parts(task_id: TaskId, *parts: _Part | None) -> None:
    """Close the parts of a task; an error of one part does not keep the others open."""
    for part in parts:
        if part is not None:
            try:
                part.close()
            except Exception as error:
                _log.warning("task %s: closing raised %s: %s", task_id, type(error).__name__, error)


def is_taken_over(error: BaseException) -> bool:
    """Return whether a task ended because another process has it, in the log or in its local store.

    The run continues after that: the next batch opens the task again, from the last commit.
    """
    return isinstance(error, (FencedError, StaleStoreError))
