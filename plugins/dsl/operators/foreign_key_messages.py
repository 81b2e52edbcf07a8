"""Joins by foreign key: what both tables send each other, and the processors that send and answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from penstock import ProcessorContext, Record, Serde, SerdeError, ValueAndTimestamp
from penstock.operator import Operator, Run, new
from penstock.program.row_serde import RowSerde
from penstock.program.serdes import SerdeLike, resolve_serde

from .reading import ValueGetter
from .table_store import NotLatest

_HASH_BYTES = 16
_SUBSCRIPTION = Struct(">B?16siq")
_RESPONSE = Struct(">???16siq")
_LENGTH = Struct(">I")
_NO_HASH = bytes(_HASH_BYTES)


class Instruction(IntEnum):
    """The work of the right side with a subscription."""

    UNSUBSCRIBE = 0
    """Forget it."""
    UNSUBSCRIBE_AND_ANSWER = 1
    """Forget it, and answer that there is no row."""
    ANSWER = 2
    """Keep it, and answer with the row or without one."""
    ANSWER_IF_FOUND = 3
    """Keep it, and answer if there is a row."""


class Subscription(NamedTuple):
    """The row `key` of the left table refers to a row of the right table, or no longer does.

    `hash` is that of the left row's value, None if it was deleted; `partition` is the partition of the left row.
    `ticket` is the number of a deletion, or 0.
    """

    hash: bytes | None
    instruction: int
    key: Any
    partition: int
    ticket: int


class Response(NamedTuple):
    """The value of the right row, or None, for a left row whose value had this hash.

    `foreign_key` is, if there is no value, the foreign key in bytes, None for none. `ticket`: that of the Subscription.
    """

    hash: bytes | None
    value: Any
    partition: int
    foreign_key: bytes | None
    ticket: int


class SubscriptionSerde(RowSerde[Subscription]):
    """Subscriptions in a topic and in their store; `key` is the serde of the left table's keys."""

    fields = Subscription._fields

    def __init__(self, key: SerdeLike) -> None:
        self.key: Serde[Any] = resolve_serde(key, None, "SubscriptionSerde: key")

    def row(self, parts: Sequence[Any]) -> Subscription:
        return Subscription(*parts)

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return {2: self.key}

    def serialize(self, value: Subscription) -> bytes:
        fixed = _SUBSCRIPTION.pack(value[1], value[0] is not None, value[0] or _NO_HASH, value[3], value[4])
        return fixed + self.key.serialize(value[2])

    def deserialize(self, data: bytes) -> Subscription:
        _check(self, data, _SUBSCRIPTION.size)
        instruction, has_hash, digest, partition, ticket = _SUBSCRIPTION.unpack_from(data)
        key = self.key.deserialize(data[_SUBSCRIPTION.size :])
        return Subscription(digest if has_hash else None, instruction, key, partition, ticket)

    def bind(self, topic: str, *, is_key: bool) -> Serde[Subscription]:
        return SubscriptionSerde(self.key.bind(f"{topic}-pk", is_key=True))


class ResponseSerde(RowSerde[Response]):
    """Responses in a topic; `value` is the serde of the right table's values."""

    fields = Response._fields

    def __init__(self, value: SerdeLike) -> None:
        self.value: Serde[Any] = resolve_serde(value, None, "ResponseSerde: value")

    def row(self, parts: Sequence[Any]) -> Response:
        return Response(*parts)

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return {1: self.value}

    def serialize(self, value: Response) -> bytes:
        digest, found, partition, foreign_key, ticket = value
        has_value, has_foreign_key = found is not None, foreign_key is not None
        fixed = _RESPONSE.pack(has_value, has_foreign_key, digest is not None, digest or _NO_HASH, partition, ticket)
        return fixed + (self.value.serialize(found) if has_value else foreign_key or b"")

    def deserialize(self, data: bytes) -> Response:
        _check(self, data, _RESPONSE.size)
        has_value, has_foreign_key, has_hash, digest, partition, ticket = _RESPONSE.unpack_from(data)
        rest = data[_RESPONSE.size :]
        value = self.value.deserialize(rest) if has_value else None
        foreign_key = rest if has_foreign_key and not has_value else None
        return Response(digest if has_hash else None, value, partition, foreign_key, ticket)


@dataclass(frozen=True)
class JoinSerdes:
    """The serdes of foreign keys, and of the left table's keys and values; what they write is compared, or in stores.

    Each is bound to a topic of its own, named after `topic`, that of the subscriptions; as in Kafka Streams.
    """

    topic: str
    foreign_key: Serde[Any]
    key: Serde[Any]
    value: Serde[Any]

    def of_foreign_keys(self, context: ProcessorContext) -> Serde[Any]:
        """Return the serde of foreign keys."""
        return self.foreign_key.bind(f"{context.application_id}-{self.topic}-fk", is_key=True)

    def of_keys(self, context: ProcessorContext) -> Serde[Any]:
        """Return the serde of the left table's keys."""
        return self.key.bind(f"{context.application_id}-{self.topic}-pk", is_key=True)

    def of_values(self, context: ProcessorContext) -> Serde[Any]:
        """Return the serde of the left table's values, for their hashes."""
        return self.value.bind(f"{context.application_id}-{self.topic}-vh", is_key=False)


def compile_hash(serde: Serde[Any]) -> Callable[[Any], bytes | None]:
    """Return the function that hashes a left row's value, None for None.

    Values that are not plain, such as pickled objects, may be written in another way once they were read: they are
    hashed as they are written the second time.
    """
    serialize, deserialize, plain = serde.serialize, serde.deserialize, serde.immutable_types | serde.checked_types

    def digest(value: Any) -> bytes | None:
        if value is None:
            return None
        data = serialize(value)
        if type(value) not in plain:
            data = serialize(deserialize(data))
        return blake2b(data, digest_size=_HASH_BYTES).digest()

    return digest


def compile_prefix(serde: Serde[Any]) -> Callable[[Any], bytes]:
    """Return the function that makes, of a foreign key, what the keys of its subscriptions begin with."""
    serialize = serde.serialize

    def prefix(foreign_key: Any) -> bytes:
        data = serialize(foreign_key)
        return _LENGTH.pack(len(data)) + data

    return prefix


@dataclass(frozen=True)
class ForeignKeyOf:
    """Returns the foreign key in the key of a subscription, which `compile_prefix` begins."""

    serde: Serde[Any]

    def __call__(self, key: bytes) -> Any:
        (length,) = _LENGTH.unpack_from(key)
        return self.serde.deserialize(key[_LENGTH.size : _LENGTH.size + length])


def with_partition(subscription: Subscription, partition: int) -> Subscription:
    """Return a subscription of the same left row, where that is in another partition."""
    return subscription._replace(partition=partition)


def _check(serde: Serde[Any], data: bytes, least: int) -> None:
    if len(data) < least:
        raise SerdeError(f"{type(serde).__name__} expects at least {least} bytes, found {len(data)}")


_UNSUBSCRIBE, _UNSUBSCRIBE_AND_ANSWER = int(Instruction.UNSUBSCRIBE), int(Instruction.UNSUBSCRIBE_AND_ANSWER)
_ANSWER, _ANSWER_IF_FOUND = int(Instruction.ANSWER), int(Instruction.ANSWER_IF_FOUND)

Send = Callable[[Record, Any, bytes | None, int, int], None]
"""(record, foreign key, hash, instruction, ticket): forwards a Subscription."""

Ask = Callable[[Record, bytes | None, Any, Any], None]
"""(record, hash, foreign key now, foreign key before): sends the subscriptions that an update needs."""


@dataclass(kw_only=True, eq=False)
class ForeignKeySend(Operator):
    """Forwards a Subscription under its foreign key for each update that needs an answer.

    `foreign_key` is a function of key and value. With `is_left`, rows without a right row have a result, too.
    `deletions` is the store of deletions that are not answered yet; only an inner join has it. `rows_expire`: rows of a
    side do, which is no update, so each update needs an answer. Kafka Streams: SubscriptionSendProcessorSupplier.
    """

    foreign_key: Callable[[Any, Any], Any]
    is_left: bool
    serdes: JoinSerdes
    deletions: str | None = None
    ignores_older: bool = False
    rows_expire: bool = False

    @classmethod
    def saved_with(cls, *args: Any, deletions: str | None = None, **options: Any) -> str | None:
        """Return the store of deletions: the numbers of deletions belong to it."""
        return deletions

    def bind(self, context: ProcessorContext) -> Run:
        key_bytes = self.serdes.of_foreign_keys(context).serialize
        digest = compile_hash(self.serdes.of_values(context))

        def is_same(one: Any, other: Any) -> bool:
            return one is other if one is None or other is None else key_bytes(one) == key_bytes(other)

        drop, foreign_key, ignores_older = context.metrics.drop, self.foreign_key, self.ignores_older
        send = _compile_send(context)
        ask = self._left(send, is_same) if self.is_left else self._inner(context, send, is_same)

        def run(record: Record) -> None:
            key, change, _, _ = record
            if ignores_older and type(change) is NotLatest:
                drop("not_latest")
                return
            value, old = change[0], change[1]
            value_hash = digest(value)  # of the row as it is in the store: the function may change its argument
            to = None if value is None else foreign_key(key, value)
            before = None if old is None else foreign_key(key, old)
            ask(record, value_hash, to, before)

        return run

    def _left(self, send: Send, is_same: Callable[[Any, Any], bool]) -> Ask:
        rows_expire = self.rows_expire

        def ask(record: Record, value_hash: bytes | None, to: Any, before: Any) -> None:
            if record[1][0] is None and record[1][1] is None and not rows_expire:
                return
            if before is not None and not is_same(to, before):
                send(record, before, value_hash, _UNSUBSCRIBE, 0)
            # A deletion and a row without a foreign key need an answer as well: it makes the result.
            send(record, to, value_hash, _ANSWER, 0)

        return ask

    def _inner(self, context: ProcessorContext, send: Send, is_same: Callable[[Any, Any], bool]) -> Ask:
        deletions, drop = context.get_store(str(self.deletions)), context.metrics.drop
        is_deleted, note = deletions.get, deletions.put
        tickets, rows_expire = context.saved_numbers, self.rows_expire
        answer_if_needed = _ANSWER if rows_expire else _ANSWER_IF_FOUND

        def ask(record: Record, value_hash: bytes | None, to: Any, before: Any) -> None:
            key = record[0]
            if to is None:
                if record[1][0] is not None:
                    drop("null_foreign_key")
                if before is not None:
                    tickets["ticket"] = ticket = tickets.get("ticket", 0) + 1
                    note(key, ticket)
                    send(record, before, value_hash, _UNSUBSCRIBE_AND_ANSWER, ticket)
                elif rows_expire:
                    send(record, None, value_hash, _ANSWER, 0)
            elif before is None:
                if is_deleted(key) is None:
                    send(record, to, value_hash, answer_if_needed, 0)
                else:
                    # The answer to the deletion will be stale, so this one has to delete the result if it makes none.
                    note(key, None)
                    send(record, to, value_hash, _ANSWER, 0)
            elif is_same(to, before):
                send(record, to, value_hash, answer_if_needed, 0)
            else:
                send(record, before, value_hash, _UNSUBSCRIBE, 0)
                send(record, to, value_hash, _ANSWER, 0)

        return ask


def _compile_send(context: ProcessorContext) -> Send:
    forward, partition = context.send, int(context.task_id.rpartition("_")[2])

    def send(record: Record, foreign_key: Any, value_hash: bytes | None, instruction: int, ticket: int) -> None:
        subscription = new(Subscription, (value_hash, instruction, record[0], partition, ticket))
        forward((foreign_key, subscription, record[2], record[3]))

    return send


@dataclass(kw_only=True, eq=False)
class ForeignKeyReceive(Operator):
    """Stores subscriptions by foreign and left key, and forwards them (SubscriptionReceiveProcessorSupplier)."""

    subscriptions: str
    serdes: JoinSerdes

    def bind(self, context: ProcessorContext) -> Run:
        prefix = compile_prefix(self.serdes.of_foreign_keys(context))
        key_bytes = self.serdes.of_keys(context).serialize
        put, forward, drop = context.get_store(self.subscriptions).put, context.send, context.metrics.drop

        def run(record: Record) -> None:
            foreign_key, subscription, timestamp, _ = record
            if foreign_key is None:
                # The row refers to nothing, and its side still needs an answer.
                if subscription[1] == _ANSWER:
                    forward(record)
                else:
                    drop("null_key")
                return
            where = prefix(foreign_key) + key_bytes(subscription[2])
            ends = subscription[1] in (_UNSUBSCRIBE, _UNSUBSCRIBE_AND_ANSWER)
            put(where, None if ends else new(ValueAndTimestamp, (subscription, timestamp)))
            forward(record)

        return run


@dataclass(kw_only=True, eq=False)
class ForeignKeyAnswer(Operator):
    """Answers a subscription with the right row, as it was sent last: an update that waits in a record cache follows.

    Kafka Streams: SubscriptionJoinProcessorSupplier, which answers with the update that waits.
    """

    right: ValueGetter
    serdes: JoinSerdes

    def bind(self, context: ProcessorContext) -> Run:
        key_bytes = self.serdes.of_foreign_keys(context).serialize
        forward, get = context.send, self.right.open(context, sent=True)

        def run(record: Record) -> None:
            foreign_key, (value_hash, instruction, key, partition, ticket), timestamp, headers = record
            if instruction == _UNSUBSCRIBE:
                return
            found = None if foreign_key is None else get(foreign_key)
            if found is None:
                if instruction == _ANSWER_IF_FOUND:
                    return
                value = None
            else:
                timestamp = max(timestamp, found[1])
                value = None if instruction == _UNSUBSCRIBE_AND_ANSWER else found[0]
            of = key_bytes(foreign_key) if value is None and foreign_key is not None else None
            response = new(Response, (value_hash, value, partition, of, ticket))
            forward((key, response, timestamp, headers))

        return run


@dataclass(kw_only=True, eq=False)
class ForeignKeyUpdates(Operator):
    """Answers all subscriptions to a right row that was updated. Kafka Streams: ForeignTableJoinProcessorSupplier."""

    subscriptions: str
    serdes: JoinSerdes
    ignores_older: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        serde = self.serdes.of_foreign_keys(context)
        prefix, key_bytes = compile_prefix(serde), serde.serialize
        scan, forward = context.get_store(self.subscriptions).prefix_scan, context.send
        drop, ignores_older = context.metrics.drop, self.ignores_older

        def run(record: Record) -> None:
            foreign_key, change, timestamp, headers = record
            if foreign_key is None:
                drop("null_key")
                return
            if ignores_older and type(change) is NotLatest:
                drop("not_latest")
                return
            of = key_bytes(foreign_key) if change[0] is None else None
            with scan(prefix(foreign_key)) as entries:
                for _, ((value_hash, _, key, partition, _), _) in entries:
                    response = new(Response, (value_hash, change[0], partition, of, 0))
                    forward((key, response, timestamp, headers))

        return run
