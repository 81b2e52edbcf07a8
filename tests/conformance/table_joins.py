"""The programs of family `join_stream_table`: joins of a stream with tables and global tables."""

from __future__ import annotations

from typing import Any

from penstock.plugins.dsl import KStream, StreamsBuilder

from .language import SERDES, Params, joiner, program, selector
from .stateless import source
from .tables import table


def join_of(params: Params) -> Any:
    return KStream.join if params["type"] == "inner" else KStream.left_join


@program
def stream_table_join(builder: StreamsBuilder, params: Params) -> None:
    made = table(builder, "table", params["table"])
    stream = source(builder, "stream")
    if "select" in params:
        stream = stream.select_key(selector(params["select"]), with_key=True)
    grace: Any = {"grace": f"{params['grace']}ms", "name": "stj"} if "grace" in params else {}
    join_of(params)(stream, made, joiner, **grace, **SERDES).to("out", **SERDES)


@program
def stream_global_table_join(builder: StreamsBuilder, params: Params) -> None:
    made = builder.global_table("table", "gt", **SERDES)
    select = selector(params["select"])
    stream = join_of(params)(
        source(builder, "stream"), made, lambda key, left, right: joiner(left, right), select_key=select, with_key=True
    )
    stream.to("out", **SERDES)
