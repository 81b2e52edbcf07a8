"""`explicit_internal_names` refuses each program whose state a verb in front would take away."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from penstock import Application, Processor, Record, TopologyError, versioned_store
from penstock.operator import Operator
from penstock.plugins.dsl import StreamsBuilder, operators, sessions, within
from penstock.settings.settings import Settings

from .dsl_programs import FIVE, IN_FRONT, NAMED, PROGRAMS, Remind, add, program

WINDOW = within("2s", grace="1s")
OPTIMIZED = Settings(topology_optimization="single_store_self_join")
WITHOUT_STATE = {
    *(
        "Branch",
        "Filter",
        "FlatMap",
        "FlatMapValues",
        "MapValues",
        "MapValuesBatch",
        "Peek",
        "Printer",
        "SelectKey",
        "TablePrinter",
        "WithHeaders",
        "WithTimestamp",
    )
}
WITH_RECORDS_IN_FLIGHT = {"Lookup"}
"""Their store has the node's name, and no saved state of older versions has it."""


class Timed(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)

    def on_timer(self, key: Any, at: int) -> None: ...


UNNAMED: dict[str, Callable[[StreamsBuilder, Any, Any], Any]] = {
    "count": lambda builder, left, right: left.group_by_key().count(),
    "count behind a repartition topic": lambda builder, left, right: left.group_by(str).count("kept"),
    "a repartition topic": lambda builder, left, right: left.select_key(str).group_by_key().count(),
    "repartition": lambda builder, left, right: left.repartition(),
    "windows": lambda builder, left, right: left.group_by_key().windowed_by(FIVE).count(),
    "windows, on_close": lambda builder, left, right: left.group_by_key().windowed_by(FIVE, emit="on_close").count(),
    "sessions": lambda builder, left, right: left.group_by_key().windowed_by(sessions(gap="1s", grace="0s")).count(),
    "cogroup": lambda builder, left, right: left.group_by_key().cogroup(add).windowed_by(FIVE).aggregate(str),
    "suppress": lambda builder, left, right: left.group_by_key().count("kept").suppress("1s"),
    "join": lambda builder, left, right: left.join(right, add, WINDOW),
    "left_join": lambda builder, left, right: left.left_join(right, add, WINDOW),
    "outer_join": lambda builder, left, right: left.outer_join(right, add, WINDOW),
    "join with itself": lambda builder, left, right: left.join(left, add, WINDOW),
    "join with a table, grace": lambda builder, left, right: left.join(
        builder.table("other", versioned_store("table", history_retention="1h")), add, grace="1s"
    ),
    "join behind a repartition topic": lambda builder, left, right: left.select_key(str).join(
        builder.table("other", "table"), add
    ),
    "join of tables": lambda builder, left, right: builder.table("left").join(builder.table("other"), add),
    "join of tables, foreign_key": lambda builder, left, right: builder.table("one", "one").join(
        builder.table("other", "other"), add, foreign_key=str
    ),
    "global_table": lambda builder, left, right: left.join(builder.global_table("other"), add),
    "group_by of a table": lambda builder, left, right: builder.table("other", "table").group_by(str).count(),
    "to_table": lambda builder, left, right: right.join(left.to_table(), add),
    "process, timers": lambda builder, left, right: left.process(Timed),
    "process_values, timers": lambda builder, left, right: left.process_values(Timed),
    "process, schedules": lambda builder, left, right: left.process(Remind),
}


def kept(builder: StreamsBuilder) -> tuple[Any, ...]:
    """Return all names under which a program has state."""
    program = builder.build().build()
    saved = [getattr(node, "saved_as", ())[:1] for node in program.nodes.values()]
    return sorted(program.stores), sorted(program.internal_topics), sorted(each for each in saved if each)


def unnamed(verb: str, *, in_front: bool) -> StreamsBuilder:
    builder = StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    if in_front:
        left, right = left.peek(lambda value: None), right.peek(lambda value: None)
    UNNAMED[verb](builder, left, right)
    return builder


def test_a_program_that_it_accepts_keeps_its_state_with_a_verb_in_front() -> None:
    refused = set()
    for verb in UNNAMED:
        try:
            Application("app", unnamed(verb, in_front=False), explicit_internal_names=True)
        except TopologyError:
            refused.add(verb)
        else:
            assert kept(unnamed(verb, in_front=False)) == kept(unnamed(verb, in_front=True)), verb
    assert UNNAMED.keys() - refused == {"count behind a repartition topic", "global_table", "process, schedules"}


@pytest.mark.parametrize("verb", PROGRAMS)
def test_named_state_stays_with_a_verb_in_front_or_a_name(verb: str) -> None:
    first = program(verb)
    Application("app", first, explicit_internal_names=True)
    assert kept(first)[:2] == kept(program(verb, IN_FRONT))[:2] == kept(program(verb, NAMED))[:2]
    assert kept(first)[2] == kept(program(verb, IN_FRONT))[2]


def test_every_operator_with_state_is_in_a_program() -> None:
    """A new verb is added to tests/upgrades/dsl_programs.py."""
    for module in pkgutil.walk_packages(operators.__path__, f"{operators.__name__}."):
        import_module(module.name)
    used = {
        getattr(node, "supplier", None)
        for verb in PROGRAMS
        for node in program(verb).build(OPTIMIZED).build().nodes.values()
    }
    kinds = set(_below(Operator)) | {Operator}
    shown = [each for each in kinds if each.__module__.startswith(operators.__name__) and not _below(each)]
    assert {each.__name__ for each in shown if each not in used} == WITHOUT_STATE | WITH_RECORDS_IN_FLIGHT


def _below(kind: type) -> list[type]:
    found: list[type] = []
    kinds: list[type] = kind.__subclasses__()
    for each in kinds:
        found += [each, *_below(each)]
    return found
