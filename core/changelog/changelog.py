"""The interface of every changelog: it restores the state of a task as it was at a commit."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from ..store import Changes
from ..world import World


def version_counter(version: str) -> int:
    """Return the counter at the start of a version's name: the number of versions before it in its chain."""
    return int(version.partition("-")[0])


_INCARNATION = re.compile(r"[0-9]+-([0-9a-f]{8})[0-9a-f]{8}(?![0-9a-f])")


def version_name(counter: int, previous: str | None, token: Callable[[int], str]) -> str:
    """Return the first part of a version's new name: its counter, the incarnation of its chain, and a random part.

    The incarnation is that of `previous`; without one, or where that has none, a new one begins. `token` returns random
    text of so many bytes, as `World.token` does.
    """
    incarnation = None if previous is None else _incarnation(previous)
    return f"{counter:012d}-{incarnation or token(4)}{token(4)}"


def may_precede(version: str, later: str) -> bool:
    """Return whether `version` precedes or equals the other one in the same chain, as far as their names say.

    Versions of different incarnations never do: between them the application was reset, restored or filled. Names from
    earlier releases have no incarnation.

    >>> may_precede("000000000003-1a2b3c4d00000001_00c0ffee", "000000000005-1a2b3c4d00000002_00c0ffee")
    True
    >>> may_precede("000000000003-1a2b3c4d00000001_00c0ffee", "000000000005-5a5b5c5d00000003_00c0ffee")
    False
    """
    one, other = _incarnation(version), _incarnation(later)
    return (one is None or one == other) and version_counter(version) <= version_counter(later)


def _incarnation(version: str) -> str | None:
    match = _INCARNATION.match(version)
    return match[1] if match else None


RESTORING = "restoring:"
"""How the name begins that a copy has between the parts of a snapshot."""


def is_version(name: str) -> bool:
    """Return whether a copy's name is a version; False for the placeholder of a restore.

    >>> is_version("000000000012-1a2b3c4d_00c0ffee"), is_version("restoring:000000000012-1a2b3c4d_00c0ffee:3")
    (True, False)
    """
    return ":" not in name


@dataclass
class Work:
    """Progress of a restore: bytes of files, or records of topics. `total` is 0 if unknown."""

    total: int = 0
    done: int = 0


@dataclass(frozen=True)
class Restore:
    """How to bring a copy of the state to a version.

    `base` is the version at which the copy must be before the first step (None: a fresh, empty store). `steps` are
    (changes, version after them), in order; the last one ends in the target. Each version on the way is one of the
    chain. During a snapshot's restore the version is a placeholder that begins with `RESTORING`; after a crash there
    the copy is restored afresh. Iterating over `steps` raises ChangelogError, naming the file, for a damaged one; the
    copy is then at the version of the step before. `work` is counted by iterating.
    """

    base: str | None
    steps: Iterator[tuple[Changes, str]]
    work: Work = field(default_factory=Work)


class TaskChangelog(ABC):
    """The changelog of one task: the common base of its two types, `DeltaChangelog` and `LogChangelog`.

    A class derives from one of the two types. Versions of the state form a chain. A version's name is its counter
    (`version_counter`: one more than that of the version it follows), "-", and something random, which begins with the
    incarnation of the chain (`version_name`); it has letters, digits, '-' and '_'. A name is never given twice, so a
    delta of an attempt that failed leads to a version that no commit names.
    """

    world: World = World()
    """Its clock, threads, tokens and files. What opens the changelog may set another one, before the first call."""
    beside_writer: bool = False
    """Whether the task may write while this object reads. What opens it sets that: then an unfinished delta behind the
    target is no damage."""

    @abstractmethod
    def restore(self, target: str, have: str | None) -> Restore:
        """Plan how to bring a copy that is at `have` to `target`, the version of the last commit.

        When `have` is not an ancestor of `target`, the plan starts afresh (base None). If a file or record on the way
        to `target` is missing or damaged, raises ChangelogError that names it: never a partial plan.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""


# ---------------------------------------------------------------- what listeners get


class RestorePhase(Enum):
    """Kafka Streams: `onRestoreStart`, `onBatchRestored`, `onRestoreEnd` and `onRestoreSuspended`."""

    START = "start"
    BATCH = "batch"
    END = "end"
    SUSPENDED = "suspended"


@dataclass(frozen=True)
class RestoreEvent:
    """A step of bringing the stores of a task on one backend to a version.

    `restored`: entries written so far. `done` of `total`: amount of history read, in bytes (`directory:`) or records
    (`topic:`); `total` is 0 where that is unknown. `reason`: why it was suspended.
    """

    phase: RestorePhase
    task_id: str
    stores: tuple[str, ...]
    version: str
    restored: int = 0
    done: int = 0
    total: int = 0
    reason: str = ""


RestoreListener = Callable[[RestoreEvent], object]
"""Called by the thread that restores: it should return soon. What it raises is logged."""
