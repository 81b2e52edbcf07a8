"""The declaration of a node that takes records and answers later: its options, and the store of these records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from struct import Struct
from typing import Any, cast

from ..clock import Duration, duration_ms
from ..errors import ConfigError, TopologyError
from ..hooks import registry
from ..processor import AsyncProcessor, Handler, InFlightOptions, PendingRecord
from ..serde import Serde
from ..store import StoreBuilder
from ..store.division import Division
from ..store.kinds.key_value import key_value_store
from ..store.record_cache import SourceRecord
from ..support.names import pending_store_name
from ..support.parts import headers_at, headers_bytes, part_at, sized
from ..support.text_form import from_json, to_json
from .row_serde import RowSerde
from .serdes import resolve_serde

_ORDERS = ("key", "partition", "none")
_HEAD, _NUMBER, _PLACE, _COUNT = Struct(">qqii??"), Struct(">q?"), Struct(">iqq"), Struct(">i")


@dataclass(eq=False)
class PendingKeySerde(RowSerde[tuple[int, Any]]):
    """(arrival number, key of the record), in the order of arrival."""

    key: Serde[Any]

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return {1: self.key}

    def serialize(self, value: tuple[int, Any]) -> bytes:
        """Return the number, whether there is a key, and the key's bytes."""
        number, key = value
        return _NUMBER.pack(number, key is not None) + (b"" if key is None else self.key.serialize(key))

    def deserialize(self, data: bytes) -> tuple[int, Any]:
        number, has_key = _NUMBER.unpack_from(data)
        return number, self.key.deserialize(data[_NUMBER.size :]) if has_key else None


@dataclass(eq=False)
class PendingRecordSerde(RowSerde[PendingRecord]):
    """A record in flight: times and attempt, headers, the place and the content of its source, and its value."""

    value: Serde[Any]

    fields = PendingRecord._fields

    def row(self, parts: Sequence[Any]) -> PendingRecord:
        return PendingRecord(*parts)

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return {0: self.value, len(parts) - 1: _SourceForm()}

    def serialize(self, value: PendingRecord) -> bytes:
        """Return all parts, each with its length where it has none of its own."""
        headers, source = value.headers, value.source
        parts = [
            _HEAD.pack(
                value.timestamp, value.stream_time, value.attempt, len(headers), source is not None,
                value.value is not None,
            ),
            headers_bytes(headers),
        ]  # fmt: skip
        if source is not None:
            parts += (
                sized(source.topic.encode()), _PLACE.pack(source.partition, source.offset, source.timestamp),
                sized(source.key), sized(source.value), _COUNT.pack(len(source.headers)),
                headers_bytes(source.headers),
            )  # fmt: skip
        if value.value is not None:
            parts.append(self.value.serialize(value.value))
        return b"".join(parts)

    def deserialize(self, data: bytes) -> PendingRecord:
        timestamp, stream_time, attempt, count, has_source, has_value = _HEAD.unpack_from(data)
        headers, at = headers_at(data, _HEAD.size, count)
        source = None
        if has_source:
            topic, at = part_at(data, at)
            partition, offset, time = _PLACE.unpack_from(data, at)
            key, at = part_at(data, at + _PLACE.size)
            raw, at = part_at(data, at)
            (count,), at = _COUNT.unpack_from(data, at), at + _COUNT.size
            own, at = headers_at(data, at, count)
            source = SourceRecord((topic or b"").decode(), partition, offset, key, raw, own, time)
        value = self.value.deserialize(data[at:]) if has_value else None
        return PendingRecord(value, headers, timestamp, stream_time, attempt, source)


class _SourceForm(Serde[SourceRecord]):
    """The text form of the source of a record in flight."""

    def serialize(self, value: SourceRecord) -> bytes:
        raise NotImplementedError

    def deserialize(self, data: bytes) -> SourceRecord:
        raise NotImplementedError

    def to_json(self, value: SourceRecord) -> Any:
        return to_json(value._asdict())

    def from_json(self, data: Any) -> SourceRecord:
        return SourceRecord(**from_json(data))


def pending_store(name: str, key_serde: Serde[Any], value_serde: Serde[Any]) -> StoreBuilder:
    """Declare the store of a node's records in flight; the serdes are those of their keys and values."""
    made = key_value_store(name, key_serde=PendingKeySerde(key_serde), value_serde=PendingRecordSerde(value_serde))
    return replace(made, division=Division(record_key=itemgetter(1)))


def key_bytes_of(key_serde: Serde[Any], value_serde: Serde[Any]) -> Callable[[Any], bytes]:
    """Return the function that checks a record on arrival: the bytes of its key, b"" without one.

    Its value may have to be stored, and arrival is the time to say that the serde refuses it.
    """

    def key_bytes(record: Any) -> bytes:
        key, value = record[0], record[1]
        if value is not None:
            value_serde.serialize(value)
        return b"" if key is None else b"\1" + key_serde.serialize(key)

    return key_bytes


def pending_store_of(where: str, node: str, supplier: object) -> list[StoreBuilder]:
    """Return the declaration of the store of an AsyncProcessor's records in flight, in a list; else an empty list."""
    kind = async_class(supplier)
    if kind is None:
        return []
    serdes = (resolve_serde(each, "msgpack", where) for each in (kind.key_serde, kind.value_serde))
    return [pending_store(pending_store_name(node), *serdes)]


def async_class(supplier: object) -> type[AsyncProcessor] | None:
    """Return the class of the AsyncProcessors that a supplier makes; None if it makes others, or is a function."""
    kind: Any = registry().load("processor", supplier) if isinstance(supplier, str) else supplier
    while isinstance(kind, partial):
        kind = kind.func
    return kind if isinstance(kind, type) and issubclass(kind, AsyncProcessor) else None


def call_options(
    verb: str, function: Any, capacity: object, max_pending: object, timeout: Duration, order: str,
    retries: Handler | None,
) -> InFlightOptions:  # fmt: skip
    """Return how the calls of a function run. Raises TopologyError or ConfigError for a wrong option."""
    for name, count in (("capacity", capacity), ("max_pending", max_pending)):
        if type(count) is not int or count < 1:
            raise TopologyError(f"{verb}: {name} is a number from 1 on, found {count!r}")
    timeout_ms = duration_ms(timeout, f"{verb}: timeout")
    if timeout_ms < 1:
        raise ConfigError(f"{verb}: timeout={timeout!r}: expected 1ms or longer")
    if order not in _ORDERS:
        raise TopologyError(f"{verb}: order is one of {', '.join(map(repr, _ORDERS))}, found {order!r}")
    if retries is not None and not callable(retries):
        raise TopologyError(f"{verb}: retries is an error handler such as Retry(), found {retries!r}")
    return InFlightOptions(
        cast(int, capacity), cast(int, max_pending), timeout_ms, cast(Any, order), retries,
        is_async=is_coroutine_function(function),
    )  # fmt: skip


def is_coroutine_function(function: Any) -> bool:
    """Return whether what a function returns is to be awaited; looks through `functools.partial` and `__call__`."""
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    return not inspect.isroutine(function) and inspect.iscoroutinefunction(type(function).__call__)
