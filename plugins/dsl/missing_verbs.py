"""Hints for a verb or a class of Kafka Streams that there is not: the object that has it, or its name here."""

from __future__ import annotations

import re
from abc import ABCMeta
from collections import defaultdict
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

_WINDOWS = {f"{each}_window": f"group_by_key().windowed_by({each}(...))" for each in ("tumbling", "hopping", "sliding")}
_SUMS = {
    each: f'agg({name}={made}("FIELD"))'
    for each, name, made in (
        ("sum", "total", "sum_of"), ("mean", "mean", "mean_of"), ("min", "least", "min_of"), ("max", "most", "max_of"),
    )
}  # fmt: skip

_ROW = "map_values(lambda value: {...}): a function makes the new row"
_WHEN_CLOSED = 'windowed_by(WINDOWS, emit="on_close"): each window goes on once, when it is over'
_EACH_UPDATE = "to_stream(): each update goes on, unless the record cache holds it back (cached=False)"
_TIMER = "process(PROCESSOR): its init calls self.context.schedule(INTERVAL, FUNCTION, WALL_CLOCK_TIME)"

_ELSEWHERE: dict[str, dict[str, str]] = {
    "stream": {
        "through": "repartition(NAME), or to(TOPIC) and builder.stream(TOPIC)",
        **dict.fromkeys(
            ("transform", "flat_transform", "flat_transform_values"), "process(SUPPLIER, stores=[...])"
        ),
        "transform_values": "a stream has no transform_values(), which is for tables; for each record: "
        "process_values(SUPPLIER, stores=[...]); for the latest value of each key: "
        "stream.to_table().transform_values(...)",
        "apply": "map_values(FUNCTION)",
        "update": "peek(FUNCTION)",
        "key_by": "select_key(FUNCTION)",
        **dict.fromkeys(("to_topic", "sink", "send"), "to(TOPIC)"),
        "set_timestamp": "with_timestamp(FUNCTION)",
        "set_headers": "with_headers(FUNCTION)",
        **dict.fromkeys(("map_with_state", "flat_map_with_state"), "stateful_map(FUNCTION, INITIAL, STORE)"),
        **dict.fromkeys(("drop", "fill"), _ROW),
        "concat": "merge(OTHER)",
        "items": "a function gets the key as well by with_key=True: map_values(FUNCTION, with_key=True)",
        "take": "group_by_key().windowed_by(tumbling(...)).agg(values=latest(N))",
        "join_asof": "join(builder.table(TOPIC, versioned_store(NAME, history_retention=...)), JOINER)",
        "join_interval": "join(OTHER, JOINER, within(...))",
        "join_lookup": "join(builder.global_table(TOPIC), JOINER, select_key=FUNCTION)",
        **_WINDOWS,
        "session_window": "group_by_key().windowed_by(sessions(gap=...))",
        **{each: f"group_by_key().{way}" for each, way in _SUMS.items()},
    },
    "table": {"final": _WHEN_CLOSED, "current": _EACH_UPDATE},
    "grouped stream": _SUMS,
    "windowed stream": {
        **_SUMS, "final": _WHEN_CLOSED, "current": _EACH_UPDATE, "collect": 'agg(values=collect_of("FIELD"))',
    },
    "builder": {
        **dict.fromkeys(("topic", "dataframe", "agent"), "stream(TOPIC)"),
        **dict.fromkeys(("run", "main"), "penstock.run(Application(ID, builder)), or penstock run MODULE:ATTR"),
        "timer": _TIMER,
        "crontab": _TIMER.replace("INTERVAL", "cron(...)") + "; from penstock.contrib.cron import cron",
        "add_store": "add_state_store(STORE), or process(SUPPLIER, stores=[STORE])",
        **dict.fromkeys(("add_source", "add_processor", "add_sink"), "stream(TOPIC), process(SUPPLIER) and to(TOPIC)"),
    },
}  # fmt: skip
"""Verbs of other libraries, or of other versions of Kafka Streams, and their replacements here."""

_BRANCHES = 'default() or no_default() returns the streams by name: no_default()["NAME"]'
_JOINED_ONLY = (
    "a global table is only joined with, stream.join(global_table, JOINER, select_key=FUNCTION); another reader of its "
    "topic: "
)
_OF_STREAMS = "windows and cogroups are of streams: table.to_stream().group_by_key().{verb}(...)"

_WAYS: dict[str, tuple[tuple[str, str], ...]] = {
    "stream": (
        ("grouped stream", "stream.group_by_key().{verb}(...)"),
        ("windowed stream", "stream.group_by_key().windowed_by(...).{verb}(...)"),
        ("table", "a stream has no {verb}(), which is for tables; take the latest value of each key: "
         "stream.to_table().{verb}(...)"),
        ("split stream", "stream.split().{verb}(...)"),
    ),
    "table": (
        ("grouped table", "table.group_by(...).{verb}(...)"),
        ("stream", "a table has no {verb}(), which is for streams; go on with its updates: "
         "table.to_stream().{verb}(...)"),
        ("grouped stream", _OF_STREAMS),
    ),
    "grouped stream": (
        ("stream", "a stream is changed before it is grouped: stream.{verb}(...).group_by_key(); its aggregates are a "
         "table: count().to_stream().{verb}(...)"),
        ("table", "aggregate first: count().{verb}(...)"),
    ),
    "grouped table": (
        ("grouped stream", _OF_STREAMS),
        ("table", "aggregate first: count().{verb}(...)"),
        ("stream", "aggregate first: count().to_stream().{verb}(...)"),
    ),
    "windowed stream": (
        ("table", "aggregate first: count().{verb}(...)"),
        ("stream", "aggregate first: count().to_stream().{verb}(...)"),
        ("grouped stream", "it comes before the windows: stream.group_by_key().{verb}(...)"),
    ),
    "cogrouped stream": (
        ("grouped stream", "each stream of a cogroup has its aggregator: aggregate(INITIALIZER) makes the table"),
        ("table", "aggregate first: aggregate(INITIALIZER).{verb}(...)"),
        ("stream", "aggregate first: aggregate(INITIALIZER).to_stream().{verb}(...)"),
    ),
    "split stream": (
        ("stream", _BRANCHES + ".{verb}(...)"),
        ("table", _BRANCHES + ".to_table()"),
        ("grouped stream", _BRANCHES + ".group_by_key()"),
    ),
    "connected streams": (
        ("stream", "process(ON_FIRST, ON_SECOND) makes a stream of both: connect(OTHER).process(...).{verb}(...)"),
        ("table", "connect(OTHER).process(ON_FIRST, ON_SECOND).to_table().{verb}(...)"),
        ("grouped stream", "connect(OTHER).process(ON_FIRST, ON_SECOND).group_by_key().{verb}(...)"),
    ),
    "global table": (
        ("table", _JOINED_ONLY + "builder.table(TOPIC).{verb}(...)"),
        ("stream", _JOINED_ONLY + "builder.stream(TOPIC).{verb}(...)"),
        ("grouped stream", _JOINED_ONLY + "builder.stream(TOPIC).group_by_key().{verb}(...)"),
    ),
    "builder": (
        ("stream", "builder.stream(TOPIC).{verb}(...)"),
        ("table", "builder.table(TOPIC).{verb}(...)"),
        ("grouped stream", "builder.stream(TOPIC).group_by_key().{verb}(...)"),
    ),
}  # fmt: skip
"""Kind of object -> the kinds that have other verbs, the nearest first, and how to write them."""

_verbs: defaultdict[str, set[str]] = defaultdict(set)
"""Kind of object -> its verbs."""


class Verbs:
    """An object with verbs, of which another one is an AttributeError with what to write. `kind`: see `_WAYS`."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.kind:
            _verbs[cls.kind] |= {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    if not TYPE_CHECKING:  # A type checker knows the verbs.

        def __getattr__(self, name: str) -> Any:
            hint = "" if name.startswith("_") else _hint(self.kind, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint and f': {hint}'}")


def _hint(kind: str, name: str) -> str:
    """Return a hint for a verb that an object of this kind does not have; "" if nothing is known."""
    verb = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    mine = _verbs[kind]
    if verb in mine:
        return f"here it is called {verb}(...)"
    if verb in _ELSEWHERE.get(kind, {}):
        return _written(_ELSEWHERE[kind][verb])
    for other, way in (*_WAYS.get(kind, ()), ("builder", "builder.{verb}(...)")):
        if verb in _verbs[other]:
            return _written(way.format(verb=verb))
    close = get_close_matches(verb, mine, 3)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def _written(way: str) -> str:
    """Return a sentence as it is, and "write" before a mere expression."""
    return way if ": " in way else f"write {way}"


def found(value: Any) -> str:
    """Return how a message shows an argument: a part of a program by its class, anything else as it is."""
    return f"a {type(value).__name__}" if isinstance(value, Verbs) else repr(value)


_OPTIONS = {
    "Materialized": "the first argument of a verb is the store's name, and key_serde=, value_serde=, backend=, ttl=, "
    "retention=, cached= and logged= are options beside it, as in count(NAME, value_serde=...)",
    "Consumed": "stream(TOPIC, key_serde=..., value_serde=..., timestamp_extractor=..., offset_reset=...)",
    "Produced": "to(TOPIC, key_serde=..., value_serde=..., partitioner=...)",
    "Grouped": "group_by(FUNCTION, name=..., key_serde=..., value_serde=...)",
    "Joined": "join(TABLE, JOINER, name=..., key_serde=..., value_serde=..., grace=...)",
    "StreamJoined": "join(OTHER, JOINER, within(...), name=..., value_serde=..., other_value_serde=...)",
    "TableJoined": "join(TABLE, JOINER, foreign_key=..., partitioner=..., other_partitioner=...)",
    "Repartitioned": "repartition(NAME, partitions=..., key_serde=..., value_serde=...)",
    "Named": "each verb takes name=...",
    "Branched": "branch({NAME: PREDICATE}), or split().branch(PREDICATE, NAME)",
    "Printed": "print(label=..., file=...)",
    "Suppressed": 'suppress(until="window_closes", max_records=..., when_full=...)',
    "EmitStrategy": 'windowed_by(WINDOWS, emit="on_close")',
    "UnlimitedWindows": "unlimited(start=0)",
    "Serdes": 'a serde is a name, such as "str" or "int", or an object of penstock.serdes',
    "KeyValue": "a function returns a tuple (key, value)",
    "BranchedKStream": "stream.split() makes one",
    "KGroupedTable": "table.group_by(...) makes one",
    "KeyValueMapper": "a function is enough: it takes the value, and with_key=True gives it the key first",
    "Topology": "from penstock import Topology",
    "Windowed": "from penstock import Windowed",
}
"""Classes of Kafka Streams that are arguments, functions or names here, and what to write."""


def name_of_kafka(module: str, name: str) -> Any:
    """Raise what a module's `__getattr__` raises for a name: for a class of Kafka Streams with what to write here.

    That is an ImportError, since `from ... import` keeps no message of an AttributeError.
    """
    if name in _OPTIONS:
        raise ImportError(f"{module} has no {name!r}: {_written(_OPTIONS[name])}", name=name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


class WindowsType(ABCMeta):
    """The type of classes of windows: a constructor of Kafka Streams is an AttributeError with what to write here."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            way = next((way for kind in cls.__mro__ for way in _constructors(kind.__name__, name)), None)
            hint = f": write {way}" if way else ""
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}{hint}")


_MADE_BY = {
    "TimeWindows": 'tumbling("5m", grace={grace}), or hopping("5m", every="1m", grace={grace})',
    "SlidingWindows": 'sliding("5m", grace={grace})',
    "SessionWindows": 'sessions(gap="30m", grace={grace})',
    "JoinWindows": 'within("5m", grace={grace})',
}
_CONSTRUCTOR = re.compile(r"(of|with|advanceBy|advance_by|before|after|grace|until)(\W|$|_?[A-Z]|_)")


def _constructors(kind: str, name: str) -> list[str]:
    if kind not in _MADE_BY or not _CONSTRUCTOR.match(name):
        return []
    return [_MADE_BY[kind].format(grace='"0s"' if name.lower().replace("_", "").endswith("nograce") else '"1h"')]
