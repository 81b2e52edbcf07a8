"""Rows of the verbs' own stores as text: each part as its own serde shows it, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import Change, Serde, SerdeError
from penstock.plugins.dsl.operators.aggregate.table_aggregate import ChangeSerde
from penstock.plugins.dsl.operators.foreign_key_messages import (
    Response,
    ResponseSerde,
    Subscription,
    SubscriptionSerde,
)
from penstock.plugins.dsl.operators.suppress import Buffered, BufferedSerde
from penstock.plugins.dsl.operators.waiting import SideSerde, TimedKeySerde, ValueAndHeadersSerde, WaitingKeySerde
from penstock.processor import PendingRecord
from penstock.program.in_flight import PendingKeySerde, PendingRecordSerde
from penstock.serdes import of
from penstock.store.record_cache import SourceRecord


@dataclass(frozen=True)
class Seat:
    row: str
    number: int = 0


SEAT = Seat("a", 5)
SEATS = of(Seat)
HEADERS = (("h", b"\xff"), ("none", None))
SOURCE = SourceRecord("in", 1, 7, b"k", None, HEADERS, 9)


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (WaitingKeySerde(SEATS), (5, True, SEAT)),
        (TimedKeySerde(SEATS), (5, SEAT)),
        (SideSerde(SEATS, of(dict[str, Seat])), (True, SEAT)),
        (SideSerde(SEATS, of(dict[str, Seat])), (False, {"a": SEAT})),
        (ValueAndHeadersSerde(SEATS), (SEAT, HEADERS)),
        (PendingKeySerde(SEATS), (5, SEAT)),
        (PendingKeySerde(SEATS), (5, None)),
        (PendingRecordSerde(SEATS), PendingRecord(SEAT, HEADERS, 1, 2, 3, SOURCE)),
        (PendingRecordSerde(SEATS), PendingRecord(None, (), 1, 2, 3, None)),
        (BufferedSerde(SEATS), Buffered(5, 7, HEADERS, None, SEAT, SEAT)),
        (SubscriptionSerde(SEATS), Subscription(b"x" * 16, 1, SEAT, 2, 3)),
        (ResponseSerde(SEATS), Response(None, SEAT, 2, None, 0)),
        (ChangeSerde(SEATS), Change(SEAT, None)),
    ],
)
def test_a_row_comes_back_from_its_text(serde: Serde[Any], value: Any) -> None:
    """`state export` and queries refused these stores where a key or value is of a class."""
    shown = json.loads(json.dumps(serde.to_json(value)))
    assert serde.from_json(shown) == value and serde.key_from_json(shown) == value
    assert type(serde.from_json(shown)) is type(value)
    assert serde.serialize(serde.from_json(shown)) == serde.serialize(value)
    wrong: Any
    for wrong in (None, 5, [], {"!tuple": 5}, {"!tuple": ["a", "b", "c"]}, {"value": 1}):
        with pytest.raises(SerdeError):
            serde.from_json(wrong)


def test_a_key_in_a_row_loses_no_field() -> None:
    more = {"!tuple": [5, {"row": "a", "side": "left"}]}
    assert PendingKeySerde(SEATS).from_json(more) == (5, Seat("a"))
    with pytest.raises(SerdeError, match="side: keys of Seat have no such field"):
        PendingKeySerde(SEATS).key_from_json(more)
