"""The programs of the families about tables."""

from __future__ import annotations

from typing import Any

from penstock import versioned_store
from penstock.plugins.dsl import KTable, StreamsBuilder

from .language import SERDES, Params, first_char, program
from .store_commands import text

Table = KTable[Any, Any]


def table(builder: StreamsBuilder, topic: str, params: Params) -> Table:
    """Return the table that a table object of the vectors describes."""
    store: Any = params.get("store")
    if "versioned" in params:
        store = versioned_store(store, history_retention=f"{params['versioned']}ms")
    return builder.table(topic, store, **SERDES)


@program
def to_stream_rekey(builder: StreamsBuilder, params: Params) -> None:
    stream = table(builder, "in", params["table"]).to_stream(
        lambda key, value: f"{text(key)}/{text(first_char(value))}", with_key=True
    )
    stream.to("out", **SERDES)
