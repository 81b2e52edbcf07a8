"""What other processes do in the tests of logs: they are killed, were replaced and write, or are stopped in a call.

They import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock import Commit, Lease, Log, LogError, ManualClock, OutputBatch, TaskCommitter, TopicPartition

from .child import Step, act_until_killed, without_room
from .races import Side, act_as

APPLICATION = "application"
INPUTS = [TopicPartition("in", 0), TopicPartition("in", 1)]
Opener = Callable[[Path, ManualClock], Log]
Work = tuple[Commit, Sequence[OutputBatch]]
_ROUND_MS = 1_000_000


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


def look_at_damage(connection: Connection, opener: Opener, where: tuple[Path, int]) -> None:
    """Open a log whose files are damaged; send what is there, or the error."""
    try:
        log = opener(where[0], ManualClock(where[1]))
        connection.send(seen(log) if log.topics() else {"topics": []})
    except LogError as error:
        connection.send(f"LogError: {error}")
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")


def seen(log: Log) -> dict[str, Any]:
    """Return what is in a log."""
    names = ["in", "out", "side"]
    partitions = [TopicPartition(name, number) for name in names for number in range(log.topic(name).partitions)]
    ends = log.end_offsets(partitions)
    starts = log.start_offsets(partitions)
    records: dict[str, list[bytes | None]] = {}
    for each in partitions:
        at = starts[each]
        while at < ends[each] and (batches := log.fetch(each, at, ends[each], 1 << 20)):
            records.setdefault(each.topic, []).extend(value for batch in batches for value in batch.values)
            at = batches[-1].next_offset
    commit = log.last_commit(APPLICATION, "0_0", INPUTS)
    note = log.get_meta(APPLICATION, "note")
    return {"topics": names, "ends": dict(ends), "records": records, "commit": commit, "note": note}


def act_when_told(connection: Connection, opener: Opener, where: tuple[Path, int], side: str) -> None:
    """Open the log, and act as a side of races until the connection ends."""
    clock = ManualClock(where[1])
    act_as(connection, LogSide(opener(where[0], clock), clock), side, LogError)


def application_of(number: int) -> str:
    """Return the application of a race."""
    return f"race-{number}"


def topic_of(number: int) -> str:
    """Return the topic of a race that is created or deleted."""
    return f"topic-{number}"


class LogSide(Side):
    """A side of races on a log."""

    def __init__(self, log: Log, clock: ManualClock) -> None:
        self._log = log
        self._clock = clock
        self._committers: list[TaskCommitter] = []
        self._leases: list[Lease] = []

    def begin(self, name: str, number: int) -> None:
        """Begin a race when leases of the one before have expired."""
        self.end()
        self.afterwards = lambda: None
        self._mine, self._number, self._now_ms = b"-" + name.encode(), number, _ROUND_MS * number
        self._name, self._topic = application_of(number), topic_of(number)
        self._set_clock(0)

    def end(self) -> None:
        """Close committers, and release leases."""
        for committer in self._committers:
            committer.close()
        for lease in self._leases:
            with suppress(LogError):
                lease.release()
        self._committers, self._leases = [], []

    def _set_clock(self, seconds: int) -> None:
        self._clock.advance(timedelta(milliseconds=self._now_ms + seconds * 1000 - self._clock.now_ms()))

    def _open(self, task: str = "0_0") -> TaskCommitter:
        committer = self._log.open_committer(self._name, task, INPUTS[task == "0_1" :][:1])
        self._committers.append(committer)
        return committer

    def _output(self, *values: bytes, topic: str = "out") -> OutputBatch:
        mine: list[bytes | None] = [value + self._mine for value in values]
        return OutputBatch(topic, [b"%d" % self._number] * len(mine), mine, [0] * len(mine))

    def commits(self) -> Callable[[], object]:
        """Commit outputs and a position."""
        committer = self._open()
        outputs = [self._output(b"one"), self._output(b"two")]
        return lambda: committer.commit(Commit({INPUTS[0]: 1}, "v1", b"state"), outputs)

    def commits_another_task(self) -> Callable[[], object]:
        """Commit a second task of the application."""
        committer = self._open("0_1")
        return lambda: committer.commit(Commit({INPUTS[1]: 1}, "v1"), [self._output(b"of another task")])

    def opens(self) -> Callable[[], object]:
        """Take over the task; afterwards commit."""

        def open_committer() -> object:
            committer = self._open()
            commit = Commit({INPUTS[0]: 2}, "v2")
            self.afterwards = lambda: committer.commit(commit, [self._output(b"of the successor")])
            found = committer.committed
            return found and found.version

        return open_committer

    def forgets(self) -> Callable[[], object]:
        """Delete the application's commits."""
        return lambda: self._log.delete_commits(self._name)

    def sets_positions(self) -> Callable[[], object]:
        """Let the application begin anew."""
        return lambda: self._log.set_positions(self._name, {INPUTS[0]: 5})

    def looks(self) -> Callable[[], object]:
        """Read the position of an earlier commit."""
        self._open().commit(Commit({INPUTS[0]: 0}, "v0"), [])
        return lambda: self._log.committed(self._name, INPUTS)

    def appends(self) -> Callable[[], object]:
        """Produce outside any task."""
        return lambda: self._log.append(self._output(b"appended", b"also"))

    def counts(self) -> Callable[[], object]:
        """Change a note by what it was."""
        return lambda: self._log.change_meta(self._name, "note", lambda before: b"%d" % (int(before or 0) + 1))

    def notes(self) -> Callable[[], object]:
        """Replace a note."""
        return lambda: self._log.put_meta(self._name, "note", b"5")

    def _lease(self, owner: str) -> Lease:
        lease = self._log.lease(self._name, owner, 10_000)
        self._leases.append(lease)
        self.afterwards = lease.renew
        return lease

    def _late_lease(self) -> Lease:
        lease = self._lease("driver one")
        self._set_clock(11)
        return lease

    def leads(self) -> Callable[[], object]:
        """Take the lease; afterwards renew it."""
        return lambda: self._lease("driver one") and None

    def leads_late(self) -> Callable[[], object]:
        """Take the lease when the first one has expired, and keep a note under it."""

        def lead() -> None:
            self._set_clock(22)
            self._lease("driver two").put_meta(self._name, "note", b"of driver two")

        return lead

    def renews_late(self) -> Callable[[], object]:
        """Renew a lease that has expired."""
        self._set_clock(0)
        return self._late_lease().renew

    def notes_late(self) -> Callable[[], object]:
        """Keep a note under a lease that has expired."""
        self._set_clock(0)
        lease = self._late_lease()
        return lambda: lease.put_meta(self._name, "note", b"of driver one")

    def releases_late(self) -> Callable[[], object]:
        """Give up a lease that has expired."""
        self._set_clock(0)
        return self._late_lease().release

    def creates(self) -> Callable[[], object]:
        """Create a topic."""
        return lambda: self._log.create_topic(self._topic, 2)

    def ensures(self) -> Callable[[], object]:
        """Create a topic unless it is there."""
        return lambda: self._log.ensure_topic(self._topic, 2)

    def deletes(self) -> Callable[[], object]:
        """Delete a topic."""
        self._log.create_topic(self._topic, 1)
        return lambda: self._log.delete_topic(self._topic)

    def appends_to_it(self) -> Callable[[], object]:
        """Produce to the topic that is deleted."""
        return lambda: self._log.append(self._output(b"appended", topic=self._topic))
