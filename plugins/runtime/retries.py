"""Retries of failed records, and closing what a task had open."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from penstock.program.nodes import TaskId
from penstock.record import TopicPartition
from penstock.task.failures import FailureKey, RetryRequested

from .process_resources import ProcessResources

_log = logging.getLogger("penstock.worker")


class Retries:
    """The failed attempts of a task's records since its last good batch, and the waits between them."""

    def __init__(self, task_id: TaskId, resources: ProcessResources) -> None:
        self._task_id = task_id
        self._resources = resources
        self._attempts: dict[FailureKey, int] = {}

    def attempt(self, failed: FailureKey) -> int:
        """Return which attempt at a record this one is, from 1."""
        return self._attempts.get(failed, 0) + 1

    def note(self, retry: RetryRequested) -> None:
        """Count a failed attempt."""
        failure = retry.failure
        self._attempts[retry.key] = failure.attempt
        _log.warning(
            "task %s, node %r: attempt %d failed at %s-%s offset %s (%s: %s); again in %d ms",
            self._task_id, failure.node, failure.attempt, failure.topic, failure.partition, failure.offset,
            type(failure.error).__name__, failure.error, retry.delay_ms,
        )  # fmt: skip

    def wait(self, retry: RetryRequested) -> None:
        """Count a failed attempt, and wait as long as the handler says."""
        self.note(retry)
        self._resources.wait_ms(retry.delay_ms)

    def forget_before(self, positions: Mapping[TopicPartition, int]) -> None:
        """Forget the attempts at records that are committed, and at punctuators."""
        for key in list(self._attempts):
            _, _, topic, partition, offset = key
            if (
                topic is None
                or partition is None
                or offset is None
                or positions.get(TopicPartition(topic, partition), 0) > offset
            ):
                del self._attempts[key]

    def clear(self) -> None:
        """Forget them: the batch is done."""
        self._attempts.clear()


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
