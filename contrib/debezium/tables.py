"""`table`: the present rows of a database's table, from the topic of its changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from penstock import ProcessingError, Serde
from penstock.plugins.dsl import KTable, StreamsBuilder

from .change import DELETED, UNAVAILABLE, Change, latest
from .serde import DebeziumSerde


def table(
    builder: StreamsBuilder,
    topic: str,
    name: str,
    *,
    key_serde: Serde[Any] | str,
    columns: Mapping[str, str] | None = None,
    unavailable: str = UNAVAILABLE,
) -> KTable[Any, Any]:
    """Return the table of the present rows, by primary key, from the topic of a table's changes.

    A row is a dict of its columns; one that is deleted is deleted here. Keys of the topic are structs, whose bytes no
    other topic has, so changes are repartitioned by the key itself: the value of its column, or a tuple. `key_serde`
    writes it. `name`: of the store; `columns`: types, as of `DebeziumSerde`; `unavailable`: Debezium's setting
    `unavailable.value.placeholder`.
    """
    serde = DebeziumSerde(columns)
    changes = builder.stream(topic, key_serde=serde, value_serde=serde)
    by_key = changes.map(_with_deletions, with_key=True).group_by_key(key_serde=key_serde, value_serde=serde, name=name)
    rows: KTable[Any, Any] = by_key.aggregate(
        _no_row, partial(latest, unavailable=unavailable), store=name, value_serde=serde
    )
    return rows


def _with_deletions(key: Any, change: Change | None) -> tuple[Any, Change]:
    if key is None:
        raise ProcessingError(
            "a change without a key: the database's table has no primary key; name columns in Debezium's setting "
            "message.key.columns"
        )
    return key, DELETED if change is None else change


def _no_row() -> None:
    return None
