"""The messages between the two sides of a foreign-key join, and their serdes.

The left side subscribes to a foreign key. The right side keeps the subscriptions, and answers each of them, and each of
its own updates, with its row. Semantics: Kafka Streams' foreign-key join (KIP-213).

Answers to one foreign key come back in order, those to different ones do not. An answer is stale if the left row has
changed since. Kafka Streams drops stale answers, and an inner join then keeps a result for ever where the dropped one
would have deleted it, and the next one is not sent because there was nothing to join. So here, an answer without a row
says which foreign key it is for, and a row that is inserted again while the answer to its deletion is on its way asks
for an answer in any case (a `ticket` tells the answer to the last deletion from earlier ones). Where no answer is
stale, Kafka Streams has the same outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from penstock import ProcessorContext, Serde, SerdeError, WrappingSerde
from penstock.program.serdes import SerdeLike, resolve_serde

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


class SubscriptionSerde(WrappingSerde[Subscription]):
    """Subscriptions in a topic and in their store; `key` is the serde of the left table's keys."""

    def __init__(self, key: SerdeLike) -> None:
        self.key: Serde[Any] = resolve_serde(key, None, "SubscriptionSerde: key")

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


class ResponseSerde(WrappingSerde[Response]):
    """Responses in a topic; `value` is the serde of the right table's values."""

    def __init__(self, value: SerdeLike) -> None:
        self.value: Serde[Any] = resolve_serde(value, None, "ResponseSerde: value")

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

    The hash is taken of what is written. A value before it was written and the same value read again may be written as
    different bytes (pickled objects are), so what is not plain is hashed as it is written the second time.
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
