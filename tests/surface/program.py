"""A program with a topic and a store for each serde, which keeps every record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel, Field

from penstock import Application, Processor, Record, Serde, Topology, Windowed, key_value_store
from penstock.plugins.testing.strategies import Line, Order, Place, keys, orders, places, values
from penstock.serdes import of

_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


class Customer(BaseModel):
    """A value that is kept as a model of pydantic."""

    name: str
    lines: list[Line] = []
    mail: str = Field("", alias="e-mail")


@dataclass(frozen=True)
class Kept:
    """What one topic and its store have."""

    key_serde: str | Serde[Any]
    value_serde: str | Serde[Any]
    keys: st.SearchStrategy[Any]
    values: st.SearchStrategy[Any] = field(default_factory=values)


@st.composite
def _customers(draw: st.DrawFn) -> Customer:
    return Customer(name=draw(_NAMES), lines=draw(orders()).lines, **{"e-mail": draw(_NAMES)})


_WINDOWS = st.builds(lambda key, start: Windowed(key, start, start + 10), keys(), st.integers(0, 2**40))
KEPT = {
    "msgpack": Kept("msgpack", "msgpack", keys()),
    "json": Kept("json", "json", keys("json"), values("json")),
    "fields": Kept(of(Place), of(Order), places(), orders()),
    "models": Kept("uuid", of(Customer), keys("uuid"), _customers()),
    "pickle": Kept("bytes", "pickle", keys("bytes"), values("pickle")),
    "lists": Kept("list:str", "list:float", st.lists(keys("str"), min_size=1), st.lists(st.none() | values("float"))),
    "windows": Kept("windowed:msgpack:10ms", "float", _WINDOWS, values("float")),
    "numbers": Kept("int", "float32", keys("int"), values("float32")),
    "text": Kept("str", "bool", keys("str"), values("bool")),
}


class Keep(Processor):
    """Puts each record into the store of its topic."""

    def process(self, record: Record) -> None:
        """Keep the record."""
        metadata = self.context.record_metadata
        assert metadata is not None
        self.context.get_store(metadata.topic).put(record.key, record.value)


def _topology() -> Topology:
    made = Topology()
    for name, kept in KEPT.items():
        made.add_source(f"read-{name}", name, key_serde=kept.key_serde, value_serde=kept.value_serde)
        store = key_value_store(name, key_serde=kept.key_serde, value_serde=kept.value_serde)
        made.add_processor(f"keep-{name}", Keep, f"read-{name}", stores=[store])
    return made


application = Application("kept", _topology())
