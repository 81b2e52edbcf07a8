"""Programs whose equal keys and values are put together in another order in each process, as sets and dicts are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from penstock import Processor, Record, Topology, key_value_store
from penstock.dsl import StreamsBuilder
from penstock.serdes import of

NUMBERS = (0, 8, 16)
"""A set of them has them in the order in which they came: their hashes share a slot."""


@dataclass(frozen=True)
class Group:
    """Equal groups hash alike, whatever the order of their parts."""

    name: str
    numbers: frozenset[int]
    sizes: dict[str, int] = field(hash=False)


def group(name: str, *, is_turned: bool) -> Group:
    """Return the group of a name; with `is_turned`, an equal one in another order."""
    step = -1 if is_turned else 1
    return Group(name, frozenset(NUMBERS[::step]), dict([("first", 1), ("second", 2)][::step]))


class CountsOfGroups(Processor):
    """Counts by group; some instances have groups, and values, in another order than the others."""

    def __init__(self, is_turned: bool) -> None:
        self._is_turned = is_turned

    def init(self, context: Any) -> None:
        super().init(context)
        self.kept = context.get_store("kept")

    def process(self, record: Record) -> None:
        key = group(record.key, is_turned=self._is_turned)
        found = (self.kept.get(key) or {}).get("count", 0) + 1
        step = -1 if self._is_turned else 1
        self.kept.put(key, dict([("count", found), ("name", record.key)][::step]))
        self.context.forward(record.with_value(found))


def counts_of_groups(key_serde: Any) -> Callable[[], Topology]:
    """Return what makes a program that counts in a store with groups as keys."""

    def made() -> Topology:
        random = Random(1)
        return (
            Topology()
            .add_source("in", "in")
            .add_processor(
                "keeps",
                lambda: CountsOfGroups(random.random() < 0.5),
                "in",
                stores=[key_value_store("kept", key_serde=key_serde, value_serde="msgpack")],
            )
            .add_sink("out", "out", "keeps")
        )

    return made


def regrouped_by_groups() -> StreamsBuilder:
    """Send equal groups, each in another order, through a repartition topic."""
    calls, builder = count(), StreamsBuilder()
    groups = builder.stream("in").select_key(
        lambda key, value: group(key, is_turned=bool(next(calls) % 2)), with_key=True
    )
    table = groups.group_by_key(key_serde=of(Group)).count()
    table.to_stream().map(lambda key, value: (key.name, value), with_key=True).to("out")
    return builder
