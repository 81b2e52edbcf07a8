"""Keys of a type: what is read back is the same key, with the same bytes, and so in the same partition and store."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from msgspec import Struct

from penstock import Processor, Record, Topology, key_value_store
from penstock.plugins.serdes.of import of
from penstock.plugins.testing import TopologyTestDriver


class Place(NamedTuple):
    x: float
    y: float | None = None


@dataclass(frozen=True)
class Price:
    amount: Decimal
    by_weight: dict[float, int] = field(default_factory=dict)


class Area(Struct, frozen=True):
    corners: tuple[Place, ...]


@pytest.mark.parametrize(
    "key",
    [Place(1), Place(1.5, -0.0), Place(2**53, 1), Price(1), Price(1.5), Price(Decimal("1.50"), {2: 1}),  # type: ignore[arg-type]
     Area((Place(1), Place(2, 3)))],
)  # fmt: skip
def test_a_key_that_is_read_back_has_the_same_bytes(key: Any) -> None:
    for serde, value in ((of(type(key)), key), (of(list[type(key)]), [key]), (of(dict[str, type(key)]), {"a": key})):  # type: ignore[misc]
        data = serde.serialize(value)
        again = serde.deserialize(data)
        assert again == value and serde.serialize(again) == data


class Keep(Processor):
    """Keeps a number under the place that it makes of the value."""

    def process(self, record: Record) -> None:
        self.context.get_store("places").put(Place(record.value), record.value)


def test_a_row_is_found_by_the_key_that_a_scan_shows() -> None:
    topology = Topology().add_source("in", "in", key_serde="str", value_serde="msgpack")
    topology.add_processor("keep", Keep, "in", stores=[key_value_store("places", key_serde=of(Place))])
    with TopologyTestDriver(topology) as driver:
        driver.pipe("in", "a", 1)
        driver.pipe("in", "a", 1.0)
        driver.reopen()
        store = driver.store("places")
        assert [key for key, _ in store.all()] == [Place(1.0)]
        assert store.get(Place(1.0)) == store.get(Place(1)) == 1.0
