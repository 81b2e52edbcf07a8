"""The small language in which the vectors name functions, windows and settings of stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.plugins.dsl import StreamsBuilder
from penstock.settings.application import TopologyBuilder
from penstock.settings.settings import Settings

from .store_commands import text

Params = dict[str, Any]
Builder = Callable[[Params], TopologyBuilder]
DSL_BUILDERS: dict[str, Builder] = {}

SERDES: dict[str, Any] = {"key_serde": "str", "value_serde": "json"}
"""The serdes that every verb gets: keys are texts, values texts or integers."""

side_effects: list[dict[str, Any]] = []
"""What `peek` and `foreach` were called with; the runner empties it."""


def program(build: Callable[[StreamsBuilder, Params], None]) -> Callable[[StreamsBuilder, Params], None]:
    """Register a function that writes the program of a topology's name."""

    def made(params: Params) -> StreamsBuilder:
        builder = StreamsBuilder()
        build(builder, params)
        return builder

    assert build.__name__ not in DSL_BUILDERS, f"{build.__name__} is written twice"
    DSL_BUILDERS[build.__name__] = made
    return build


def settings_for(optimize: bool) -> Settings:
    return Settings(topology_optimization="all" if optimize else "none")


def noting(name: str) -> Callable[[Any, Any], None]:
    """Return a function that notes its call as a side effect."""

    def note(key: Any, value: Any) -> None:
        side_effects.append({"name": name, "key": key, "value": value})

    return note


def predicate(spec: str) -> Callable[[Any, Any], bool]:
    name, _, argument = spec.partition(":")
    return {
        "true": lambda k, v: True,
        "has_key": lambda k, v: k is not None,
        "has_value": lambda k, v: v is not None,
        "key_in": lambda k, v: k is not None and k in argument.split(","),
        "value_contains": lambda k, v: v is not None and argument in text(v),
        "value_len_gt": lambda k, v: v is not None and len(text(v)) > int(argument),
        "value_gt": lambda k, v: v is not None and v > int(argument),
        "value_even": lambda k, v: v is not None and v % 2 == 0,
    }[name]


def mapper(spec: str) -> Callable[[Any, Any], Any]:
    name, _, argument = spec.partition(":")

    def fail_if_contains(k: Any, v: Any) -> Any:
        if v is not None and argument in text(v):
            raise ValueError(f"the value contains {argument}")
        return v

    return {
        "upper": lambda k, v: None if v is None else v.upper(),
        "length": lambda k, v: None if v is None else len(v),
        "prefix": lambda k, v: None if v is None else v[: int(argument)],
        "inc": lambda k, v: None if v is None else v + 1,
        "to_string": lambda k, v: None if v is None else str(v),
        "null_if_contains": lambda k, v: None if v is None or argument in v else v,
        "tag": lambda k, v: f"{text(k)}:{text(v)}",
        "const": lambda k, v: argument,
        "fail_if_contains": fail_if_contains,
    }[name]


def selector(spec: str) -> Callable[[Any, Any], Any]:
    name, _, argument = spec.partition(":")
    return {
        "key": lambda k, v: k,
        "value": lambda k, v: v,
        "first_char": lambda k, v: first_char(v),
        "key_first_char": lambda k, v: first_char(k),
        "const": lambda k, v: argument,
        "before_colon": lambda k, v: v.partition(":")[0] if v is not None and ":" in v else None,
    }[name]


def first_char(value: Any) -> str | None:
    return None if value is None else text(value)[:1]


def words(value: str | None) -> list[str]:
    return [] if value is None else [word for word in value.split(" ") if word]


def joiner(left: Any, right: Any) -> str:
    return f"{text(left)}|{text(right)}"


def add(aggregate: str, value: Any) -> str:
    return f"{aggregate}+{text(value)}"


def merge_sessions(one: str, other: str) -> str:
    return f"{one}&{other}"


def reduce(one: Any, other: Any) -> Any:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return f"{text(one)},{text(other)}"
