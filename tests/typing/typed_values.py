"""The types of serdes made by `of`, and of the lambdas behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from penstock import Serde
from penstock.dsl import KStream, StreamsBuilder
from penstock.serdes import AvroSerde, JsonSchemaSerde, of


@dataclass
class Order:
    user: str
    amount: int


def typed(builder: StreamsBuilder) -> None:
    assert_type(of(Order), Serde[Order])
    assert_type(of(list[Order]), Serde[list[Order]])
    assert_type(of(Order | None, extra="refuse"), Serde[Any])
    orders = builder.stream("orders", key_serde=of(str), value_serde=of(Order))
    assert_type(orders, KStream[str, Order])
    assert_type(orders.map_values(lambda order: order.amount), KStream[str, int])
    orders.map_values(lambda order: order.amnt)  # type: ignore[attr-defined]
    orders.to("out", value_serde=of(Order))
    of(Order).serialize("text")  # type: ignore[arg-type]
    of(Order, extra="allow")  # type: ignore[call-overload]


def of_a_registry(builder: StreamsBuilder) -> None:
    assert_type(AvroSerde("order.avsc"), AvroSerde[Any])
    assert_type(JsonSchemaSerde("order.json"), JsonSchemaSerde[Any])
    assert_type(builder.stream("orders", value_serde=AvroSerde("order.avsc", Order)), KStream[Any, Order])
    assert_type(builder.stream("orders", value_serde=JsonSchemaSerde(Order)), KStream[Any, Order])
