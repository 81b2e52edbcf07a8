"""Escaped keys keep their order, whatever follows them, and come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreError
from penstock.stores.rows.escaping import escaped, unescaped

KEYS = st.lists(st.sampled_from([b"\x00", b"\x01", b"a", b"\xff"]), max_size=5).map(b"".join) | st.binary(max_size=8)
RESTS = st.binary(max_size=3) | st.sampled_from([b"\x00\x00", b"\xff\xff", b"\x00\xff"])


@given(KEYS, RESTS, st.binary(max_size=3))
def test_a_key_comes_back(key: bytes, rest: bytes, before: bytes) -> None:
    row = before + escaped(key) + rest
    assert unescaped(row, len(before)) == (key, len(row) - len(rest))


@given(KEYS, RESTS, KEYS, RESTS)
def test_rows_are_in_the_order_of_their_keys(key: bytes, rest: bytes, other: bytes, other_rest: bytes) -> None:
    rows = (escaped(key) + rest, escaped(other) + other_rest)
    assert (rows[0] < rows[1]) == ((key, rest) < (other, other_rest))


def test_a_row_without_an_end_is_refused() -> None:
    with pytest.raises(StoreError, match="damaged"):
        unescaped(b"a\x00\xff")
