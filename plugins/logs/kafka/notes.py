"""An application's notes and its driver's lease, in an internal topic: `<application id>-penstock-notes`.

Partition 0 is compacted by note. Partition 1 has the claims to the lease. The broker's timestamps decide who has it;
the drivers' clocks play no part.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from penstock import Lease, LeaseHeldError, LogError, OutputBatch, RecordBatch, TopicPartition

from ..messages import lease_lost
from .clients import Clients
from .producing import SharedOutbox
from .reading import PartitionReader, read_whole
from .topics import NOTES_SUFFIX, Topics

_CONFIG = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.ms": "600000",
    "min.compaction.lag.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
_NOTES, _LEASE = 0, 1
_MOST_FORGOTTEN = 10_000
"""Number of claims that one start withdraws at most."""


@dataclass
class _Holder:
    token: str
    owner: str
    until_ms: int


class Notes:
    """The notes and leases of applications in one cluster. Thread-safe."""

    def __init__(self, clients: Clients, topics: Topics) -> None:
        self._clients = clients
        self._topics = topics
        self._outbox = SharedOutbox(clients, topics.count)

    # ------------------------------------------------------------------ notes

    def get(self, application_id: str, key: str) -> bytes | None:
        """Return a note, None if there is none."""
        found = None
        for batch in self._read(application_id, _NOTES):
            for name, value in zip(batch.keys, batch.values, strict=True):
                if name == key.encode():
                    found = value
        return found

    def put(self, application_id: str, key: str, value: bytes) -> None:
        """Keep a note; durable when this returns."""
        self._send(application_id, _NOTES, {key.encode(): value})

    def delete(self, application_id: str) -> None:
        """Delete an application's notes; its lease stays."""
        keys = {key for batch in self._read(application_id, _NOTES) for key in batch.keys}
        self._send(application_id, _NOTES, dict.fromkeys(keys))

    # ------------------------------------------------------------------ the lease

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        """Take the lease. Raises LeaseHeldError naming the owner that holds it."""
        lease = _KafkaLease(self, application_id, owner, ttl_ms)
        holder = lease.claim()
        if holder is None or holder.token != lease.token:
            lease.withdraw()
            raise LeaseHeldError(
                f"application {application_id!r} is already run by {holder.owner if holder else '?'}, which holds its "
                f"lease in {self._clients.where} for at most {ttl_ms / 1000:.1f} s after its end: stop it first"
            )
        self.withdraw(application_id, self._over(application_id))
        return lease

    def claim(self, application_id: str, token: str, owner: str, ttl_ms: int) -> None:
        """Append a claim."""
        text = json.dumps({"owner": owner, "ttl_ms": ttl_ms})
        self._send(application_id, _LEASE, {token.encode(): text.encode()})

    def withdraw(self, application_id: str, tokens: Sequence[str]) -> None:
        """Release the lease, if one of the tokens holds it, and let compaction delete their claims."""
        self._send(application_id, _LEASE, {token.encode(): None for token in tokens})

    def holder(self, application_id: str) -> _Holder | None:
        """Return the holder of the lease, by the broker's times. A claim counts if no other one was valid then."""
        holder: _Holder | None = None
        for token, claim, at_ms in self._claims(application_id):
            if claim is None:
                holder = None if holder is not None and token == holder.token else holder
            elif holder is None or token == holder.token or at_ms >= holder.until_ms:
                holder = _Holder(token, claim["owner"], at_ms + claim["ttl_ms"])
        return holder

    def _over(self, application_id: str) -> list[str]:
        """Return the tokens of claims that are over, such as those of drivers that were killed."""
        until: dict[str, int] = {}
        now_ms = 0
        for token, claim, at_ms in self._claims(application_id):
            until.pop(token, None)
            now_ms = max(now_ms, at_ms)
            if claim is not None:
                until[token] = at_ms + claim["ttl_ms"]
        return [token for token, until_ms in until.items() if until_ms <= now_ms][:_MOST_FORGOTTEN]

    def _claims(self, application_id: str) -> Iterator[tuple[str, dict[str, Any] | None, int]]:
        """Yield each claim with its token and the broker's time; None for one that was withdrawn."""
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
        if not self._is_there(topic):
            self._create(topic)
        self._outbox.deliver(
            OutputBatch(topic, list(records), list(records.values()), [0] * count, None, [[partition]] * count)
        )

    def _is_there(self, topic: str) -> bool:
        return topic in self._topics.counts() or topic in self._topics.counts(fresh=True)

    def _create(self, topic: str) -> None:
        try:
            self._topics.create(topic, 2, _CONFIG)
        except LogError:
            # Two drivers may start at once.
            if not self._is_there(topic):
                raise

    def _read(self, application_id: str, partition: int) -> Iterator[RecordBatch]:
        where = TopicPartition(application_id + NOTES_SUFFIX, partition)
        if not self._is_there(where.topic):
            return
        start = self._topics.start_offsets([where])[where]
        end = self._topics.end_offsets([where], stable=True)[where]
        with closing(PartitionReader(self._clients, self._clients.consumer(application_id), where, start)) as reader:
            yield from read_whole(reader, end)

    def close(self) -> None:
        """Release everything."""
        self._outbox.close()


class _KafkaLease(Lease):
    def __init__(self, notes: Notes, application_id: str, owner: str, ttl_ms: int) -> None:
        self._notes = notes
        self._application_id = application_id
        self._owner = owner
        self._ttl_ms = ttl_ms
        self.token = secrets.token_hex(8)
        self._released = False

    def claim(self) -> _Holder | None:
        self._notes.claim(self._application_id, self.token, self._owner, self._ttl_ms)
        return self._notes.holder(self._application_id)

    def withdraw(self) -> None:
        self._notes.withdraw(self._application_id, [self.token])

    def renew(self) -> None:
        holder = self.claim()
        if holder is None or holder.token != self.token:
            self.withdraw()
            raise lease_lost(self._application_id, self._owner)

    def release(self) -> None:
        if not self._released:
            self._released = True
            self.withdraw()
