"""An application's notes and its driver's lease, in an internal topic: `<application id>-penstock-notes`.

Partition 0 is compacted by note. Partition 1 has the claims to the lease. The broker's timestamps decide who has it;
the drivers' clocks play no part.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from penstock import Commit, FencedError, Lease, LeaseHeldError, LogError, OutputBatch, RecordBatch, TopicPartition

from ..messages import lease_lost
from .clients import Clients
from .committers import ExactlyOnce
from .copies import OffsetCopies
from .producing import SharedOutbox
from .reading import PartitionReader, read_whole
from .topics import NOTES_SUFFIX, KafkaTopics

_CONFIG = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.ms": "600000",
    "min.compaction.lag.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
_NOTES, _LEASE = 0, 1
_LEASED, _CHANGED = "lease", "notes"
"""In place of a task's id, in the transactional ids by which notes are written under the lease, and by which those are
changed that depend on what was there."""
_LOOK_SECONDS = 0.005
_KNOWN_SECONDS = 600.0
"""Seconds after which all notes are read again. Kafka keeps the record of a deletion for a day (`delete.retention.ms`);
a process that reads only new records after that would keep the deleted note.
"""
_MOST_FORGOTTEN = 10_000
"""Number of claims that one start withdraws at most."""
_END_SECONDS = 1.0
"""How long a transaction of notes that another process has begun may take: then a writer ends it, and a reader does
without what is behind it."""


@dataclass
class _Holder:
    token: str
    owner: str
    until_ms: int


@dataclass
class _Wait:
    """The state of a process that waits for a lease: the token of its claims, and the time of its last look.

    `ahead_ms`: the broker's clock less this machine's stopwatch, from its own claim; None before the first one. `end`
    and `holder`: the end of the claims, and who had the lease by them.
    """

    token: str
    ahead_ms: float | None = None
    end: int = -1
    holder: _Holder | None = None


class _KnownNotes(NamedTuple):
    """The notes below an offset of a topic, by the key of their records; None: deleted. `at`: the monotonic clock."""

    topic_id: str
    end: int
    notes: Mapping[bytes | None, bytes | None]
    at: float


class Notes:
    """The notes and leases of applications in one cluster. Thread-safe."""

    def __init__(self, clients: Clients, topics: KafkaTopics, group: Callable[[str], Consumer]) -> None:
        """`group` returns a consumer of an application's group, which it keeps."""
        self._clients = clients
        self._topics = topics
        self._group = group
        self._outbox = SharedOutbox(clients, topics.count)
        self._known: dict[str, _KnownNotes] = {}
        self._waits: dict[str, _Wait] = {}
        """By application: of leases that another driver had."""

    # ------------------------------------------------------------------ notes

    def get(self, application_id: str, key: str) -> bytes | None:
        """Return a note, None if there is none."""
        return self._all(application_id).get(key.encode())

    def _all(self, application_id: str) -> Mapping[bytes | None, bytes | None]:
        """Return all notes. It reads only those that are new since the last call: a consumer takes 20 ms or more.

        An open transaction of another process is waited for some time; then these are the notes before it. A reader
        does not end it: its process may live. Whoever needs what is behind it, a writer or the next driver, does.
        """
        where = TopicPartition(application_id + NOTES_SUFFIX, _NOTES)
        if not self._is_there(where.topic):
            return {}
        topic_id = self._topics.ids([where.topic]).get(where.topic, "")
        end, _ = self._readable_end(where, _END_SECONDS)
        now, anew = time.monotonic(), _KnownNotes("", 0, {}, 0.0)
        known = self._known.get(application_id, anew)
        if not topic_id or topic_id != known.topic_id or known.end > end or now - known.at > _KNOWN_SECONDS:
            known = anew
        notes = dict(known.notes)
        if known.end < end:
            for batch in self._read(application_id, _NOTES, known.end):
                notes.update(zip(batch.keys, batch.values, strict=True))
        self._known[application_id] = _KnownNotes(topic_id, end, notes, now)
        return notes

    def put(self, application_id: str, key: str, value: bytes) -> None:
        """Keep a note; durable when this returns, and every later `get` returns it."""
        self._send(application_id, _NOTES, {key.encode(): value})
        self._make_readable(application_id)

    def _make_readable(self, application_id: str) -> None:
        """Wait until every note that was written before this call can be read.

        A transaction hides what is behind it. One of a process that was killed in `change` is ended here; if that
        process lives, it changes the note once more. One under a lease ends when the next driver takes that. For others
        (a task's first commit after a reset) this waits, as for one that this process has no right to end.
        """
        where = TopicPartition(application_id + NOTES_SUFFIX, _NOTES)
        if self._readable_end(where, _END_SECONDS)[1]:
            return
        with suppress(LogError):
            self._fence(application_id, _CHANGED).close()
        self._wait_until_readable(where)

    def change(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace a note by what `change` returns for it; durable when this returns."""
        self._ensure(application_id)
        self._change(application_id, lambda: {key.encode(): change(self.get(application_id, key))})

    def delete(self, application_id: str) -> None:
        """Delete an application's notes; its lease stays."""
        if self._is_there(application_id + NOTES_SUFFIX):
            self._change(
                application_id,
                lambda: dict.fromkeys(self._all(application_id)),
            )

    def begin_at(self, application_id: str, starts: Sequence[KafkaPartition], others: Sequence[KafkaPartition]) -> None:
        """Commit `starts`, with copies, and `others`, and delete all other notes: one transaction."""
        self._ensure(application_id)
        copies = self.copies(application_id).records(starts)
        self._change(application_id, lambda: dict.fromkeys(self._all(application_id)) | copies, [*starts, *others])

    def copies(self, application_id: str) -> OffsetCopies:
        """Return the copies of an application's offsets."""
        topic = application_id + NOTES_SUFFIX
        return OffsetCopies(
            topic,
            _NOTES,
            lambda: self._all(application_id),
            self._topics.ids,
            lambda: self._ensure(application_id),
        )

    def _change(
        self,
        application_id: str,
        notes: Callable[[], Mapping[bytes | None, bytes | None]],
        offsets: Sequence[KafkaPartition] = (),
    ) -> None:
        """Write what `notes` makes of those that are there, in a transaction that each later call fences.

        So what it has read is still there when it commits; where another call began meanwhile, it reads again. The
        transaction also commits `offsets` of the application.
        """
        where = TopicPartition(application_id + NOTES_SUFFIX, _NOTES)
        while True:
            with suppress(FencedError), closing(self._fence(application_id, _CHANGED)) as fence:
                self._wait_until_readable(where)
                made = notes()
                if made or offsets:
                    keys, values, count = list(made), list(made.values()), len(made)
                    batch = OutputBatch(where.topic, keys, values, [0] * count, None, [[_NOTES]] * count)
                    fence.commit_offsets(list(offsets), [batch])
                    self._wait_until_readable(where)
                return

    # ------------------------------------------------------------------ the lease

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        """Take the lease. Raises LeaseHeldError naming the owner that holds it.

        A driver that waits calls this again and again: it only looks until the lease is over by the broker's clock.
        """
        wait = self._waits.pop(application_id, None) or _Wait(secrets.token_hex(8))
        if self._is_held(application_id, wait):
            self._waits[application_id] = wait
            raise self._held(application_id, wait.holder, ttl_ms)
        lease = _KafkaLease(self, application_id, owner, ttl_ms, wait.token)
        holder = lease.claim()
        if holder is None or holder.token != lease.token:
            own = [at_ms for token, _, at_ms in self._claims(application_id) if token == lease.token]
            wait.ahead_ms = own[-1] - _stopwatch_ms() if own else None
            lease.withdraw()
            self._waits[application_id] = wait
            raise self._held(application_id, holder, ttl_ms)
        if self._may_be_written(application_id, lease.token):
            self._fence(application_id, _LEASED).close()
        self._make_readable(application_id)  # a start must not go by notes that others behind them replace
        self.withdraw(application_id, self._over(application_id))
        return lease

    def _is_held(self, application_id: str, wait: _Wait) -> bool:
        """Return whether another driver has the lease now, as far as that can be known without a claim."""
        where = TopicPartition(application_id + NOTES_SUFFIX, _LEASE)
        if wait.ahead_ms is None or not self._is_there(where.topic):
            return False
        if (end := self._topics.end_offsets([where], stable=False)[where]) != wait.end:
            claims = list(self._claims(application_id))
            wait.end, wait.holder = end, _holder_in(claims)
            # The broker's clock may have been set forward since. Of older claims it may have been set back since.
            wait.ahead_ms = max([wait.ahead_ms, *(at_ms - _stopwatch_ms() for *_, at_ms in claims[-1:])])
        return wait.holder is not None and _stopwatch_ms() + wait.ahead_ms < wait.holder.until_ms

    def _held(self, application_id: str, holder: _Holder | None, ttl_ms: int) -> LeaseHeldError:
        return LeaseHeldError(
            f"application {application_id!r} is already run by {holder.owner if holder else '?'}, which holds its "
            f"lease in {self._clients.where} for at most {ttl_ms / 1000:.1f} s after its end: stop it first"
        )

    def put_under(self, lease: _KafkaLease, application_id: str, key: str, value: bytes) -> None:
        """Keep a note unless a lease was lost, in a transaction that the next holder of the lease fences.

        The order counts. Whoever takes the lease after the claim sees that it has to fence; the claim of whoever has
        taken it before makes this one fail.
        """
        topic = application_id + NOTES_SUFFIX
        self._ensure(application_id)
        with closing(self._fence(lease.application_id, _LEASED)) as fence:
            lease.renew(writes=True)
            fence.commit(Commit({}, ""), [OutputBatch(topic, [key.encode()], [value], [0], None, [[_NOTES]])])
        self._make_readable(application_id)

    def _wait_until_readable(self, partition: TopicPartition) -> None:
        """Return when the records of a commit that has just been made can be read, some milliseconds after it."""
        if not self._readable_end(partition, self._clients.patience.timeout_s)[1]:
            raise self._clients.patience.timed_out(f"with the end of a transaction in {partition}")

    def _readable_end(self, partition: TopicPartition, seconds: float) -> tuple[int, bool]:
        """Return the stable end once it has reached the present end, or after `seconds`; and whether it has."""
        end = self._topics.end_offsets([partition], stable=False)[partition]
        deadline = time.monotonic() + seconds
        while (stable := self._topics.end_offsets([partition], stable=True)[partition]) < end:
            if time.monotonic() > deadline:
                return stable, False
            time.sleep(_LOOK_SECONDS)
        return stable, True

    def _fence(self, application_id: str, name: str) -> ExactlyOnce:
        """Take the fence from its owner, whose open transaction ends; return the transactions of the new one."""
        group = self._group(application_id)
        return ExactlyOnce(self._clients, application_id, name, (), self._topics.count, group)

    def _may_be_written(self, application_id: str, own: str) -> bool:
        """Return whether another process may still write a note under its former lease."""
        claims = {token: claim for token, claim, _ in self._claims(application_id)}
        return any(claim is not None and claim.get("writes") for token, claim in claims.items() if token != own)

    def claim(self, application_id: str, token: str, owner: str, ttl_ms: int, *, writes: bool = False) -> None:
        """Append a claim. `writes`: the holder writes notes that may not count after it has lost the lease."""
        text = json.dumps({"owner": owner, "ttl_ms": ttl_ms, **({"writes": True} if writes else {})})
        self._send(application_id, _LEASE, {token.encode(): text.encode()})

    def withdraw(self, application_id: str, tokens: Sequence[str]) -> None:
        """Release the lease, if one of the tokens holds it, and let compaction delete their claims."""
        self._send(application_id, _LEASE, {token.encode(): None for token in tokens})

    def holder(self, application_id: str) -> _Holder | None:
        """Return the holder of the lease, by the broker's times."""
        return _holder_in(self._claims(application_id))

    def _over(self, application_id: str) -> list[str]:
        """Return the tokens of claims that are over, such as those of drivers that were killed."""
        until: dict[str, int] = {}
        now_ms = 0
        for token, claim, at_ms in self._claims(application_id):
            until.pop(token, None)
            now_ms = at_ms  # the newest one, not the largest: the broker's clock may have been set back
            if claim is not None:
                until[token] = at_ms + claim["ttl_ms"]
        return [token for token, until_ms in until.items() if until_ms <= now_ms][:_MOST_FORGOTTEN]

    def _claims(self, application_id: str) -> Iterator[tuple[str, dict[str, Any] | None, int]]:
        """Yield each claim with its token and the broker's time; None for a withdrawn claim."""
        for batch in self._read(application_id, _LEASE):
            for key, value, at_ms in zip(batch.keys, batch.values, batch.timestamps, strict=True):
                if key is not None:
                    yield key.decode(), None if value is None else json.loads(value), at_ms

    # ------------------------------------------------------------------ inside

    def _send(self, application_id: str, partition: int, records: Mapping[bytes | None, bytes | None]) -> None:
        """Append a record for each key; compaction deletes keys without a value."""
        topic, count = application_id + NOTES_SUFFIX, len(records)
        if not records:
            return
        self._ensure(application_id)
        self._outbox.deliver(
            OutputBatch(topic, list(records), list(records.values()), [0] * count, None, [[partition]] * count)
        )

    def _ensure(self, application_id: str) -> None:
        """Create the topic of an application's notes unless it is there."""
        self._topics.ensure(application_id + NOTES_SUFFIX, 2, _CONFIG)

    def _is_there(self, topic: str) -> bool:
        return topic in self._topics.counts() or topic in self._topics.counts(fresh=True)

    def _read(self, application_id: str, partition: int, first: int = 0) -> Iterator[RecordBatch]:
        """Yield the records from offset `first` on."""
        where = TopicPartition(application_id + NOTES_SUFFIX, partition)
        if not self._is_there(where.topic):
            return
        start = max(first, self._topics.start_offsets([where])[where])
        end = self._topics.end_offsets([where], stable=True)[where]
        with closing(PartitionReader(self._clients, self._clients.reader(application_id), where, start)) as reader:
            yield from read_whole(reader, end)

    def close(self) -> None:
        """Release everything."""
        self._outbox.close()


def _holder_in(claims: Iterable[tuple[str, dict[str, Any] | None, int]]) -> _Holder | None:
    """Return the holder of a lease by its claims. A claim counts if no other one was valid then."""
    holder: _Holder | None = None
    for token, claim, at_ms in claims:
        if claim is None:
            holder = None if holder is not None and token == holder.token else holder
        elif holder is None or token == holder.token or at_ms >= holder.until_ms:
            holder = _Holder(token, claim["owner"], at_ms + claim["ttl_ms"])
    return holder


def _stopwatch_ms() -> float:
    """Return milliseconds of a clock that also counts while the machine sleeps."""
    return 1000 * time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class _KafkaLease(Lease):
    def __init__(self, notes: Notes, application_id: str, owner: str, ttl_ms: int, token: str) -> None:
        self._notes = notes
        self.application_id = application_id
        self._owner = owner
        self._ttl_ms = ttl_ms
        self.token = token
        self._writes = self._released = False

    def claim(self) -> _Holder | None:
        self._notes.claim(self.application_id, self.token, self._owner, self._ttl_ms, writes=self._writes)
        return self._notes.holder(self.application_id)

    def withdraw(self) -> None:
        self._notes.withdraw(self.application_id, [self.token])

    def renew(self, *, writes: bool = False) -> None:
        self._writes = self._writes or writes
        holder = self.claim()
        if holder is None or holder.token != self.token:
            self.withdraw()
            raise lease_lost(self.application_id, self._owner)

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        try:
            self._notes.put_under(self, application_id, key, value)
        except FencedError as error:
            raise lease_lost(self.application_id, self._owner) from error
        except BaseException:
            # The note may arrive later: let the claim end by itself, so that the next holder fences it.
            self._released = True
            raise

    def release(self) -> None:
        if not self._released:
            self._released = True
            self.withdraw()
