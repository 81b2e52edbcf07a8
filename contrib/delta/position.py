"""The position of a sink in a Delta table: application transactions (`txn`), in the commit that has the rows.

A transaction has a name and a whole number, and checkpoints keep the last one of each name. `NAME` has the next offset,
-1 for none; `NAME/topic-id/0`, `/1` ... have the id of the topic, seven bytes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from penstock import SinkError, SinkPlace, SinkPosition
from penstock.contrib.arrow.library import load as load_arrow

from .library import SINK, Storage, load
from .local import local_path, sync_commit

_BYTES, _MORE, _SHIFT = 7, 8, 56
"""Bytes of a number, and in its eighth byte: how many of them count, and a flag that another number follows."""
_ATTEMPTS = 20


def name_of(place: SinkPlace) -> str:
    """Return the name of a place's transaction."""
    parts = (place.application_id, place.sink, place.topic, str(place.partition))
    return "/".join(["penstock", *(quote(part, safe="") for part in parts)])


def read_position(table: Any, place: SinkPlace) -> SinkPosition | None:
    """Return the position as of the version of a table's handle."""
    name = name_of(place)
    next_offset = table.transaction_version(name)
    if next_offset is None or next_offset < 0:
        return None
    topic_id, part, has_more = b"", 0, True
    while has_more:
        number = table.transaction_version(_part_name(name, part))
        if number is None:
            raise SinkError(f"transaction {name!r} has no topic's id: another program has written it")
        flags = number >> _SHIFT
        topic_id += number.to_bytes(_BYTES + 1, "big")[1 : 1 + flags % _MORE]
        part, has_more = part + 1, flags >= _MORE
    return SinkPosition(topic_id.decode(), next_offset)


def is_still_at(table: Any, place: SinkPlace, position: SinkPosition | None) -> bool:
    """Return whether the handle of a table still has this position: the offset, and the first bytes of the id."""
    name = name_of(place)
    next_offset = table.transaction_version(name)
    if position is None:
        return next_offset is None or next_offset < 0
    if next_offset != position.next_offset:
        return False
    first = _part_name(name, 0)
    return bool(table.transaction_version(first) == _numbers(name, position.topic_id)[first])


def transactions(place: SinkPlace, before: SinkPosition | None, position: SinkPosition | None) -> list[Any]:
    """Return the transactions that move a position. Those of the topic's id stay if it does."""
    name = name_of(place)
    numbers = {name: -1 if position is None else position.next_offset}
    if position is not None and (before is None or before.topic_id != position.topic_id):
        numbers |= _numbers(name, position.topic_id)
    return [load().Transaction(each, number) for each, number in numbers.items()]


def _part_name(name: str, part: int) -> str:
    return f"{name}/topic-id/{part}"


def _numbers(name: str, topic_id: str) -> Mapping[str, int]:
    data, numbers = topic_id.encode(), dict[str, int]()
    for part, first in enumerate(range(0, len(data) or 1, _BYTES)):
        piece = data[first : first + _BYTES]
        flags = len(piece) + (_MORE if first + _BYTES < len(data) else 0)
        numbers[_part_name(name, part)] = flags << _SHIFT | int.from_bytes(piece.ljust(_BYTES, b"\0"), "big")
    return numbers


def set_position(
    table_uri: str,
    place: SinkPlace,
    position: SinkPosition | None,
    storage_options: Mapping[str, str] | None = None,
) -> SinkPosition | None:
    """Set the position of a sink whose application is stopped, and return the one before; None: there is none.

    The rows stay as they are. After None, the sink writes again what it reads again.
    """
    deltalake, options = load(), dict(storage_options or {})
    storage = Storage(table_uri, options, "the table")
    with storage.explained(was_opened=False, was_written=False):
        table = deltalake.DeltaTable(local_path(table_uri) or table_uri, storage_options=options)
        before = read_position(table, place)
        schema = load().Schema.to_arrow(table.schema())
        append(table, _no_rows(schema), transactions(place, before, position))
    directory = local_path(table_uri)
    if directory is not None:
        sync_commit(directory, table.version())
    return before


def _no_rows(schema: Any) -> Any:
    return load_arrow(SINK, "delta").schema(schema).empty_table()


def append(table: Any, rows: Any, moves: list[Any]) -> None:
    """Append rows and transactions in one commit."""
    deltalake = load()
    deltalake.write_deltalake(
        table,
        rows,
        mode="append",
        commit_properties=deltalake.CommitProperties(app_transactions=moves, max_commit_retries=_ATTEMPTS),
    )
