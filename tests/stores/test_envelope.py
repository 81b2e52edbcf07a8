"""Envelopes come back as they were, and say so when they are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreError
from penstock.record import Headers
from penstock.store.envelope import (
    PLAIN,
    Envelope,
    Expiry,
    expiry_of,
    unwrap,
    value_of,
    with_expiry,
    wrap,
    wrap_stamped,
)

TIME = st.integers(-(2**63), 2**63 - 1)
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=5) | st.none())).map(
    tuple
)


@given(st.binary(), TIME | st.none(), HEADERS, st.builds(Expiry, TIME, st.booleans()) | st.none())
def test_round_trip(value: bytes, timestamp: int | None, headers: Headers, expiry: Expiry | None) -> None:
    kept = expiry or (None, False)
    data = wrap(value, timestamp, headers, *kept)
    assert unwrap(data) == Envelope(value, timestamp, headers, *kept)
    assert value_of(data) == value
    assert expiry_of(data) == expiry


@given(st.binary(), TIME, HEADERS, st.builds(Expiry, TIME, st.booleans()))
def test_the_short_ways_are_the_long_one(value: bytes, timestamp: int, headers: Headers, expiry: Expiry) -> None:
    assert PLAIN + value == wrap(value)
    assert wrap_stamped(value, timestamp) == wrap(value, timestamp)
    assert with_expiry(wrap(value, timestamp, headers), *expiry) == wrap(value, timestamp, headers, *expiry)


def test_a_plain_value_costs_one_byte() -> None:
    assert len(wrap(b"value")) == 6


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x02short", b"\x04\x00\x00", wrap(b"", headers=(("name", b"x"),))[:-3]]
)
def test_damage_is_an_error(data: bytes) -> None:
    with pytest.raises(StoreError, match="damaged"):
        unwrap(data)


def test_a_newer_format_is_an_error() -> None:
    with pytest.raises(StoreError, match="newer version"):
        unwrap(b"\x80value")
