"""The programs of family `join_stream_stream`: joins of two streams."""

from __future__ import annotations

from typing import Any

from penstock.plugins.dsl import JoinWindows, KStream, StreamsBuilder, within

from .language import SERDES, Params, joiner, program, selector
from .stateless import Stream, source

JOIN_SERDES: dict[str, Any] = {**SERDES, "other_value_serde": "json"}


def windows(params: Params) -> JoinWindows:
    return within(before=f"{params['before']}ms", after=f"{params['after']}ms", grace=f"{params.get('grace', 0)}ms")


def joined(left: Stream, right: Stream, params: Params) -> Stream:
    join: Any = {"inner": KStream.join, "left": KStream.left_join, "outer": KStream.outer_join}[params["type"]]
    interval = f"{params.get('emit_interval_ms', 0)}ms"
    made: Stream = join(left, right, joiner, windows(params), emit_interval=interval, **JOIN_SERDES)
    return made


@program
def stream_stream_join(builder: StreamsBuilder, params: Params) -> None:
    left, right = source(builder, "left"), source(builder, "right")
    if "select_left" in params:
        left = left.select_key(selector(params["select_left"]), with_key=True)
    if "select_right" in params:
        right = right.select_key(selector(params["select_right"]), with_key=True)
    joined(left, right, params).to("out", **SERDES)


@program
def stream_stream_self_join(builder: StreamsBuilder, params: Params) -> None:
    stream = source(builder)
    joined(stream, stream, params).to("out", **SERDES)
