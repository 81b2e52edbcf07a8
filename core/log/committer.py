"""TaskCommitter: the commit point of one task. A Commit makes positions, outputs and state true in one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from ..record import OutputBatch, TopicPartition

ENGINE_STATE_BYTES = 2_000
"""About the most that a task's engine state takes; a log keeps it with the positions (Kafka: in their metadata)."""


@dataclass(frozen=True)
class Commit:
    """The positions and the version that one commit of a task makes valid, in one step.

    `positions`: the next offset to read of every input partition of the task. `version`: the state's
    version (see core/changelog/). `engine_state`: the task's own state, at most about `ENGINE_STATE_BYTES`.
    """

    positions: Mapping[TopicPartition, int]
    version: str
    engine_state: bytes = b""


class TaskCommitter(ABC):
    """The commit point of one task. Opening a committer fences the committers opened before."""

    streams_outputs: ClassVar[bool] = False
    """Whether `send` takes outputs ahead of the commit."""

    @property
    @abstractmethod
    def committed(self) -> Commit | None:
        """The last commit; None when the task never had one."""

    @abstractmethod
    def is_current(self) -> bool:
        """Return whether no other committer has taken the task over, and no other commit was made since.

        It may still return True after a successor opened, until the successor commits. `commit` always refuses then.
        """

    @abstractmethod
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        """Make outputs, positions and version visible in one durable step.

        Raises FencedError when another process has taken over, ProductionError with the topic when an output cannot be
        produced, and RecordRefusedError when the log refuses one record of it; then nothing has changed. After any
        other error the outcome is unknown: close this object, open another and read `committed`.
        """

    @property
    def commit_within(self) -> float:
        """Seconds between the first `send` and the latest time for the commit; a later one is refused."""
        return inf

    def send(self, outputs: Sequence[OutputBatch]) -> None:
        """Send outputs of the next commit ahead of it; raises as `commit`. Only where `streams_outputs`.

        They come before the outputs that are passed to `commit`, which returns when all are durable. With
        `exactly_once` they cannot be read before the commit, and `close` drops them. With `at_least_once` they may be
        readable immediately.
        """
        raise NotImplementedError(f"{type(self).__name__} takes outputs with the commit")

    def expires(self) -> bool:
        """Return whether the last commit should be repeated soon, because the log deletes old ones."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent. What was committed stays."""
