"""Programs of the DSL that a case spells out, step by step: so any program can be recorded, also generated ones."""

from __future__ import annotations

from typing import Any

from penstock import Processor, Record, ValueTransformer, versioned_store
from penstock.plugins.dsl import StreamsBuilder, within

from .aggregations import aggregated, windows_of
from .language import (
    SERDES,
    Params,
    first_char,
    joiner,
    mapper,
    merge_sessions,
    predicate,
    program,
    selector,
)
from .store_commands import text


def digits_or_later(record: Record, partition_time: int, wall_clock: int) -> int:
    """The extractor of applications with `timestamp_extractor: digits`: the number before the value's first colon, else
    1,000 ms later than the record. So to extract twice is seen."""
    before, colon, _ = text(record.value).partition(":")
    return int(before) if colon and before.isdigit() else record.timestamp + 1000


class Rekeyed(Processor):
    """Forwards records with the first character of the value as their key."""

    def process(self, record: Record) -> None:
        self.context.forward(record.with_key(first_char(record.value)))


class Tagged(ValueTransformer):
    """Puts the key in front of the value, as `tag`."""

    def transform(self, key: Any, value: Any) -> str:
        return f"{text(key)}:{text(value)}"


@program
def steps(builder: StreamsBuilder, params: Params) -> None:
    """Perform `params["steps"]`. Each names by `of` the numbers of the earlier steps whose results it uses."""
    made: list[Any] = []
    for step in params["steps"]:
        of = step.get("of", [])
        made.append(_result(builder, step, [made[each] for each in (of if isinstance(of, list) else [of])]))


def _result(builder: StreamsBuilder, step: Params, of: list[Any]) -> Any:
    match step["op"]:
        case "stream":
            return builder.stream(step["topic"], **SERDES)
        case "table":
            return builder.table(step["topic"], _store(step), **SERDES)
        case "global_table":
            return builder.global_table(step["topic"], step["store"], **SERDES)
        case "filter":
            return of[0].filter(predicate(step["pred"]), with_key=True, **_kept(step))
        case "map_values":
            return of[0].map_values(mapper(step["fn"]), with_key=True, **_kept(step))
        case "select_key":
            return of[0].select_key(_selector(step["sel"]), with_key=True)
        case "map":
            return of[0].map(lambda key, value: (first_char(value), f"{text(key)}/{text(value)}"), with_key=True)
        case "process":
            return of[0].process(Rekeyed)
        case "process_values":
            return of[0].process_values(Tagged)
        case "merge":
            return of[0].merge(of[1])
        case "repartition":
            return of[0].repartition(step.get("name"), **SERDES)
        case "to_table":
            return of[0].to_table(step.get("store"), **SERDES)
        case "to_stream":
            return of[0].to_stream()
        case "unwindow":
            return of[0].to_stream(lambda key, value: f"{key.key}@{key.start}", with_key=True)
        case "suppress":
            return of[0].suppress("window_closes" if step["until"] == "window_closes" else f"{step['ms']}ms")
        case "aggregate":
            return _aggregate(step, of[0])
        case "cogroup":
            return _cogroup(step, of)
        case "group_table":
            groups = of[0].group_by(_selector(step["group"]), with_key=True, name=step.get("name"), **SERDES)
            return groups.count(step.get("store"))
        case "join":
            return _join(step, *of)
        case "to":
            return of[0].to(step["topic"], **SERDES)
    raise AssertionError(step["op"])


def _store(step: Params) -> Any:
    if "versioned" in step:
        return versioned_store(step["store"], history_retention=f"{step['versioned']}ms")
    return step.get("store")


def _kept(step: Params) -> dict[str, Any]:
    return {"store": step["store"], **SERDES} if "store" in step else {}


def _selector(spec: str) -> Any:
    """As `selector`, but a key that is a value is a text, also of an integer."""
    select = selector(spec)
    return lambda key, value: None if (found := select(key, value)) is None else text(found)


def _grouped(stream: Any, group: str, name: str | None) -> Any:
    if group == "key":
        return stream.group_by_key(name=name, **SERDES)
    return stream.group_by(_selector(group), with_key=True, name=name, **SERDES)


def _aggregate(step: Params, stream: Any) -> Any:
    made = _grouped(stream, step["group"], step.get("name"))
    if "window" in step:
        made = made.windowed_by(windows_of(step["window"]))
    kept = {"retention": f"{step['retention']}ms"} if "retention" in step else {}
    return aggregated(made, step["agg"], step.get("store"), **kept)


def _cogroup(step: Params, streams: list[Any]) -> Any:
    members = []
    for number, (stream, group) in enumerate(zip(streams, step["groups"], strict=True), 1):
        grouped = _grouped(stream, group, f"g{number}{step.get('name', '')}")
        members.append((grouped, lambda aggregate, value, n=number: f"{aggregate}+{n}:{text(value)}"))
    made = members[0][0].cogroup(members[0][1])
    for grouped, aggregator in members[1:]:
        made = made.cogroup(grouped, aggregator)
    merger = {}
    if "window" in step:
        made = made.windowed_by(windows_of(step["window"]))
        merger = {"merger": merge_sessions} if step["window"]["kind"] == "session" else {}
    return made.aggregate(str, step.get("store"), **merger, **SERDES)


def _joiner_after_key(key: Any, left: Any, right: Any) -> str:
    return joiner(left, right)


def _joiner_of_both_keys(key: Any, row_key: Any, left: Any, right: Any) -> str:
    return f"{text(key)}/{text(row_key)}={joiner(left, right)}"


def _join(step: Params, left: Any, right: Any) -> Any:
    join = {"inner": "join", "left": "left_join", "outer": "outer_join"}[step["type"]]
    if "diff" in step:
        window = within(f"{step['diff']}ms", grace=f"{step['grace']}ms")
        return getattr(left, join)(right, joiner, window, **SERDES, other_value_serde="json")
    if "fk" in step:
        select = _selector(step["fk"])
        return getattr(left, join)(right, joiner, foreign_key=lambda value: select(None, value), **SERDES)
    if "select" in step:
        select = _selector(step["select"])
        if step.get("both_keys"):
            return getattr(left, join)(right, _joiner_of_both_keys, select_key=select, with_both_keys=True)
        return getattr(left, join)(right, _joiner_after_key, select_key=select, with_key=True)
    if hasattr(left, "to_table"):
        grace = {"grace": f"{step['grace']}ms"} if "grace" in step else {}
        return getattr(left, join)(right, joiner, **grace, **SERDES)
    return getattr(left, join)(right, joiner, **_kept(step))
