"""What other processes do in the tests of logs: they are killed while they write, or were replaced and write.

They import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock import Commit, Log, LogError, ManualClock, OutputBatch, TopicPartition

from .child import Step, act_until_killed, without_room

APPLICATION = "application"
INPUTS = [TopicPartition("in", 0), TopicPartition("in", 1)]
Opener = Callable[[Path, ManualClock], Log]
Work = tuple[Commit, Sequence[OutputBatch]]


def commit_until_killed(
    connection: Connection, opener: Opener, where: tuple[Path, int], works: Sequence[Work], place: Step | None
) -> None:
    """Open a task, send its last commit, make the commits, and kill this process at a step of the last one."""
    log = opener(where[0], ManualClock(where[1]))
    committer = log.open_committer(APPLICATION, "0_0", INPUTS)
    connection.send(committer.committed)
    *before, last = works
    for work in before:
        committer.commit(*work)
    connection.send("ready")
    act_until_killed(connection, lambda: committer.commit(*last), place)


def call_until_killed(
    connection: Connection,
    opener: Opener,
    where: tuple[Path, int],
    calls: Sequence[tuple[str, Any]],
    place: Step | None,
) -> None:
    """Call methods of the log, and kill this process at a step of the last call."""
    log = opener(where[0], ManualClock(where[1]))
    *before, (method, given) = calls
    for name, arguments in before:
        getattr(log, name)(*arguments)
    connection.send("ready")
    act_until_killed(connection, lambda: getattr(log, method)(*given), place)


def commit_when_told(connection: Connection, opener: Opener, where: tuple[Path, int], task: str) -> None:
    """Open a task, and make each commit that is received; send what happens."""
    log = opener(where[0], ManualClock(where[1]))
    committer = log.open_committer(APPLICATION, task, INPUTS)
    connection.send(committer.committed)
    while True:
        try:
            work = connection.recv()
        except EOFError:
            return
        try:
            committer.commit(*work)
        except LogError as error:
            connection.send(type(error).__name__)
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")
        else:
            connection.send("committed")


def hold_a_lease(connection: Connection, opener: Opener, where: tuple[Path, int]) -> None:
    """Take the lease, and hold it until the connection ends."""
    log = opener(where[0], ManualClock(where[1]))
    lease = log.lease(APPLICATION, "driver one", 10_000)
    connection.send("held")
    try:
        connection.recv()
    except EOFError:
        lease.release()


def commit_without_room(connection: Connection, opener: Opener, where: tuple[Path, int], work: Work) -> None:
    """Commit where files may not grow; send what was raised."""
    log = opener(where[0], ManualClock(where[1]))
    committer = log.open_committer(APPLICATION, "0_0", INPUTS)
    try:
        with without_room(where[0]):
            committer.commit(*work)
        outcome = "committed"
    except LogError:
        outcome = "LogError"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    connection.send(outcome)
