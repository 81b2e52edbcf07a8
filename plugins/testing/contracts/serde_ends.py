"""The part of `SerdeContract` about the ends of ranges: large numbers, long text, deep nesting, and more bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any

from hypothesis import strategies as st

from penstock import Serde, SerdeError

from .expectations import shown
from .serde_neighbours import BYTES, INTS, TEXTS, ends, shape
from .serde_tests import ANY_TEXT, SerdeTests

_MOST = 100
"""So many larger values are made of one."""
BUILT_IN: Mapping[type, st.SearchStrategy[Any]] = {
    str: ANY_TEXT | st.sampled_from(TEXTS),
    int: st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from(INTS),
    float: st.floats(),
    bool: st.booleans(),
    bytes: st.binary(max_size=100) | st.sampled_from(BYTES),
}
"""Values of types that a serde may name as immutable."""


class EndsTests(SerdeTests):
    """Values of the types that a serde has, larger than those that its author thought of."""

    def test_the_ends_of_ranges_come_back_or_are_refused(self) -> None:
        """By each way to write and read; a value that is changed in silence is a wrong result some day."""
        if self.changes_ends:
            return
        serde = self.made()
        fast = serde.serializer()
        kinds: set[type] = set()
        by_shape = {shape(value): value for value in self._samples(60)}
        for sample in sorted(by_shape.values(), key=lambda value: len(shape(value)))[-6:]:
            has_long, kinds = type(sample) not in kinds, {*kinds, type(sample)}
            values = list(islice(ends(sample, has_long), 1000))
            if len(values) > _MOST:
                # The first ones are of the value as a whole.
                values = [*values[:4], *Random(1).sample(values[4:], _MOST - 4)]
            for value in values:
                try:
                    written = serde.serialize(value)
                except Exception:
                    continue
                if wrong := self._wrong_with(serde, fast, value, written):
                    raise AssertionError(
                        f"{shown(value)}, a value of the types of {shown(sample)}, is not refused, and {wrong}"
                    )

    def _wrong_with(self, serde: Serde[Any], fast: Callable[[Any], bytes], value: Any, written: bytes) -> str:
        """Return what differs from the value in any way to write and read it; "" if nothing does."""
        try:
            read = serde.deserialize(written)
            if not self._is_back(serde, read, value):
                return f"came back as {shown(read)}: refuse it (or say so, and set changes_ends = True)"
            column = serde.deserialize_column([written, None, written])
            if len(column) != 3 or not self._is_back(serde, column[2], value):
                return f"deserialize_column returned {shown(column)}"
        except Exception as error:
            return f"cannot be read again: {type(error).__name__}: {shown(error)}"
        with suppress(Exception):
            if (again := fast(value)) != written:
                return f"serializer() wrote {shown(again)}, and serialize {shown(written)}"
        try:
            form = json.dumps(serde.to_json(value), allow_nan=False)
        except Exception:
            return ""
        try:
            read = serde.from_json(json.loads(form))
        except Exception as error:
            return f"its text form {shown(form)} cannot be read: {type(error).__name__}: {shown(error)}"
        return "" if self._is_back(serde, read, value) else f"its text form {shown(form)} is read as {shown(read)}"

    def test_bytes_behind_the_end_are_not_ignored(self) -> None:
        """They are damage, or another serde's: refused, or a part of the value."""
        serde = self.made()
        # No single zero: JSON takes that for UTF-16.
        for value in [] if self.ignores_the_rest else self._samples(8):
            written = serde.serialize(value)
            for more in (b"\0\xff", b"\xff", b"\0" * 8, b"\xff\0\xff"):
                try:
                    read = serde.deserialize(written + more)
                except Exception:
                    continue
                assert not self._is_back(serde, read, value), (
                    f"{shown(written)} with {more!r} behind it is read as {shown(read)}, as if nothing were there: "
                    "raise SerdeError (or say so, and set ignores_the_rest = True)"
                )

    def test_a_column_of_one_value(self) -> None:
        """40,000 records of one key come in one fetch."""
        serde = self.made()
        for value in self._samples(1):
            written = serde.serialize(value)
            read = serde.deserialize_column([written] * 40_000)
            assert len(read) == 40_000, f"deserialize_column returned {len(read)} values for 40,000"
            for row in (0, 4_095, 4_096, 32_767, 32_768, 39_999):
                assert self._is_back(serde, read[row], value), (
                    f"of 40,000 equal rows, number {row} is read as {read[row]!r}"
                )


def reads(serde: Serde[Any], written: bytes) -> Any:
    """Return what a serde reads; SerdeError, the class, where it refuses."""
    try:
        return serde.deserialize(written)
    except Exception:
        return SerdeError
