"""Typed values and values of a registry in a run whose tasks are in another process, with state between runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError, run
from penstock.dsl import StreamsBuilder
from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import OutputBatch, TopicPartition

from ..spark.surroundings import Surroundings
from .schema_registry import SchemaRegistry, running

ORDER = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "user", "type": "string"}, {"name": "cents", "type": "long"}]}"""
TOTAL = """{"type": "record", "name": "Total", "namespace": "shop", "fields": [
    {"name": "cents", "type": "long"}, {"name": "orders", "type": "long"}]}"""


@dataclass
class Order:
    user: str
    cents: int


@dataclass
class Total:
    cents: int = 0
    users: set[str] = field(default_factory=set)


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(orders=1, totals=1)
        yield made


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running() as made:
        yield made


def put(surroundings: Surroundings, *values: bytes) -> None:
    keys: list[bytes | None] = [b"k"] * len(values)
    surroundings.log.append(OutputBatch("orders", keys, list(values), [1] * len(values), None, [[0]] * len(values)))


def last(surroundings: Surroundings) -> bytes:
    return read(surroundings.log, TopicPartition("totals", 0))[-1].value or b""


def run_it(surroundings: Surroundings, builder: StreamsBuilder) -> None:
    run(surroundings.application("app", builder.build(), engine="embedded", processes=1))


def add(total: Total, order: Order) -> Total:
    return Total(total.cents + order.cents, total.users | {order.user})


def test_dataclasses_of_a_program(surroundings: Surroundings) -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key_serde="str", value_serde=of(Order)).group_by_key()
    orders.aggregate(Total, add, "totals", value_serde=of(Total)).to_stream().to("totals")
    put(surroundings, b'{"user": "anna", "cents": 5}', b'{"cents": 6, "user": "ben"}')
    run_it(surroundings, builder)
    put(surroundings, b'{"user": "anna", "cents": 7}')
    run_it(surroundings, builder)
    assert last(surroundings) == b'{"cents":18,"users":["anna","ben"]}'


def add_avro(total: Any, order: Any) -> Any:
    return {"cents": total["cents"] + order["cents"], "orders": total["orders"] + 1}


def test_avro_with_a_registry_that_goes_away_and_comes_back(
    surroundings: Surroundings, registry: SchemaRegistry
) -> None:
    def program(url: str) -> StreamsBuilder:
        conf = {"url": url, "max.retries": 0}
        builder = StreamsBuilder()
        orders = builder.stream("orders", key_serde="str", value_serde=AvroSerde(ORDER, registry=conf)).group_by_key()
        totals = orders.aggregate(
            lambda: {"cents": 0, "orders": 0}, add_avro, "totals", value_serde=AvroSerde(TOTAL, registry=conf)
        )
        totals.to_stream().to("totals")
        return builder

    write = AvroSerde(ORDER, registry=registry.url).bind("orders", is_key=False).serialize
    put(surroundings, write({"user": "anna", "cents": 5}))
    run_it(surroundings, program(registry.url))
    put(surroundings, write({"user": "ben", "cents": 6}))
    with pytest.raises(ConfigError, match="source 'KSTREAM-SOURCE-0000000000', values of topic 'orders'.*start the"):
        run_it(surroundings, program("http://127.0.0.1:1"))
    run_it(surroundings, program(registry.url))
    assert AvroSerde(registry=registry.url).deserialize(last(surroundings)) == {"cents": 11, "orders": 2}
    assert registry.subjects.keys() == {"orders-value", "totals-value", "shop.Total"}
